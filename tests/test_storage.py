"""The arithmetic of storages agrees with the guide's figures and with counting by hand."""

import math
import re
from dataclasses import replace

import pytest

from dlguide.scaling import placement, storage
from dlguide.scaling.placement import Tier
from dlguide.scaling.storage import Clients, Disk, Gpfs, Lustre, epoch

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


def test_packed_and_in_order_the_opens_no_longer_count():
    shards = storage.packed(IMAGES, 32_812.5, files=1024, clients=NODES)
    parts = dict(epoch(LUSTRE, shards, CLIENTS).parts)
    assert shards.opens == 1024
    assert shards.requests == math.ceil(42e9 / 2**20)
    assert parts["metadata"] == pytest.approx(1024 / 20_000)
    assert sum(parts.values()) < 40


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


def test_gpfs_opens_grow_with_the_clients_up_to_its_disks():
    gpfs = Gpfs(100, 1000, 8, 1e9, 1e4, 1e-3)
    read = storage.one_file_each(12_000, 1000.0)
    seconds = [
        dict(epoch(gpfs, read, Clients(count, 1e9)).parts)["metadata"] for count in (1, 5, 10, 20)
    ]
    assert seconds == pytest.approx([120, 24, 12, 12])


def test_a_disk_of_its_own_gets_faster_with_every_node():
    disk = Disk(bytes_per_s=2e9, requests_per_s=750_000, latency_s=15e-6)
    read = storage.one_file_each(IMAGES, 32_812.5)
    one, all_nodes = (epoch(disk, read, Clients(count, 1e9)) for count in (1, NODES))
    assert one.least_s == pytest.approx(2 * IMAGES * 15e-6)  # one request at a time: latency
    assert one.most_s == pytest.approx(NODES * all_nodes.most_s)
    # the guide: "should not be a bottleneck for any local storage"
    assert all_nodes.most_s < 0.01 * 3600 / 90


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (lambda: storage.packed(10, 5.0, 20, 1), "`files` must be at most the 10 samples, got 20"),
        (lambda: storage.packed(10, 5.0, 2, 1, "backwards"), "be one of random, sequential"),
        (lambda: storage.one_file_each(0, 5.0), "`samples` must be a whole number"),
        (lambda: Lustre(1, 1, 4, 1, 1, 1, stripe_count=5), "be at most the 4 targets, got 5"),
        (lambda: Lustre(1, 0, 4, 1, 1, 1), "`opens_per_s` must be a positive number, got 0"),
        (lambda: Lustre(1, 1, 4, 1, 1, 1, client_opens_per_s=-5), "must be above 0, got -5"),
        (lambda: Gpfs(1, math.nan, 4, 1, 1, 1), "`metadata_per_s` must be a positive number"),
        (
            lambda: storage.ReadPattern(1, 1.0, 0, 1, 1.0),
            "`opens` must be a whole number",
        ),
        (lambda: storage.ReadPattern(1, 0.0, 1, 1, 1.0), "`file_nbytes` must be a positive number"),
        (lambda: Clients(0, 1.0), "`count` must be"),
        (lambda: Disk(1, 1, math.nan), "`latency_s` must be a positive number"),
        (
            lambda: storage.TrainingReads(1, 1, 1, 1, 0),
            "`seconds` must be a positive number",
        ),
    ],
)
def test_what_cannot_be_is_refused(broken, text):
    with pytest.raises(ValueError, match=text):
        broken()


# --- placement ---------------------------------------------------------------------------------

TIERS = (
    Tier("Lustre", 1e15, False, 1e-3),
    Tier("memory", 64e9, True, 100e-9),
    Tier("burst buffer", 50e12, False, 200e-6),
    Tier("NVMe", 2e12, True, 15e-6),
)


