"""Rounds: how operations on rows that are elsewhere become tasks, as few as possible."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from drago.oracles.rounds import looks
from drago.rows.base import Evaluation, Index, NonFiniteLossError, RowStore
from drago.rows.cluster import work
from drago.rows.cluster.engine import Engine
from drago.rows.cluster.programs import (
    Failed,
    PerPart,
    rebuilt,
    run_bundle,
    tell_bundle,
    told_by,
)
from drago.rows.cluster.vectors import Call, Group, Node, Round, nodes_of
from drago.rows.part import ArrayPart
from drago.rows.parts import PartedRows, _stacked

# Rows on the driver that tell about where thresholds are.
_WITNESSES = 1 << 13
# Sums that are remembered.
_REMEMBERED = 256
# Operations that make two vectors.
_PAIRS = {"apply", "responding", "balanced", work.balanced}
# Operations on vectors alone that cost less than to keep what they make.
_LIGHT = {
    "scaled", "mix", "relative", "shift", "by_class", "curvature", "of_groups", "weighted", "apply",
    looks.weigh, looks.soft,
}  # fmt: skip
_SMALL = (Node, Evaluation, PerPart, np.ndarray, int, float, str, tuple)

Sum = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""Something that parts tell: an operation or a function, and what it is given."""


class Layout:
    """Where the rows are: bundles of parts on the workers, and how large the parts are.

    Parameters
    ----------
    engine : Engine
    bundles : list of handles
        Each a list of `ArrayPart`.
    sizes : list of lists of int
        Rows of each part of each bundle.
    """

    def __init__(self, engine: Engine, bundles: Sequence[Any], sizes: Sequence[list[int]]) -> None:
        self.engine, self.bundles = engine, list(bundles)
        self.shape = [len(each) for each in sizes]
        self.sizes = [size for each in sizes for size in each]
        self.ends = np.cumsum(self.sizes)
        self.n_rounds = 0

    def bundled(self, values: Sequence[Any]) -> list[list[Any]]:
        """Values of each part as lists of each bundle."""
        rest = iter(values)
        return [list(itertools.islice(rest, count)) for count in self.shape]


