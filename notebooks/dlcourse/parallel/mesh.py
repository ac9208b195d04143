"""Tensors with named dimensions on a grid of ranks: one rule says which dimension goes where.

The ranks form a *mesh* whose dimensions have names, and every dimension of every tensor has a name
too. The *layout* sends names of the one to names of the other: such a dimension is divided among
the ranks along that dimension of the mesh, all others are whole on every rank. Data parallelism is
"batch:rows", tensor parallelism "hidden:cols", and both at once are one layout.

    product = "batch in, in hidden -> batch hidden"
    layout = MeshLayout(product, sizes="batch:8, in:4, hidden:6",
                        mesh="rows:2, cols:2", rules="batch:rows, hidden:cols")
    ranks = RankMesh(comm, layout.mesh)
    x = images[layout.slices("batch in", comm.rank)]
    w = kernel[layout.slices("in hidden", comm.rank)]
    hidden = einsum(product, x, w, layout=layout, ranks=ranks)

Source:
    Shazeer et al., Mesh-TensorFlow, NeurIPS (2018), arXiv:1811.02084, sections 3 and 4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from math import prod
from string import ascii_letters
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives import allreduce
from dlguide.collectives.agreement import agree_or_raise, require_equal
from dlguide.errors import require, require_count, require_known

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


class RankMesh:
    """The ranks of a communicator as a grid with named dimensions; the last one varies fastest.

    `coordinates` has this rank's place in each dimension.

    Args:
        mesh: number of ranks along each dimension, such as "rows:2, cols:2" or a mapping.

    Raises:
        ValueError: on all ranks alike, when the grid differs or has another number of ranks.
    """

    def __init__(self, comm: Comm, mesh: str | Mapping[str, int]) -> None:
        self.comm = comm
        require_equal(comm, mesh=mesh)
        with agree_or_raise(comm):
            self.mesh = _counts(mesh, "mesh")
            ranks = prod(self.mesh.values())
            require(ranks == comm.size, "mesh", f"have {comm.size} ranks as `comm` has", ranks)
        self.coordinates = _coordinates(self.mesh, comm.rank)
        self._along: dict[frozenset[str], Comm] = {}

    def along(self, *names: str) -> Comm:
        """Return the ranks that differ from this one in these dimensions only; all must call."""
        key = frozenset(names)
        ranks = prod(size for name, size in self.mesh.items() if name in key)
        if ranks == self.comm.size:
            return self.comm
        if ranks == 1:
            from mpi4py import MPI

            return MPI.COMM_SELF
        if key not in self._along:
            others = [at for name, at in self.coordinates.items() if name not in key]
            sizes = [size for name, size in self.mesh.items() if name not in key]
            color = int(np.ravel_multi_index(others, sizes))
            self._along[key] = self.comm.Split(color, self.comm.rank)
        return self._along[key]

    def free(self) -> None:
        """Free the communicators that `along` has made; every rank must call."""
        for comm in self._along.values():
            comm.Free()
        self._along.clear()


def copies_mesh(comm: Comm, copies: int) -> RankMesh:
    """Arrange the ranks in a grid "data", "model" of so many copies of a net; all must call."""
    require_equal(comm, copies=copies)
    with agree_or_raise(comm):
        require_count(copies, "copies")
        require(comm.size % copies == 0, "copies", f"divide the {comm.size} ranks", copies)
    return RankMesh(comm, {"data": copies, "model": comm.size // copies})


class MeshLayout:
    """Which slice of each tensor with named dimensions every rank of a grid holds.

    Args:
        operations: what is laid out: tensors, such as "batch in", and products, such as
            "batch in, in hidden -> batch hidden"; one or several.
        sizes: size of each dimension of the tensors, such as "batch:8, in:4" or a mapping.
        mesh: number of ranks along each dimension of the grid, such as "rows:2, cols:2".
        rules: the dimensions that are divided, and along what, such as "batch:rows".

    Raises:
        ValueError: when a name is unknown, a size does not divide, or one operation has two
            dimensions along one dimension of the grid; with the nearest layout that works: the
            fewest rules changed, and of these the one with the smallest parts.
    """

    def __init__(
        self,
        operations: str | Sequence[str],
        sizes: str | Mapping[str, int],
        mesh: str | Mapping[str, int],
        rules: str | Mapping[str, str],
    ) -> None:
        self.operations = [operations] if isinstance(operations, str) else list(operations)
        self.sizes, self.mesh = _counts(sizes, "sizes"), _counts(mesh, "mesh")
        self.rules = _pairs(rules, "rules")
        for name, along in self.rules.items():
            require_known(name, self.sizes, "rules")
            require_known(along, self.mesh, "rules")
        self._check(*self.operations)

    def slices(self, tensor: str, rank: int) -> tuple[slice, ...]:
        """Return the part of a tensor that a rank holds: a slice of each dimension."""
        self._check(tensor)
        ranks = prod(self.mesh.values())
        require(rank in range(ranks), "rank", f"be a rank, 0 to {ranks - 1}", rank)
        here, found = _coordinates(self.mesh, rank), []
        for name, length in zip(_names(tensor), self.part_shape(tensor), strict=True):
            start = here[self.rules[name]] * length if name in self.rules else 0
            found.append(slice(start, start + length))
        return tuple(found)

    def part_shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of the part of a tensor that each rank holds."""
        return tuple(
            self.sizes[name] // self.mesh.get(self.rules.get(name), 1) for name in _names(tensor)
        )

    def allreduced(self, equation: str) -> tuple[str, ...]:
        """Return the dimensions of the mesh that divide what a product sums over."""
        self._check(equation)
        summed = set(_names(equation)) - set(_names(equation.partition("->")[2]))
        return tuple(sorted(self.rules[name] for name in summed if name in self.rules))

    def _check(self, *operations: str) -> None:
        for operation in operations:
            for tensor in operation.replace("->", ",").split(","):
                for name in tensor.split():
                    require_known(name, self.sizes, "operations")
                    once = tensor.split().count(name) == 1
                    require(once, "operations", f"name {name} once in a tensor", tensor.strip())
        wrong = self._conflict(self.rules, operations)
        if wrong:
            nearest = ", ".join(f"{name}:{along}" for name, along in self._nearest(operations))
            then = f'The nearest layout that works: "{nearest}".'
            require(False, "rules", *wrong, then if nearest else "Only an empty layout works.")

    def _conflict(
        self, rules: Mapping[str, str], operations: Sequence[str]
    ) -> tuple[str, Any] | None:
        """Return what must hold and what came, for the first rule that cannot be followed."""
        for name, along in rules.items():
            if self.sizes[name] % self.mesh[along]:
                must = f"divide {name} into {self.mesh[along]} equal parts along {along}"
                return must, f"{name} of size {self.sizes[name]}"
        for operation in operations:
            for along in self.mesh:
                both = [name for name in _names(operation) if rules.get(name) == along]
                if len(both) > 1:
                    must = f'divide one dimension of "{operation}" along {along} at most'
                    return must, " and ".join(both)
        return None

    def _nearest(self, operations: Sequence[str]) -> list[tuple[str, str]]:
        operations = list(dict.fromkeys([*self.operations, *operations]))
        for changes in range(1, len(self.rules) + 1):
            works = []
            for names in combinations(reversed(self.rules), changes):
                for choice in product((*self.mesh, None), repeat=changes):
                    changed = {**self.rules, **dict(zip(names, choice, strict=True))}
                    rules = {name: along for name, along in changed.items() if along}
                    if self._conflict(rules, operations) is None:
                        parts = prod(self.mesh[along] for along in rules.values())
                        works.append((-parts, list(rules.items())))
            if works:
                return min(works, key=lambda each: each[0])[1]
        return []


