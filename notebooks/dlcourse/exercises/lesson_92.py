"""Exercises of lesson 92: bytes, merging two softmaxes, a test, a ring, blocks for another mask."""

from functools import partial

import numpy as np

from dlcourse.exercises.compare import brief
from dlcourse.exercises.engine import Exercise, Recorded, WrongAnswer


def cheaper(length, heads, key_heads, width, ranks, itemsize, ring=6, passes=2, of_keys=1, keep=1):
    m, k = (count * length / ranks * width * itemsize for count in (heads, key_heads))
    sent = ring * (ranks - 1) * k
    once = (ranks - 1) / (ranks if keep else 1) * (2 * m + 2 * k)
    fits = heads % ranks == 0 and (not of_keys or key_heads % ranks == 0)
    return ("ulysses", passes * once) if fits and passes * once < sent else ("ring", sent)


def merge(out_a, log_a, out_b, log_b, shift=1, even=0, weighted=1):
    if not weighted:
        return out_a + out_b, np.logaddexp(log_a, log_b)
    if even:
        return (out_a + out_b) / 2, np.logaddexp(log_a, log_b)
    highest = np.maximum(log_a, log_b) if shift else np.zeros_like(log_a)
    with np.errstate(all="ignore"):
        a, b = np.exp(log_a - highest), np.exp(log_b - highest)
        out = (a[:, None] * out_a + b[:, None] * out_b) / (a + b)[:, None]
        return out, highest + np.log(a + b)


def halves(size, seed, none=0):
    """Outputs and logarithms of two sets of keys; `none` queries see none of the second."""
    random = np.random.default_rng(seed)
    out_a, out_b = random.normal(size=(2, 5, 3))
    log_a, log_b = size + random.normal(size=(2, 5))
    out_b[:none], log_b[:none] = 0, -np.inf
    return out_a, log_a, out_b, log_b


def attention(q, k, v, seen=None, scale=0.5, shift=1, window=None, late=0):
    """Causal attention, or one with a mistake."""
    places = np.arange(len(q))
    scores = q @ k.T / q.shape[1] ** scale
    mask = places[:, None] + late >= places if seen is None else seen(len(q))
    if window:
        mask = mask & (places[:, None] - places < window)
    scores[~mask] = -np.inf
    with np.errstate(all="ignore"):
        weights = np.exp(scores - (scores.max(axis=1, keepdims=True) if shift else 0))
        return weights @ v / weights.sum(axis=1, keepdims=True)