class RemoteRows(PartedRows):
    """The rounds of `drago.rows.cluster.store.DaskRows`."""

    vector: Any = None  # vectors are never made of parts here

    def __init__(self, layout: Layout) -> None:
        self.layout, self.engine = layout, layout.engine
        self.parts: Any = tuple(range(len(layout.sizes)))
        self.n_samples = int(layout.ends[-1])
        self._memo: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()

    @property
    def n_rounds(self) -> int:  # type: ignore[override]
        """How often all parts were asked for something, so far."""
        return self.layout.n_rounds

    # ------------------------------------------------------------------------- the witnesses

    @property
    def n_witnesses(self) -> int:
        return min(_WITNESSES, self.n_samples)

    @cached_property
    def witness(self) -> ArrayPart:
        """Evenly spaced rows, on the driver; their weights sum to 1."""
        index = np.arange(self.n_witnesses, dtype=np.int64) * self.n_samples // self.n_witnesses
        pieces = self._pieces(self._local(index))
        found: list[Any] = [None if each[0] is None else _stacked(each) for each in zip(*pieces)]
        X, y, p, groups, baseline = found
        part = ArrayPart(X, y, p / p.sum(), groups, baseline)
        for node in (self.p, self.y, self.groups, self.baseline):
            if node is not None:
                node.shadow = getattr(part, node.name)
        return part

    def shadow(self, u: Node) -> Any:
        """The entries of a vector at the witnesses, or None."""
        assert self.witness is not None
        return u.shadow

    def _shadows(self, operation: Any, arguments: Any, settings: Any, count: int) -> list[Any]:
        """What an operation makes of the witnesses; None where some of its vectors have none."""
        missing = []

        def of(value: Any) -> Any:
            if isinstance(value, Node):
                missing.append(value.shadow is None)
                return value.shadow
            if isinstance(value, PerPart):
                missing.append(True)
                return None
            return rebuilt(value, of)

        witness = self.witness
        given = [of(value) for value in arguments]
        more = {name: of(value) for name, value in settings.items()}
        if any(missing):
            return [None] * count
        function = operation if callable(operation) else getattr(ArrayPart, operation)
        with np.errstate(all="ignore"):
            found = function(witness, *given, **more)
        return list(found) if count > 1 else [found]

    # ------------------------------------------------------------------------ over the parts

    def _mapped(self, name: Any, arguments: Sequence[Any], settings: dict[str, Any]) -> Any:
        """A vector, or a pair of them, that is not computed yet."""
        count = 2 if name in _PAIRS else 1
        call = Call(name, arguments, settings, count > 1, name in _LIGHT)
        chooses = not callable(name) and getattr(RowStore, name, None) is not None
        chooses = chooses and getattr(getattr(RowStore, name), "kind", "") == "choose"
        if chooses:
            shadows: list[Any] = [None] * count
        else:
            shadows = self._shadows(name, arguments, settings, count)
        nodes = nodes_of(call, shadows)
        if name == "apply":
            nodes[0].relate(slopes=nodes[1], loss=arguments[0], raw=arguments[1])
        elif name in ("balanced", work.balanced):
            nodes[1].relate(slopes=nodes[0])
        elif name == "add":
            nodes[0].relate(step=arguments[1])
        return nodes if count > 1 else nodes[0]

    def made(self, function: Any, u: Node, *arguments: Any) -> Node:
        """A vector that a function of the part makes of another one."""
        return self._mapped(function, (u, *arguments), {})

    def relate(self, q: Node, u: Node) -> None:
        """Remember that these weights are those of some losses."""
        q.relate(of=u)

    def told(self, function: Any, u: Node, *arguments: Any) -> list[Any]:
        """What a function of the part tells of a vector, part by part."""
        return self._each(function, (u, *arguments), {})

    def _each(self, name: Any, arguments: Sequence[Any], settings: dict[str, Any]) -> list[Any]:
        wanted = (name, tuple(arguments), settings)
        return self._ask([wanted])[0]

    def _ask(self, wanted: Sequence[Sum], needed: Sequence[Node] = ()) -> list[list[Any]]:
        """Sums of each part that are wanted, in one round as far as they are not known.

        `needed` are vectors that are to be made in it.
        """
        keys = [self._key(sum_) for sum_ in wanted]
        round_, new, held = Round(), [], []
        for key, (name, arguments, settings) in zip(keys, wanted):
            if key not in self._memo and key not in new:
                round_.want(name, arguments, settings)
                new.append(key)
                # Objects are known by their place: while that is remembered, they are kept.
                held += [each for each in arguments if not isinstance(each, _SMALL)]
        needed = [node for node in needed if node.group is None and not node.name]
        if new or needed:
            for node in needed:
                round_.need(node)
            told = self._run(round_, _label(wanted))
            for k, key in enumerate(new):
                self._memo[key] = [each[k] for each in told], held
            while len(self._memo) > _REMEMBERED:
                self._memo.popitem(last=False)
        return [self._memo[key][0] for key in keys]

    def _note(self, sum_: Sum, told: list[Any]) -> None:
        """Remember a sum of each part that another one has told as well."""
        self._memo[self._key(sum_)] = told, []

    def _known(self, sum_: Sum) -> list[Any] | None:
        """A sum of each part, where it is remembered."""
        found = self._memo.get(self._key(sum_))
        return None if found is None else found[0]

    @staticmethod
    def _key(wanted: Sum) -> Any:
        name, arguments, settings = wanted
        return (name, *map(_known_as, arguments), *map(_known_as, settings.items()))

    def _run(self, round_: Round, label: str) -> list[tuple[Any, ...]]:
        """What the parts tell, part by part."""
        layout, engine = self.layout, self.engine
        program, staying = round_.finish()
        here: list[Any] = [None] * len(layout.bundles)
        if round_.locals:
            here = layout.bundled(list(zip(*(each.values for each in round_.locals))))
        columns = [layout.bundles, here, *(group.handles for group in round_.groups)]
        layout.n_rounds += 1
        if not program.kept:
            told = engine.gather(
                engine.map(tell_bundle, *columns, name=f"sums-{label}", program=program)
            )
        else:
            handles = engine.map(run_bundle, *columns, name=label, program=program)
            for node, index in staying:
                node.group, node.index = None, index
            told = engine.gather(engine.map(told_by, handles, name="told"), handles)
            group = Group(handles)
            for node, _ in staying:
                node.group = group
        found = [each for bundle in told for each in bundle]
        for k, each in enumerate(found):
            if isinstance(each, Failed):
                raise NonFiniteLossError(f"in part {k} of {len(found)}, {each.message}")
        return found

    def _keep(self, node: Node) -> list[Node]:
        """Have the next round leave a vector on the workers that others would make anew."""
        if node.call is None:
            return []
        node.call.is_light = False
        return [node]

    def held(self, node: Node) -> tuple[Group, int]:
        """Where a vector is on the workers: it is made if it is not yet, light or not."""
        if node.group is None:
            call = Call(work.itself, (node,), {})
            (copy,) = nodes_of(call, [node.shadow])
            self._ask([], [copy])
            if node.name:
                assert copy.group is not None
                return copy.group, copy.index
            node.group, node.index, node.call = copy.group, copy.index, None
        assert node.group is not None
        return node.group, node.index

    def _some(self, index: Index) -> PerPart:
        """Numbers of rows as numbers in their parts."""
        of = np.searchsorted(self.layout.ends, index, side="right")
        starts = self.layout.ends - self.layout.sizes
        return PerPart([index[of == k] - starts[k] for k in self.parts])

    def _pieces(self, some: list[tuple[int, Index]]) -> list[tuple[Any, ...]]:
        by_part = dict(some)
        none = np.empty(0, dtype=np.int64)
        wanted: Sum = work.pieces, (PerPart([by_part.get(k, none) for k in self.parts]),), {}
        found = self._ask([wanted])[0]
        del self._memo[self._key(wanted)]  # they are large
        return [each for each in found if each is not None]

    def _local(self, index: Index) -> list[tuple[int, Index]]:
        return [(k, some) for k, some in enumerate(self._some(index).values) if some.size]


def _known_as(value: Any) -> Any:
    """What tells an argument from others."""
    if isinstance(value, Node):
        return ("vector", value.serial)
    if isinstance(value, np.ndarray):
        return ("array", value.shape, value.dtype.str, value.tobytes())
    if isinstance(value, Evaluation):
        return ("evaluation", *map(_known_as, value))
    if isinstance(value, PerPart):
        return ("local", *map(_known_as, value.values))
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(_known_as, value))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return value


def _label(wanted: Sequence[Sum]) -> str:
    name = wanted[0][0] if wanted else "vectors"
    return getattr(name, "__name__", name).strip("_")