def einsum(equation: str, *parts: np.ndarray, layout: MeshLayout, ranks: RankMesh) -> np.ndarray:
    """Multiply tensors of which each rank holds its part; return this rank's part of the result.

    Every rank multiplies its own parts. Where a dimension that is summed is divided among ranks,
    their results are summed by one allreduce; no other message is needed. Gradients are products
    too, with the names of the weights: their allreduce over the batch follows from the same rule.

    Args:
        equation: such as "batch in, in hidden -> batch hidden".
        parts: this rank's part of each factor, as `layout.slices` cuts it.
        ranks: the grid of `layout.mesh`; all must call.

    Raises:
        ValueError: on all ranks alike, when the layout does not allow the product or a part has
            another shape.
    """
    with agree_or_raise(ranks.comm):
        require(ranks.mesh == layout.mesh, "ranks", f"be the mesh {layout.mesh}", ranks.mesh)
        factors, arrow, result = equation.partition("->")
        require(bool(arrow), "equation", 'have "->" before its result', equation)
        over = layout.allreduced(equation)
        tensors = [*factors.split(","), result]
        free = set(result.split()) - set(_names(factors))
        require(not free, "equation", "have all names of the result in a factor", equation)
        fits = len(parts) == len(tensors) - 1
        require(fits, "parts", f"be the {len(tensors) - 1} factors of {equation!r}", len(parts))
        for tensor, part in zip(tensors, parts, strict=False):
            must = f"have the shape {layout.part_shape(tensor)} for {tensor.strip()!r}"
            require(part.shape == layout.part_shape(tensor), "parts", must, part.shape)
    letter = dict(zip(_names(equation), ascii_letters, strict=False))
    *left, right = ("".join(letter[name] for name in _names(tensor)) for tensor in tensors)
    own = np.ascontiguousarray(np.einsum(f"{','.join(left)}->{right}", *parts, optimize=True))
    if over:
        own = allreduce(own, ranks.along(*over), check=False)
    return own.reshape(layout.part_shape(result))


def gather(part: np.ndarray, tensor: str, layout: MeshLayout, comm: Comm) -> np.ndarray:
    """Return the whole of a tensor on all ranks; every rank must call, with its own part."""
    whole = np.empty([layout.sizes[name] for name in _names(tensor)], part.dtype)
    for rank, each in enumerate(comm.allgather(part)):
        whole[layout.slices(tensor, rank)] = each
    return whole


def _names(operation: str) -> list[str]:
    """List the dimensions of a tensor or of a product, each once."""
    return list(dict.fromkeys(operation.replace("->", " ").replace(",", " ").split()))


def _pairs(given: str | Mapping[str, Any], argument: str) -> dict[str, Any]:
    if not isinstance(given, str):
        return dict(given)
    texts = [each.strip() for each in given.split(",") if each.strip()]
    pairs = dict(each.split(":") for each in texts if re.fullmatch(r"\w+:\w+", each))
    good = len(pairs) == len(texts)
    require(good, argument, 'be pairs such as "batch:rows, hidden:cols", each name once', given)
    return pairs


def _counts(given: str | Mapping[str, Any], argument: str) -> dict[str, int]:
    return {
        name: require_count(int(n) if str(n).isdecimal() else n, f"{argument}[{name}]")
        for name, n in _pairs(given, argument).items()
    }


def _coordinates(mesh: Mapping[str, int], rank: int) -> dict[str, int]:
    return dict(zip(mesh, map(int, np.unravel_index(rank, tuple(mesh.values()))), strict=True))