@pytest.mark.parametrize(
    ("nbytes", "parts", "tier", "whole"),
    [
        (42e9, False, "memory", True),  # the guide: ImageNet at 42 GB fits
        (138e9, False, "NVMe", True),
        (138e9, True, "memory", False),
        (10e12, False, "burst buffer", True),
        (10e12, True, "NVMe", False),
        (100e12, False, "Lustre", True),
    ],
)
def test_a_data_set_goes_to_the_quickest_storage_with_room(nbytes, parts, tier, whole):
    found = placement.place(nbytes, TIERS, nodes=8, parts=parts)
    assert found.tier == tier
    assert ("from peers" in str(found)) != whole
    assert f"Put it on: {tier}." in str(found)


def test_what_fits_nowhere_is_said():
    with pytest.raises(ValueError, match=r"the 1 PB of Lustre, got 2 PB.*`parts=True`"):
        placement.place(2e15, TIERS, nodes=8)
    # 8 nodes have 16 TB of NVMe together, which is more than a burst buffer of 10 TB
    few = (Tier("burst buffer", 10e12, False, 200e-6), TIERS[-1])
    with pytest.raises(ValueError, match=r"the 16 TB of NVMe, got 20 TB\. .* samples\.$"):
        placement.place(20e12, few, nodes=8, parts=True)


def test_the_published_table_is_read_and_its_wrong_rows_marked():
    rows = {row.name: row for row in placement.published_tiers()}
    nvme, xpoint = rows["NVMe"], rows["3D XPoint"]
    assert (nvme.latency_s, nvme.reads_per_s, nvme.room_nbytes) == (15e-6, 750_000, 2e12)
    assert nvme.doubt == ""
    assert nvme.in_flight == pytest.approx(11.25)
    # printed as 10 ns, which is below any measured device: of the order of 100 ns to 10 us
    assert xpoint.latency_s == 10e-9
    assert "10 ns" in xpoint.doubt
    assert xpoint.in_flight is None
    # 10 ns a read would be 100 million reads/s, one after the other; the row has 1.4 million
    nvram = rows["NVRAM"]
    assert nvram.in_flight == pytest.approx(0.014)
    assert 1 / nvram.reads_per_s == pytest.approx(7e-7, rel=0.03)
    assert "700 ns" in nvram.doubt


@pytest.mark.parametrize(
    ("file_nbytes", "files", "count"),
    [
        (33e3, 1_280_000, 1),  # one file an image
        (41e6, 1024, 1),  # more shards than targets
        (420e6, 100, 1),
        (4.2e9, 10, 10),
        (42e9, 1, 100),  # an LMDB in one file
        (3 << 20, 1, 3),  # no more targets than stripes
    ],
)
def test_stripe_count_keeps_all_targets_busy_and_no_file_on_more_than_needed(
    file_nbytes, files, count
):
    found = placement.striping(file_nbytes, files, 100, 33e3, "/scratch/imagenet")
    assert found.line == f"lfs setstripe -c {count} -S 1M /scratch/imagenet"


def test_no_file_goes_over_more_targets_than_lustre_allows():
    found = placement.striping(1e15, 1, 4000, 33e3, "/data")
    assert " -c 2000 " in found.line
    assert "2000 targets" in str(found)


def test_packing_is_advised_where_every_sample_is_a_file_and_only_there():
    advice = "Pack the samples first"
    assert advice in str(placement.striping(33e3, 1_280_000, 100, 33e3, "/data"))
    assert advice in str(placement.striping(30e6, 10_000, 100, 30e6, "/data"))
    # eight samples of 30 MB fit into a file, and the file into one stripe of 256 MiB
    assert advice not in str(placement.striping(240e6, 1000, 100, 30e6, "/data"))
    assert advice not in str(placement.striping(41e6, 1024, 100, 33e3, "/data"))


def test_stripes_are_large_enough_for_the_samples():
    for sample_nbytes in (1e3, 110e3, 1e6, 30e6):
        found = placement.striping(1e12, 1, 100, sample_nbytes, "/data")
        stripe = int(re.search(r"-S (\d+)M ", found.line)[1]) << 20
        assert stripe < 1 << 32
        # of all offsets of a stripe, those from which a sample reaches over its end
        crossing = (sample_nbytes - 1) / stripe
        assert crossing <= 1 / 8
        assert f"{100 * crossing:.1f} % of the samples" in str(found)


