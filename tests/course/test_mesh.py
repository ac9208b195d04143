"""Tensors with named dimensions on a grid of ranks: slices, and products as in serial."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from on_ranks import on_ranks

from dlcourse.parallel.mesh import MeshLayout

SIZES = "batch:12, in:4, hidden:12"
PRODUCT, BOTH = "batch in, in hidden -> batch hidden", "batch:rows, hidden:cols"


@pytest.mark.parametrize(
    ("mesh", "rules", "tensor", "cuts"),
    [
        ("rows:2, cols:2", BOTH, "in hidden", {0: (0, 0), 1: (0, 6), 2: (0, 0)}),
        ("rows:2, cols:2", BOTH, "batch in", {1: (0, 0), 2: (6, 0), 3: (6, 0)}),
        ("rows:3", "hidden:rows", "batch hidden", {0: (0, 0), 1: (0, 4), 2: (0, 8)}),
        ({"all": 4}, {}, "batch in", {3: (0, 0)}),
    ],
)  # fmt: skip
def test_each_rank_holds_its_slice_and_the_slices_cover_the_tensor(mesh, rules, tensor, cuts):
    layout = MeshLayout(PRODUCT, SIZES, mesh, rules)
    for rank, starts in cuts.items():
        assert tuple(each.start for each in layout.slices(tensor, rank)) == starts
    shape = [layout.sizes[name] for name in tensor.split()]
    times = np.zeros(shape, int)
    for rank in range(int(np.prod(list(layout.mesh.values())))):
        times[layout.slices(tensor, rank)] += 1
        assert times[layout.slices(tensor, rank)].shape == layout.part_shape(tensor)
    assert times.min() == times.max() >= 1


ALONG = st.sampled_from(["rows", "cols", None])


@given(rows=st.sampled_from([1, 2, 3]), cols=st.sampled_from([1, 2]),
       along=st.fixed_dictionaries({name: ALONG for name in ("batch", "in", "hidden")}),
       equation=st.sampled_from([PRODUCT, "batch hidden, in hidden -> batch in", "batch in ->",
                                 "in, hidden -> hidden in", "batch in, batch -> in"]))  # fmt: skip
def test_whatever_is_accepted_multiplies_right(rows, cols, along, equation):
    rules = {name: place for name, place in along.items() if place}
    sizes, mesh = {"batch": 6, "in": 12, "hidden": 6}, {"rows": rows, "cols": cols}
    names = set(equation.replace(",", " ").replace("->", " ").split())
    used = [rules[name] for name in names if name in rules]
    if len(used) != len(set(used)):
        with pytest.raises(ValueError, match="at most"):
            MeshLayout(equation, sizes, mesh, rules)
        return
    layout = MeshLayout(equation, sizes, mesh, rules)
    factors, _, result = equation.partition("->")
    tensors = [each.strip() for each in (*factors.split(","), result)]
    letters = ["".join(name[0] for name in tensor.split()) for tensor in tensors]
    letters = f"{','.join(letters[:-1])}->{letters[-1]}"
    random = np.random.default_rng(1)
    whole = [random.normal(size=[sizes[n] for n in each.split()]) for each in tensors[:-1]]
    serial = np.einsum(letters, *whole)
    total = np.zeros_like(serial)
    for rank in range(rows * cols):
        parts = [
            array[layout.slices(each, rank)] for array, each in zip(whole, tensors, strict=False)
        ]
        total[layout.slices(tensors[-1], rank)] += np.einsum(letters, *parts)
    copies = rows * cols / np.prod([mesh[place] for place in used])
    assert np.allclose(total / copies, serial, rtol=1e-12, atol=1e-12)
    summed = names - set(result.split())
    assert set(layout.allreduced(equation)) == {rules[name] for name in summed if name in rules}


def two_layers(mesh, rules):
    """Two dense layers forward and backward, by parts and as one process computes them."""
    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel.mesh import MeshLayout, RankMesh, einsum

    comm = MPI.COMM_WORLD
    forward = ["batch in, in hidden -> batch hidden", "batch hidden, hidden out -> batch out"]
    backward = [
        *("batch hidden, batch out -> hidden out", "batch out, hidden out -> batch hidden"),
        *("batch in, batch hidden -> in hidden", "batch out ->"),
    ]
    layout = MeshLayout(
        forward + backward, {"batch": 12, "in": 6, "hidden": 12, "out": 5}, mesh, rules
    )
    ranks = RankMesh(comm, mesh)
    random = np.random.default_rng(5)
    names = {"x": "batch in", "w": "in hidden", "v": "hidden out", "t": "batch out"}
    whole = {
        key: random.normal(size=[layout.sizes[one] for one in name.split()])
        for key, name in names.items()
    }
    part = {key: whole[key][layout.slices(name, comm.rank)] for key, name in names.items()}

    def times(equation, *factors):
        return einsum(equation, *factors, layout=layout, ranks=ranks)

    h = np.maximum(times(forward[0], part["x"], part["w"]), 0)
    slope = times(forward[1], h, part["v"]) - part["t"]
    v = times(backward[0], h, slope)
    inner = times(backward[1], slope, part["v"]) * (h > 0)
    w = times(backward[2], part["x"], inner)
    total = times(backward[3], slope)

    hidden = np.maximum(whole["x"] @ whole["w"], 0)
    right = hidden @ whole["v"] - whole["t"]
    serial = {"v": hidden.T @ right, "w": whole["x"].T @ (right @ whole["v"].T * (hidden > 0))}
    apart = [abs(float(total) - right.sum())]
    for key, own in (("v", v), ("w", w)):
        apart.append(abs(own - serial[key][layout.slices(names[key], comm.rank)]).max())
    messages = [list(layout.allreduced(each)) for each in forward + backward]
    ranks.free()
    return [float(max(apart)), messages, [int(n) for n in ranks.coordinates.values()]]


@pytest.mark.parametrize(
    ("ranks", "mesh", "rules", "forward_sums", "weight_sums"),
    [
        (1, "all:1", "batch:all", [[], []], ["all"]),
        (2, "rows:2", "batch:rows", [[], []], ["rows"]),
        (2, "cols:2", "hidden:cols", [[], ["cols"]], []),
        (2, "cols:2", "in:cols", [["cols"], []], []),
        (3, "rows:3", "batch:rows", [[], []], ["rows"]),
        (3, "cols:3", "hidden:cols", [[], ["cols"]], []),
        (4, "rows:2, cols:2", "batch:rows, hidden:cols", [[], ["cols"]], ["rows"]),
        (4, "rows:2, cols:2", "batch:rows", [[], []], ["rows"]),
        (4, "rows:4", "batch:rows", [[], []], ["rows"]),
    ],
)
def test_products_by_parts_equal_serial_ones(
    tmp_path, ranks, mesh, rules, forward_sums, weight_sums
):
    everyone = on_ranks(ranks, two_layers, tmp_path, mesh=mesh, rules=rules)
    assert max(apart for apart, _, _ in everyone) <= 1e-12
    assert everyone[0][1][:2] == forward_sums
    assert everyone[0][1][4] == weight_sums
    places = [tuple(place) for _, _, place in everyone]
    assert places == sorted(set(places))  # the last dimension varies fastest
