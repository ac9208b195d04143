"""Experts on several ranks compute what a loop over all tokens and experts computes."""

import numpy as np
import pytest
from lanes import RANKS
from on_ranks import on_ranks


def experts_against_dense():
    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel import experts
    from dlcourse.parallel.experts import MixtureOfExperts
    from dlguide.collectives.communicator import counting_comm

    comm, found = MPI.COMM_WORLD, []
    own, width, hidden, count = 10, 6, 5, 12
    here = slice(comm.rank * own, (comm.rank + 1) * own)
    mine = slice(comm.rank * count // comm.size, (comm.rank + 1) * count // comm.size)

    def dense(layer, tokens, slope, weight):
        """Every expert computes every token; a mask keeps what was routed."""
        scores = np.exp(tokens @ layer.router)
        scores /= scores.sum(1, keepdims=True)
        mask, choices = np.zeros_like(scores), np.zeros(count)
        for rank in range(comm.size):
            filled = np.zeros(count)
            best = np.argsort(-(scores + layer.bias), axis=1)[rank * own : (rank + 1) * own]
            for choice in range(layer.k):
                for place, expert in enumerate(best[:, choice]):
                    choices[expert] += 1
                    filled[expert] += 1
                    mask[rank * own + place, expert] = filled[expert] <= places
        units = np.maximum(np.einsum("td,edh->eth", tokens, layer.up), 0)
        answers = np.einsum("eth,ehd->etd", units, layer.down)
        back = np.einsum("te,td->etd", mask * scores, slope)
        of_units = np.einsum("etd,ehd->eth", back, layer.down) * (units > 0)
        of_scores = mask * np.einsum("td,etd->te", slope, answers)
        of_scores += weight * count * choices / choices.sum() / len(tokens)
        of_logits = scores * (of_scores - (scores * of_scores).sum(1, keepdims=True))
        of_tokens = np.einsum("eth,edh->td", of_units, layer.up) + of_logits @ layer.router.T
        of_up = np.einsum("td,eth->edh", tokens, of_units)
        of_down = np.einsum("eth,etd->ehd", units, back)
        outputs = np.einsum("te,etd->td", mask * scores, answers)
        dropped = int(choices.sum() - mask.sum())
        gradients = of_tokens, tokens.T @ of_logits, of_up, of_down
        return outputs, choices, dropped, gradients

    for k, factor, weight, bias in [
        (1, 1.2, 0.0, 0.0),
        (2, 1.25, 0.3, 0.1),
        (3, 100.0, 0.0, 0.0),
        (12, 1.0, 0.1, 0.0),
    ]:
        counting = counting_comm(comm)
        options = {"k": k, "capacity_factor": factor, "seed": 4, "dtype": "f8"}
        layer = MixtureOfExperts(counting, width, hidden, count, **options)
        alone = MixtureOfExperts(MPI.COMM_SELF, width, hidden, count, **options)
        random = np.random.default_rng(k)
        tokens = random.normal(size=(comm.size * own, width)) + 0.7
        slope = random.normal(size=tokens.shape)
        layer.bias[:] = alone.bias[:] = bias * random.normal(size=count)
        places = experts.capacity(own, count, k, factor)
        outputs, routing = layer.forward(
            tokens[here],
        )
        back, gradients = layer.backward(routing, slope[here], weight)
        right, load, dropped, (of_tokens, *of_weights) = dense(alone, tokens, slope, weight)
        gradients[0] = comm.allreduce(gradients[0])
        pairs = [(outputs, right[here]), (back, of_tokens[here]), (gradients[0], of_weights[0])]
        pairs += [(gradients[1], of_weights[1][mine]), (gradients[2], of_weights[2][mine])]
        found.append({
            "apart": [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs],
            "load": [routing.load.tolist(), load.tolist()],
            "dropped": [routing.dropped, dropped],
            "sent": counting.sent_bytes,
            "predicted": experts.bytes_sent(count, places, width, comm.size, 8),
        })  # fmt: skip
    return found


@pytest.mark.parametrize("ranks", RANKS)
def test_experts_on_ranks_equal_dense_ones(tmp_path, ranks):
    for cases in on_ranks(ranks, experts_against_dense, tmp_path):
        for case in cases:
            assert max(case["apart"]) <= 1e-12, case
            assert case["load"][0] == case["load"][1]
            assert case["dropped"][0] == case["dropped"][1]
            assert case["sent"] == case["predicted"]
        dropped = [case["dropped"][0] for case in cases]
        assert dropped[0] > 0  # some tokens found no place
        assert dropped[1] > 0
        assert dropped[2:] == [0, 0]  # places enough, and all experts for all tokens


def balanced(steps):
    """Tokens that have much in common, and so prefer the same experts."""
    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel.experts import MixtureOfExperts

    comm, found = MPI.COMM_WORLD, {}
    for cure in ("none", "bias", "loss"):
        layer = MixtureOfExperts(comm, 8, 4, 6, k=2, seed=1, dtype="f8")
        rows = np.random.default_rng(comm.rank)
        found[cure] = []
        for _ in range(steps):
            tokens = rows.normal(size=(64, 8)) + 1
            outputs, routing = layer.forward(tokens)
            found[cure].append([*routing.load.tolist(), routing.dropped])
            if cure == "bias":
                layer.update_bias(routing.load, rate=0.01)
            if cure == "loss":
                _, (of_router, *_) = layer.backward(routing, 0 * outputs, 1.0)
                layer.router -= 1.0 * comm.allreduce(of_router)
    return found


def test_a_bias_or_a_loss_balances_the_load(tmp_path):
    everyone = on_ranks(2, balanced, tmp_path, steps=150)
    assert everyone[0] == everyone[1]  # loads are those of all ranks
    loads, dropped = {}, {}
    for cure, rows in everyone[0].items():
        *load, dropped[cure] = np.mean(rows[-40:], axis=0)
        loads[cure] = max(load) / np.mean(load)
    assert loads["none"] > 1.7
    assert loads["bias"] < 1.1
    assert loads["loss"] < 1.25
    assert max(dropped["bias"], dropped["loss"]) < dropped["none"] / 3


def weights_of_all():
    from mpi4py import MPI

    from dlcourse.parallel.experts import MixtureOfExperts

    layer = MixtureOfExperts(MPI.COMM_WORLD, 8, 6, 4, seed=3, dtype="f8")
    return [each.tolist() for each in (layer.router, *layer.up, *layer.down)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_router_and_experts_share_no_random_numbers(tmp_path, ranks):
    everyone = on_ranks(ranks, weights_of_all, tmp_path)
    arrays = [np.ravel(everyone[0][0]) * 8**0.5]  # as they were drawn, with a deviation of 1
    for _, *experts_of_rank in everyone:
        for place, array in enumerate(experts_of_rank):
            inputs = 8 if place < len(experts_of_rank) // 2 else 6
            arrays.append(np.ravel(array) * inputs**0.5)
    drawn = np.round(np.concatenate(arrays), 9)
    assert len(drawn) == 8 * 4 + 4 * 2 * 8 * 6
    assert len(np.unique(drawn)) == len(drawn)
