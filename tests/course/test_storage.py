"""The arithmetic of storages agrees with the guide's figures and with counting by hand."""

import pytest

from dlcourse import storage
from dlcourse.storage import Clients, Disk, Lustre, epoch

IMAGES, NODES = 1_280_000, 448


# --- the guide's figures -----------------------------------------------------------------------


def test_the_guides_figures_come_out():
    # section 6.2.4: "approximately 250k examples", "approximately 33 KB", "roughly 70
    # examples/s", "2.3 MB/second", "1 GB/s"; section 4.6: "around 115.2 million images"
    run = storage.demand(storage.GUIDE)
    assert storage.GUIDE.samples * storage.GUIDE.epochs == 115_200_000
    assert round(run.samples_per_s * 3600 / NODES, -4) == 260_000  # printed as 250k: 257 143
    assert round(storage.GUIDE.sample_nbytes / 1e3) == 33
    assert round(run.samples_per_s / NODES, -1) == 70
    assert run.bytes_per_s_per_node == pytest.approx(2.3e6, rel=0.03)
    assert run.bytes_per_s == pytest.approx(1e9, rel=0.06)


# --- an epoch ----------------------------------------------------------------------------------

LUSTRE = Lustre(
    metadata_servers=1,
    opens_per_s=20_000,
    targets=100,
    bytes_per_s=500e6,
    requests_per_s=1_000,
    latency_s=1e-3,
)
CLIENTS = Clients(count=NODES, bytes_per_s=1.25e9, in_flight=16)


def test_small_files_are_limited_by_opens_where_bandwidth_is_plenty():
    # the guide doubts the 1 GB/s; 100 targets give 50 times that, the opens are what fails
    small = epoch(LUSTRE, storage.one_file_each(IMAGES, 32_812.5), CLIENTS)
    parts = dict(small.parts)
    allowed_s = 3600 / 90
    assert small.limit == "metadata"
    assert parts["metadata"] == pytest.approx(IMAGES / 20_000)
    assert parts["bandwidth"] == pytest.approx(42e9 / 50e9)
    assert parts["metadata"] > allowed_s > 40 * parts["bandwidth"]


def test_random_reads_of_a_packed_file_cost_a_request_each_and_an_open_each_client():
    wide = storage.packed(1000, 3e6, files=2, clients=4, access="random")
    assert wide.opens == 8
    assert wide.requests == 3000
    assert wide.nbytes == 3e9


@pytest.mark.parametrize(
    ("files", "file_nbytes", "count", "in_flight", "busy"),
    [
        (1, 10 << 20, 4, 99, 4),  # one file: as many as its stripes go to
        (1, 2 << 20, 4, 99, 2),  # a file with two stripes reaches two targets
        (3, 10 << 20, 4, 99, 10),  # more stripes than targets
        (5, 1000, 4, 99, 5),  # small files lie on one target each
        (9, 10 << 20, 4, 3, 3),  # no more than there are requests under way
    ],
)
def test_busy_targets(files, file_nbytes, count, in_flight, busy):
    lustre = Lustre(1, 1, 10, 1, 1, 1, stripe_count=count)
    read = storage.ReadPattern(files, file_nbytes, 1, 1, 1)
    assert lustre.busy(read, Clients(1, 1.0, in_flight)) == busy


def test_every_part_of_lustre_by_hand():
    lustre = Lustre(2, 100, 4, 1e6, 50, 0.01, stripe_count=2)
    read = storage.ReadPattern(files=10, file_nbytes=2 << 20, opens=400, requests=600, nbytes=24e6)
    times = epoch(lustre, read, Clients(count=4, bytes_per_s=2e6, in_flight=5))
    assert dict(times.parts) == pytest.approx(
        {
            "metadata": 400 / 200,
            "requests": 600 / 200,
            "bandwidth": 24e6 / 4e6,
            "client link": 6e6 / 2e6,
            "latency": (400 + 600) / 4 * 0.01 / 5,
        }
    )
    assert (times.limit, times.least_s) == ("bandwidth", 6.0)
    assert times.most_s == pytest.approx(2 + 3 + 6 + 3 + 0.5)
    assert "6.00 to 14.50 s per epoch; bandwidth limits, 2.0 times the next" in str(times)


def test_a_disk_of_its_own_gets_faster_with_every_node():
    disk = Disk(bytes_per_s=2e9, requests_per_s=750_000, latency_s=15e-6)
    read = storage.one_file_each(IMAGES, 32_812.5)
    one, all_nodes = (epoch(disk, read, Clients(count, 1e9)) for count in (1, NODES))
    assert one.least_s == pytest.approx(2 * IMAGES * 15e-6)  # one request at a time: latency
    assert one.most_s == pytest.approx(NODES * all_nodes.most_s)
    # the guide: "should not be a bottleneck for any local storage"
    assert all_nodes.most_s < 0.01 * 3600 / 90
