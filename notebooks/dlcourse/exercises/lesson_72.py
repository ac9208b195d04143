"""Exercises of lesson 72: what is paid, mistakes in scripts, the price of a chain, leaving."""

from functools import partial

from dlcourse.exercises.engine import Exercise, Letters


def paid(nodes, ranks, threads, hours, cores, exclusive):
    return nodes * (cores if exclusive else ranks * threads) * hours


def core_hours(epochs, links, epoch_s, before_s, cores):
    return cores * (epochs * epoch_s + links * before_s) / 3600


def leave(comm, seen):
    return any(comm.allgather(seen))


def call_leave(answer, comm, seen):
    came = answer(comm, seen)
    return came if came is ... else (seen, bool(came))


def looks(ranks):
    """All ranks see the file, none does, or one of them."""
    one = [[rank == first for rank in range(ranks)] for first in range(ranks)]
    return [[(seen,) for seen in each] for each in ([True] * ranks, [False] * ranks, *one)]


def verdict(results):
    seen, left = map(set, zip(*results, strict=True))
    if len(left) > 1:
        return "different decisions"
    return "one decision" if left & seen else "to leave" if True in left else "to go on"


def decided(inputs, decide=lambda seen, every: any(every)):
    every = [seen for (seen,) in inputs]
    return [(seen, decide(seen, every)) for seen in every]


EXERCISES = {
    "72-1": Exercise(
        paid,
        cases=[(1, 1, 7, 20.0, 28, False), (2, 4, 7, 10.0, 28, True), (8, 1, 7, 1.5, 28, True),
               (256, 2, 10, 2.0, 48, False), (256, 2, 10, 2.0, 48, True)],
        hint="Cores times hours: nodes, ranks on each, cores of each rank.",
        mistakes={
            "Who pays for the idle cores of an exclusive node?": lambda *a: paid(*a[:5], False),
            "On a shared node others pay for the other cores.": lambda *a: paid(*a[:5], True),
            "A rank has more than one core: that is what `threads` asks for.":
                lambda nodes, ranks, threads, hours, *rest: nodes * ranks * hours,
            "That is one node.": lambda nodes, *rest: paid(1, *rest),
        },
        remark="One rank of 7 cores on an exclusive node of 28 pays for four."),
    "72-2": Letters({
        "unpacks ilsvrc2012-tf.tar, reads ilsvrc2012-torch/":
            ("C", "The archive is there and is unpacked. What does the program then look for?"),
        "tar xf $WRK-DIR/DONOTREMOVE/DATA/ilsvrc2012-tf.tar":
            ("E", "Which variable does the shell read? A hyphen cannot belong to its name."),
        "mpirun ... -mca btl ^openib": ("A", "`^`: all but this. Which network is left out?"),
        "--gres=gpu:p100:2, without --exclusive, on nodes of 4 GPUs":
            ("F", "The job runs, and well. But who gets the other two GPUs of the node?"),
        "export A=1 export B=2 mpirun -np 512 python train.py":
            ("B", "All on one line. What does the shell do with words that follow `export`?"),
        "512 ranks, 2 on each node, on a cluster of 200 nodes": ("D", "How many nodes is that?"),
    }, "A, B and F give no error at all. They cost hours, or trust in the result."),
    "72-3": Exercise(
        core_hours,
        cases=[(90, 9, 600.0, 660.0, 28), (90, 1, 600.0, 660.0, 28), (10, 4, 300.0, 120.0, 56),
               (7, 7, 1000.0, 1.0, 2)],
        hint="The epochs, and for each job what comes before them.",
        mistakes={
            "Those are core-seconds.": lambda *a: 3600 * core_hours(*a),
            "Those are hours. All cores wait while data is staged, and all are paid.":
                lambda *a: core_hours(*a[:4], 1),
            "The disks of the nodes are emptied when a job ends: each link stages anew.":
                lambda epochs, links, *rest: core_hours(epochs, 1, *rest),
            "The last link trains only the epochs that are left.":
                lambda epochs, links, *rest: core_hours(-(-epochs // links) * links, links, *rest),
        },
        remark="Each further link costs its staging and start, on all cores."),
    "72-4": Exercise(
        leave, ranks=(2, 3), call=call_leave, cases=looks, view=verdict, serial=decided,
        hint="All ranks must decide alike.",
        mistakes={
            "The ranks must agree: one that leaves makes the others wait in the next allreduce.":
                partial(decided, decide=lambda seen, every: seen),
            "All ranks have seen the file: the time is nearly over.":
                partial(decided, decide=lambda seen, every: False),
            "No rank has seen it: they go on.": partial(decided, decide=lambda seen, every: True),
        },
        remark="Whatever a single rank sees first, all ranks leave after the same step."),
}  # fmt: skip