def local_positions(ranks, length):
    """The mask of ranks that number their own positions from 0."""
    own = np.arange(length) % (length // ranks)
    return own[:, None] >= own


def by_rows(q, k, v):
    """Correct: one query after the other, from the last to the first, with values in float64."""
    out = np.zeros_like(q)
    for row in reversed(range(len(q))):
        scores = k[: row + 1] @ q[row] / q.shape[1] ** 0.5
        weights = np.exp(scores - scores.max())
        out[row] = weights @ v[: row + 1].astype("f8") / weights.sum()
    return out


def scaled_first(q, k, v):
    """Correct: the scale is taken once, with the queries."""
    return attention(q / np.float32(q.shape[1] ** 0.5), k, v, scale=0)


WRONG = {  # what `is_right` has to refuse, and what it needs for that
    "It accepts the mask of local positions on 2 ranks.":
        partial(attention, seen=partial(local_positions, 2)),
    "It accepts the mask of local positions on 4 ranks.":
        partial(attention, seen=partial(local_positions, 4)),
    "It accepts an attention that sees one position of the future.": partial(attention, late=1),
    "It accepts scores that are not divided by the root of the width.": partial(attention, scale=0),
    "It accepts one that forgets what is 64 positions back: try long ones.":
        partial(attention, window=64),
    "It accepts one whose exponentials overflow: try large scores.": partial(attention, shift=0),
}  # fmt: skip
TOO_STRICT = "It refuses a correct one: float32 rounds. Compare with a limit."


def is_right(given, lengths=(8, 256), sizes=(1, 50), limit=1e-3):
    for length in lengths:
        for size in sizes:
            random = np.random.default_rng(length)
            q, k, v = random.normal(size=(3, length, 16)).astype("f4")
            q *= size
            if not np.allclose(given(q, k, v), attention(q, k, v), rtol=limit, atol=limit):
                return False
    return True


def judge_test(answer):
    for given, right, hint in [
        *((one, True, TOO_STRICT) for one in (attention, scaled_first, by_rows)),
        *((wrong, False, hint) for hint, wrong in WRONG.items()),
    ]:
        with np.errstate(all="ignore"):
            said = answer(given)
        if not isinstance(said, bool | np.bool_):
            raise WrongAnswer(f"Expected: a test that returns True or False, got {brief(said)}.")
        if bool(said) is not right:
            raise WrongAnswer(hint)


def accepts_all_but(*refused):
    """A test that refuses only some of the wrong implementations."""
    return lambda given: all(given is not WRONG[hint] for hint in refused)


def parts(ranks):
    """Positions dealt out at random, more of them on later ranks."""
    cases = []
    for seed in range(2):
        random = np.random.default_rng([92, ranks, seed])
        order = random.permutation(sum(4 + rank for rank in range(ranks)))
        mine = np.split(order, np.cumsum([4 + rank for rank in range(ranks - 1)]))
        cases.append([(random.normal(size=(len(each), 3)), each) for each in mine])
    return cases


def means(inputs, see=np.greater_equal, own=False, local=False, divide=True):
    """The means of all ranks, in one process."""
    found = []
    for rank, (values, mine) in enumerate(inputs):
        total, count = np.zeros_like(values), np.zeros((len(mine), 1))
        for other, (theirs, places) in enumerate(inputs):
            if own and other != rank:
                continue
            mine_, places_ = (np.arange(len(one)) if local else one for one in (mine, places))
            seen = see(mine_[:, None], places_)
            total, count = total + seen @ theirs, count + seen.sum(axis=1, keepdims=True)
        with np.errstate(all="ignore"):
            found.append(total / count if divide else total)
    return found


BLOCKS, RANKS, SIDE = 32, 4, 16  # positions in a block


def pairs_of(seed):
    """The pairs of each block of queries in a sequence of several documents."""
    random = np.random.default_rng([92, seed])
    ends = np.sort(random.choice(np.arange(1, BLOCKS * SIDE), 1 + seed, replace=False))
    starts = np.zeros(BLOCKS * SIDE, int)
    for end in ends:
        starts[end:] = end
    seen = np.arange(BLOCKS * SIDE) - starts + 1
    return seen.reshape(BLOCKS, SIDE).sum(axis=1).tolist()


def zigzag(pairs, ranks):
    size = len(pairs) // (2 * ranks)
    return [min(block // size, 2 * ranks - 1 - block // size) for block in range(len(pairs))]


def assign(pairs, ranks):
    """The largest block first, to the rank with the least work that has room."""
    found, load, room = [0] * len(pairs), [0] * ranks, [len(pairs) // ranks] * ranks
    for block in sorted(range(len(pairs)), key=lambda block: -pairs[block]):
        rank = min((rank for rank in range(ranks) if room[rank]), key=load.__getitem__)
        found[block] = rank
        load[rank] += pairs[block]
        room[rank] -= 1
    return found


def evenness(answer):
    """Mean load / largest load, over six masks."""
    shares = []
    for seed in range(6):
        pairs = pairs_of(seed)
        ranks = answer(list(pairs), RANKS)
        if not isinstance(ranks, list | tuple | np.ndarray) or len(ranks) != BLOCKS:
            raise WrongAnswer("A list with the rank of each block is expected.")
        counts = [sum(rank == one for one in ranks) for rank in range(RANKS)]
        if counts != [BLOCKS // RANKS] * RANKS:
            raise WrongAnswer("Every rank gets the same number of blocks, 8 of 32.")
        load = np.bincount(np.array(ranks, int), pairs, RANKS)
        shares.append(load.mean() / load.max())
    return float(np.mean(shares))


def better_than_zigzag(answer):
    if evenness(answer) <= evenness(zigzag):
        raise WrongAnswer("No better than zigzag. Look at `pairs`: which block comes first?")


def mean_so_far_round_by_round(comm, values, mine):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total, count = np.zeros_like(values, dtype=float), np.zeros((len(values), 1))
    guests, places = values, np.asarray(mine)
    for turn in range(comm.size):
        seen = places[None, :] <= np.asarray(mine)[:, None]
        total += seen @ guests
        count += seen.sum(axis=1, keepdims=True)
        if turn < comm.size - 1:
            guests, places = comm.sendrecv((guests, places), right, source=left)
    return total / count


def mean_so_far_collected(comm, values, mine):
    parts = [(values, mine)]
    for _ in range(comm.size - 1):
        package = comm.sendrecv(
            parts[-1], (comm.rank - 1) % comm.size, source=(comm.rank + 1) % comm.size
        )
        parts.append(package)
    places = np.concatenate([np.asarray(each[1]) for each in parts])
    order = np.argsort(places)
    sums = np.cumsum(np.concatenate([each[0] for each in parts])[order], axis=0)
    until = np.searchsorted(places[order], mine, side="right")
    return sums[until - 1] / until[:, None]


def assign_in_a_snake(pairs, ranks):
    owner = np.empty(len(pairs), int)
    for place, block in enumerate(np.argsort(pairs)):
        turn, step = divmod(place, ranks)
        owner[block] = step if turn % 2 == 0 else ranks - 1 - step
    return owner.tolist()


EXERCISES = {
    "92-1": Exercise(
        cheaper,
        cases=[(4096, 32, 32, 128, 4, 2), (4096, 32, 8, 128, 2, 2), (4096, 32, 8, 128, 8, 2),
               (4096, 32, 8, 128, 16, 2), (4096, 6, 6, 64, 4, 4), (4096, 32, 4, 64, 8, 4),
               (96, 4, 2, 8, 2, 4)],
        hint="Ring: 6 (p - 1) k in all; Ulysses: 4 (p - 1) / p (m + k).",
        mistakes={
            "Forward and backward: in the ring 2 k and 4 k per step.":
                partial(cheaper, ring=2, passes=1),
            "The ranks must divide the heads of the keys, too.": partial(cheaper, of_keys=0),
            "In Ulysses a rank keeps 1 / p of each array.": partial(cheaper, keep=0),
        },
        remark="On more ranks, each sends less with Ulysses; with the ring more, up to a limit."),
    "92-2": Exercise(
        merge,
        cases=[halves(0, 1), halves(1000, 2), halves(-1000, 3), halves(3, 4, none=2)],
        hint="Weights exp(log_a - log) and exp(log_b - log), with log = logaddexp(log_a, log_b).",
        mistakes={
            "exp(1000) is no number: subtract the larger logarithm first.":
                partial(merge, shift=0),
            "Not the mean: the set with the larger sum counts more.": partial(merge, even=1),
            "Both outputs are divided by their own sums: weight them.": partial(merge, weighted=0),
        },
        remark="This is all that a ring needs beside FlashAttention, which computes each block."),
    "92-3": Exercise(
        is_right, check=judge_test, limit_s=30.0,
        mistakes={
            next(iter(WRONG)): lambda given: True,
            TOO_STRICT: partial(is_right, limit=0),
            "It accepts one that forgets what is 64 positions back: try long ones.":
                partial(is_right, lengths=(8, 16)),
            "It accepts one whose exponentials overflow: try large scores.":
                partial(is_right, sizes=(1,)),
            "It accepts the mask of local positions on 4 ranks.":
                accepts_all_but(next(iter(WRONG))),
        },
        remark="Long and short, small scores and large, a limit: and each one refused something."),
    "92-4": Exercise(
        mean_so_far_round_by_round, ranks=(2, 3), cases=parts, serial=means,
        call=lambda answer, comm, *rest: answer(Recorded(comm, ("sendrecv",)), *rest),
        also_right=(mean_so_far_collected,),
        hint="Let values and their places travel; add up what is seen, and count it.",
        mistakes={
            "Only this rank's values are in the mean: let them travel.": partial(means, own=True),
            "These are the means of all positions, later ones too.":
                partial(means, see=lambda a, b: (a == a) & (b == b)),
            "Compare places in the whole sequence: they must travel as well.":
                partial(means, local=True),
            "A sum is not the mean: count what was seen.": partial(means, divide=False),
        },
        remark="Ring attention is this with weights, and a maximum that keeps them finite."),
    "92-5": Exercise(
        assign, check=better_than_zigzag, limit_s=30.0,
        score=lambda answer, cluster: evenness(answer),
        mistakes={
            "No better than zigzag. Look at `pairs`: which block comes first?": zigzag,
            "Every rank gets the same number of blocks, 8 of 32.": lambda p, ranks: [0] * len(p),
            "A list with the rank of each block is expected.": lambda p, ranks: {0: 1},
        },
        also_right=(assign_in_a_snake,),
        remark="Largest first is the start; exchanging pairs of blocks brings it closer to 1.00."),
}  # fmt: skip