# --- peers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 4, 7])
def test_fetched_bytes_are_what_counting_gives(nodes):
    # the mean over all starts: sample s lies on node s mod n, any node reads it
    samples, sample_nbytes, fetched = nodes * nodes, 10.0, 0
    for sample in range(samples):
        fetched += sample // nodes != sample % nodes
    found = placement.peer_exchange(samples, sample_nbytes, nodes, 1e3)
    assert found.fetched_nbytes * nodes == pytest.approx(fetched * sample_nbytes)
    assert found.messages * nodes == pytest.approx(fetched)
    assert found.kept_nbytes * nodes == pytest.approx(samples * sample_nbytes)


def test_copying_all_to_every_node_reads_more_when_nodes_outnumber_epochs():
    few, many = (placement.shared_bytes(42e9, nodes, 90) for nodes in (4, NODES))
    assert few["each node copies all"] < few["read each epoch"]
    assert many["each node copies all"] > many["read each epoch"]
    assert many["each node copies all"] == pytest.approx(18.8e12, rel=0.01)
    assert many["read each epoch"] == pytest.approx(3.78e12)
    assert many["one reads and sends to all"] == many["each node keeps a part"] == 42e9


# --- staging -----------------------------------------------------------------------------------


def test_bytes_through_each_place_by_hand():
    # what passes the shared file system, the busiest link and the busiest disk, in bytes
    through = {
        "each node copies all": (4 * 100, 100, 100),
        "one reads and sends to all": (100, 100, 100),
        "each node keeps a part": (100, 25, 25),
    }
    for shared, link, write in ((1, 1e9, 1e9), (1e9, 1, 1e9), (1e9, 1e9, 1), (50, 5, 3)):
        found = placement.copy_seconds(100.0, 4, shared, link, write)
        assert found.keys() == through.keys() <= placement.shared_bytes(100.0, 4, 1).keys()
        for way, (of_shared, of_link, of_disk) in through.items():
            assert found[way] == pytest.approx(
                max(of_shared / shared, of_link / link, of_disk / write)
            )


def test_opens_of_many_small_files_by_hand():
    found = placement.copy_seconds(1.0, 4, 1e9, 1e9, 1e9, 300, 50.0, client_opens_per_s=20.0)
    # four nodes get 50 opens/s together, one node alone 20
    assert list(found.values()) == pytest.approx([4 * 300 / 50, 300 / 20, 300 / 50])
    packed = placement.copy_seconds(100.0, 4, 1.0, 1.0, 1.0, 1, 50.0, client_opens_per_s=20.0)
    assert packed == placement.copy_seconds(100.0, 4, 1.0, 1.0, 1.0)


def test_few_clients_open_at_their_own_rate_and_many_at_the_servers():
    lustre = replace(LUSTRE, metadata_servers=2, opens_per_s=100, client_opens_per_s=30)
    assert [lustre.opens_of(clients) for clients in (1, 6, 7, 100)] == [30, 180, 200, 200]
    parts = lustre.parts(storage.one_file_each(600, 1.0), storage.Clients(2, 1e9))
    assert parts["metadata"] == 600 / 60


@pytest.mark.parametrize("copy_s", [0.0, 0.5, 10.0, 12.0, 100.0])
@pytest.mark.parametrize(("shared_s", "local_s"), [(4.0, 1.0), (1.5, 1.0), (2.0, 0.5)])
def test_from_the_epochs_to_pay_on_the_copy_is_quicker_and_not_before(copy_s, shared_s, local_s):
    epochs = placement.epochs_to_pay(copy_s, shared_s, local_s)
    assert copy_s + epochs * local_s < epochs * shared_s
    assert epochs == 1 or copy_s + (epochs - 1) * local_s >= (epochs - 1) * shared_s


def test_a_copy_that_is_not_quicker_never_pays():
    assert placement.epochs_to_pay(1.0, 2.0, 2.0) == math.inf
    assert placement.epochs_to_pay(0.0, 2.0, 3.0) == math.inf
    with pytest.raises(ValueError, match="`copy_s` must be at least 0, got nan"):
        placement.epochs_to_pay(math.nan, 2.0, 1.0)
