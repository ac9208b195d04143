"""Notebook 01's checks tick what is right on 1 to 4 ranks and refuse the usual mistakes."""

import sys

import cloudpickle
import numpy as np
import pytest

from dlguide import exercises
from dlguide.cluster import Cluster
from dlguide.exercises import nb01


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def cluster_ranks(request):
    return request.param


def shift(comm, array):
    came = np.empty_like(array)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(array, dest=right, recvbuf=came, source=left)
    return came


def mean(comm, part):
    return comm.allreduce(part.sum()) / comm.allreduce(len(part))


def train_until(comm, losses, enough):
    means = []
    for loss in losses:
        means.append(comm.allreduce(loss) / comm.size)
        if means[-1] < enough:
            break
    return len(means), means[-1]


def dot(comm, x, y):
    cut = [np.array_split(each, comm.size) if comm.rank == 0 else None for each in (x, y)]
    mine = [comm.scatter(each) for each in cut]
    return comm.allreduce(mine[0] @ mine[1])


def take(comm, tasks, work):
    from mpi4py import MPI

    window = MPI.Win.Allocate(8 if comm.rank == 0 else 0, 8, comm=comm)
    if comm.rank == 0:
        np.frombuffer(window, np.int64)[:] = 0
    comm.Barrier()
    one, ticket, mine = np.ones(1, np.int64), np.empty(1, np.int64), []
    window.Lock_all()
    while True:
        window.Fetch_and_op(one, ticket, 0)
        window.Flush(0)
        if ticket[0] >= tasks:
            break
        work(ticket[0])
        mine.append(int(ticket[0]))
    window.Unlock_all()
    window.Free()
    return mine


ANSWERS = {
    "01-1": (shift,),
    "01-2": (mean,),
    "01-3": (range, "(b)", train_until),
    "01-4": (dot,),
    "01-5": (take,),
}


def complete(answer, cluster):
    """Fill in what depends on the ranks: in the lesson all but rank 1 wait."""
    waiting = [rank for rank in range(cluster.ranks) if rank != 1]
    everyone = list(range(cluster.ranks))
    filled = [waiting if part is range else part for part in answer]
    return [everyone if part is all else part for part in filled]


