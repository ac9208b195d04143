"""A throttle (dlcourse.storage) makes reading take what the storage's arithmetic says."""

import threading
from time import perf_counter

import pytest

from dlcourse import storage
from dlcourse.storage import BURST_S, ClientShare, Throttle

DISK = storage.Disk(bytes_per_s=150e6, requests_per_s=120, latency_s=8e-3)
LUSTRE = storage.Lustre(
    metadata_servers=1,
    opens_per_s=20_000,
    targets=100,
    bytes_per_s=500e6,
    requests_per_s=1_000,
    latency_s=1e-3,
)


class Clock:
    """Stands in for the machine's: it goes on only by sleeping."""

    def __init__(self, monkeypatch):
        self.now_s = 100.0
        monkeypatch.setattr(storage, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(storage, "sleep", self.sleep)

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.mark.parametrize("place", [DISK, LUSTRE], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("clients", [1, 448])
@pytest.mark.parametrize("way", ["one file each", "packed"])
def test_a_clients_part_takes_what_the_storage_predicts(place, clients, way, monkeypatch):
    # The oracle is `storage.epoch`, which knows nothing of a throttle: a single reader waits
    # for the slowest part or for the latency, and never longer than all parts one by one.
    samples = 4480
    read = (
        storage.one_file_each(samples, 33_000)
        if way == "one file each"
        else storage.packed(samples, 33_000, 448, clients, "random")
    )
    nodes = storage.Clients(clients, bytes_per_s=5e9)
    predicted = storage.epoch(place, read, nodes)
    slow, clock = storage.throttle(place, read, nodes), Clock(monkeypatch)
    begin = clock.now_s
    mine = samples // clients
    opens = read.opens // clients
    for number in range(mine):
        slow.take(opens * (number + 1) // mine - opens * number // mine, 1, 33_000)
    assert clock.now_s - begin >= predicted.least_s - BURST_S - 1e-9
    assert clock.now_s - begin <= predicted.most_s + 1e-9


def test_readers_side_by_side_overlap_in_the_latency_and_share_the_bandwidth(monkeypatch):
    # Ten requests at the same moment: nobody sleeps in between.
    share = ClientShare(byte_s=1e-6, latency_s=0.5)
    clock, waits = Clock(monkeypatch), []
    monkeypatch.setattr(storage, "sleep", waits.append)
    slow = Throttle(share)
    for _ in range(10):
        slow.take(0, 1, 100_000)
    clock.sleep(0)
    expected = [0.1 * (number + 1) - BURST_S + 0.5 for number in range(10)]
    assert waits == pytest.approx(expected)


def test_an_idle_storage_saves_nothing_up(monkeypatch):
    clock = Clock(monkeypatch)
    slow = Throttle(ClientShare(byte_s=1e-6))
    slow.take(0, 1, 1_000_000)
    clock.now_s += 1000
    begin = clock.now_s
    slow.take(0, 1, 1_000_000)
    assert clock.now_s - begin == pytest.approx(1.0 - BURST_S)


def test_threads_never_read_faster_than_the_closed_form():
    share = ClientShare(open_s=0.001, request_s=0.002, byte_s=1e-8, latency_s=0.005)
    slow, readers, each = Throttle(share), 4, 10

    def read():
        for _ in range(each):
            slow.take(1, 1, 50_000)

    threads = [threading.Thread(target=read) for _ in range(readers)]
    begin = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # 20 opens and requests of a reader, 5 ms each; no other part of the storage takes as long
    assert perf_counter() - begin >= 0.1 - BURST_S