@pytest.mark.parametrize("number", ANSWERS)
def test_a_right_answer_is_ticked(number, cluster, capsys):
    ticked = exercises.check(number, *complete(ANSWERS[number], cluster), cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize("number", ANSWERS)
def test_the_empty_function_is_no_answer(number, cluster, capsys):
    def empty(comm, *inputs):
        return ...

    assert (
        exercises.check(number, *complete(ANSWERS[number][:-1], cluster), empty, cluster) is False
    )
    assert "is not answered yet" in capsys.readouterr().out


def keeps_its_own(comm, array):
    return array


def shifts_left(comm, array):
    came = np.empty_like(array)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(array, dest=left, recvbuf=came, source=right)
    return came


def mean_of_means(comm, part):
    return comm.allreduce(part.mean() if len(part) else 0.0) / comm.size


def sum_in_place_of_a_mean(comm, part):
    return comm.allreduce(part.sum())


def on_the_root_only(comm, part):
    total, count = comm.reduce(part.sum()), comm.reduce(len(part))
    return total / count if comm.rank == 0 else None


def never_stops_early(comm, losses, enough):
    average = [comm.allreduce(loss) / comm.size for loss in losses]
    return len(losses), average[-1]


def leaves_the_rest(comm, x, y):
    x, y = comm.bcast(x), comm.bcast(y)
    each = len(x) // comm.size
    part = slice(comm.rank * each, (comm.rank + 1) * each)
    return comm.allreduce(x[part] @ y[part])


def only_on_the_root(comm, x, y):
    whole = dot(comm, x, y)
    return whole if comm.rank == 0 else None


def everything_everywhere(comm, x, y):
    return comm.allreduce(comm.bcast(x) @ comm.bcast(y))


def own_part_only(comm, x, y):
    x, y = comm.bcast(x), comm.bcast(y)
    return x[comm.rank :: comm.size] @ y[comm.rank :: comm.size]


def one_too_many(comm, tasks, work):
    mine = take(comm, tasks, work)
    return [*mine, tasks] if comm.rank == 0 else mine


def one_ticket(comm, tasks, work):
    return [comm.rank]


def reads_and_raises_apart(comm, tasks, work):
    return list(range(tasks))


def deals_beforehand(comm, tasks, work):
    mine = list(range(comm.rank, tasks, comm.size))
    for task in mine:
        work(task)
    return mine


WRONG = [
    ("01-1", (keeps_its_own,), "left neighbour's 3 numbers", 2),
    ("01-1", (shifts_left,), "must end with the array of rank", 3),
    ("01-2", (mean_of_means,), "Which rank's mean should count more", 2),
    ("01-2", (sum_in_place_of_a_mean,), "Which rank's mean should count more", 1),
    ("01-2", (on_the_root_only,), "np.mean of all", 2),
    ("01-3", ([1], "B", train_until), "Who is still there", 1),
    ("01-3", (0, "B", train_until), "Who is still there", 1),
    ("01-3", (all, "B", train_until), "waits for nobody", 2),
    ("01-3", (range, "A", train_until), "it adds them up", 1),
    ("01-3", (range, "C", train_until), "has no root", 1),
    ("01-3", (range, "D", train_until), "goes into any mailbox", 1),
    ("01-3", (range, "rank 1", train_until), "A letter in quotes", 1),
    ("01-3", (range, "B", never_stops_early), "decide by the same number", 1),
    ("01-4", (leaves_the_rest,), "np.array_split", 2),
    ("01-4", (only_on_the_root,), "gives it to everybody", 2),
    ("01-4", (everything_everywhere,), "on one rank only", 2),
    ("01-4", (own_part_only,), "must still be added up", 2),
    ("01-5", (reads_and_raises_apart,), "Every ticket once", 2),
    ("01-5", (one_too_many,), "stops without doing it", 1),
    ("01-5", (one_ticket,), "draw again", 1),
    ("01-5", (deals_beforehand,), "fewer tasks on the slow rank 0", 2),
]


@pytest.mark.parametrize(
    ("number", "answer", "hint", "least"), WRONG, ids=[f"{case[0]} {case[2]}" for case in WRONG]
)
def test_a_wrong_answer_is_told_why(number, answer, hint, least, cluster, capsys):
    answer = complete(answer, cluster)
    if cluster.ranks < least:
        assert exercises.check(number, *answer, cluster)  # cannot be told apart
        return
    assert exercises.check(number, *answer, cluster) is False
    assert hint in capsys.readouterr().out


def stops_by_its_own_loss(comm, losses, enough):
    means = []
    for loss in losses:
        means.append(comm.allreduce(loss) / comm.size)
        if loss < enough:
            break
    return len(means), means[-1]


def receives_first(comm, array):
    came = np.empty_like(array)
    comm.Recv(came, source=(comm.rank - 1) % comm.size)
    comm.Send(array, dest=(comm.rank + 1) % comm.size)
    return came


def sends_first(comm, array):
    came = np.empty_like(array)
    comm.Send(array, dest=(comm.rank + 1) % comm.size)
    comm.Recv(came, source=(comm.rank - 1) % comm.size)
    return came


def test_an_answer_that_deadlocks_is_told_who_waits(capsys):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with Cluster(ranks=2) as cluster:
        # The first sum of Python objects on fresh ranks is the one that has no partner.
        assert exercises.check("01-3", [0], "B", stops_by_its_own_loss, cluster) is False
        said = capsys.readouterr().out
        assert "deadlock" in said
        assert "waits in Allreduce" in said
        for answer, call in ((receives_first, "Recv"), (sends_first, "Send")):
            assert exercises.check("01-1", answer, cluster) is False
            said = capsys.readouterr().out
            assert f"rank 1 waits in {call}" in said
            assert "one rank that sends and one that receives" in said
        assert exercises.check("01-1", shift, cluster)


def test_checks_have_their_numbers():
    assert [name for name in vars(nb01) if name.startswith("exercise")] == [
        f"exercise_01_{number}" for number in (1, 2, 3, 4, 5)
    ]
