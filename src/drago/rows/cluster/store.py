"""Rows on the workers of a cluster.

The parts live on the workers, in bundles: a task of a round works on one bundle. Vectors are made
where they are needed (`drago.rows.cluster.vectors`), and every sum that is likely to be wanted next
is taken in the same round. Sums are added in the order of the parts, so that neither the number of
the workers nor a failure changes a bit.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from drago._validation import check_vector
from drago.oracles.atoms import AtomOracle
from drago.oracles.rounds import looks
from drago.oracles.rounds.remote import (
    RemoteOracle,
    WholeVectorOracle,
    violation_of_all_rows,
)
from drago.rows.array_visits import Guess, guess_for
from drago.rows.base import (
    Evaluation,
    Gradient,
    Index,
    Kept,
    Matrix,
    NonFiniteLossError,
    RowStore,
    RowVector,
    Vector,
    Visit,
)
from drago.rows.cluster import work
from drago.rows.cluster.engine import Engine
from drago.rows.cluster.programs import (
    Failed,
    PerPart,
    Program,
    rebuilt,
    run_bundle,
    tell_bundle,
    told_by,
)
from drago.rows.cluster.vectors import Call, Group, Node, Round, attribute, nodes_of
from drago.rows.part import ArrayPart
from drago.rows.parts import PartedRows, _stacked, _sum

# Rows on the driver that tell about where thresholds are.
_WITNESSES = 1 << 13
# Rows that may come to the driver at once, of all parts and of one at least; and as a share of
# the bytes of X.
_FETCHED, _FETCHED_OF_PART, _FETCHED_SHARE = 1 << 20, 1 << 11, 0.004
# Bytes, and a share of the rows, that a problem on a part of the rows may take on the driver.
_TAKEN, _TAKEN_SHARE = 1 << 26, 0.01
# Sums that are remembered.
_REMEMBERED = 256
# Operations that make two vectors.
_PAIRS = {"apply", "responding", "balanced"}
# Levels of a round in which the least weight of a selection is looked for, rounds, and how far it
# may fall short.
_LEVELS, _TURNS, _SHORT = 48, 8, 0.9

_SMALL = (Node, Evaluation, PerPart, np.ndarray, int, float, str, tuple)
Sum = tuple[Any, tuple[Any, ...], dict[str, Any]]


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


class DaskRows(PartedRows):
    """Rows on the workers of a cluster, or in parts that threads of this process work on.

    Parameters
    ----------
    layout : Layout
    facts : dict
        ``n_features``, ``n_entries``, ``is_sparse``, ``is_uniform``, ``n_groups``, ``label_type``
        and ``row_bytes`` of the rows; ``has_groups`` and ``has_baseline``.
    """

    capabilities = frozenset({"responses", "tables"})
    vector: Any = None  # vectors are never made of parts here

    def __init__(self, layout: Layout, facts: dict[str, Any]) -> None:
        self.layout, self.facts, self.engine = layout, facts, layout.engine
        self.parts: Any = tuple(range(len(layout.sizes)))
        self.n_samples = int(layout.ends[-1])
        for name in ("n_features", "n_entries", "is_sparse", "is_uniform", "n_groups"):
            setattr(self, name, facts[name])
        self.label_type = facts["label_type"]
        row = facts["row_bytes"]
        most = min(_TAKEN // row, int(_TAKEN_SHARE * self.n_samples))
        self.most_part = max(self.least_part, most)
        self._memo: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()
        self._expecting: tuple[Any, float] | None = None
        self.p, self.y = attribute("p"), attribute("y")
        self.groups = attribute("groups") if facts["has_groups"] else None
        self.baseline = attribute("baseline") if facts["has_baseline"] else None
        fetched = int(_FETCHED_SHARE * row * self.n_samples / 16)
        share = 4 * min(_FETCHED, fetched) // len(self.parts)
        self.limit = max(_FETCHED_OF_PART, share)

    def __repr__(self) -> str:
        kind = "sparse" if self.is_sparse else "dense"
        return (
            f"DaskRows({self.n_samples} x {self.n_features}, {kind}, {len(self.parts)} parts in "
            f"{len(self.layout.bundles)} bundles, on {self.engine!r})"
        )

    def __reduce__(self) -> Any:
        return self.engine.__reduce__()  # which says why not

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
        X, y, p, groups, baseline = (
            None if each[0] is None else _stacked(each) for each in zip(*pieces)
        )
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
        call = Call(name, arguments, settings, count > 1)
        chooses = not callable(name) and getattr(RowStore, name, None) is not None
        chooses = chooses and getattr(getattr(RowStore, name), "kind", "") == "choose"
        if chooses:
            shadows: list[Any] = [None] * count
        else:
            shadows = self._shadows(name, arguments, settings, count)
        nodes = nodes_of(call, shadows)
        if name == "apply":
            nodes[0].relate(slopes=nodes[1], loss=arguments[0], raw=arguments[1])
        elif name == "balanced":
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

    def held(self, node: Node) -> list[Any]:
        """The handles of a vector's bundles, made if it is not yet; with its place in them."""
        if node.name or node.group is None:
            copy = self._mapped(work.itself, (node,), {}) if node.name else node
            self._ask([], [copy])
            if copy is not node:
                return [*self.held(copy)]
        assert node.group is not None
        return [node.group, node.index]

    # ------------------------------------------------------------------------ visits to X

    def visits_once(self, loss: Any, n_outputs: int) -> bool:
        return n_outputs == 1 and loss.has_kernels

    def predict(self, w: Matrix, b: Vector) -> RowVector:
        return self._mapped("predict", (w, b), {})

    def evaluate(self, loss: Any, w: Any, b: Any, raw: RowVector = None) -> Evaluation:
        return self._evaluated(loss, w, b, raw, Guess(), *(self._expecting or (None, 0.0)))[0]

    def _evaluated(
        self, loss: Any, w: Any, b: Any, raw: Any, guess: Guess, oracle: Any, nu: float
    ) -> tuple[Evaluation, Any]:
        """An evaluation, with what its oracle will ask for first; and what the visit has seen."""
        call = Call(work.evaluated, (loss, w, b, raw, guess), {}, True)
        found = self._witness_evaluation(loss, w, b, raw)
        own, losses, slopes, seen = nodes_of(call, [*found, None])
        losses.relate(slopes=slopes, loss=loss, raw=own, is_visit=True)
        if raw is not None:
            losses.relate(step=raw.kin("step"))
        wanted: list[Sum] = [("extremes", (losses,), {})]
        expected = None
        if oracle is not None and hasattr(oracle, "expected"):
            expected = oracle.expected(losses, nu)
        if expected is not None:
            spec, bracket = expected
            wanted.append((looks.look, (losses, spec, (), bracket, self.limit), {}))
        self._ask(wanted, [own, losses, slopes, seen] if guess.kind else [own, losses, slopes])
        return Evaluation(w, b, own, losses, slopes), seen

    def _witness_evaluation(self, loss: Any, w: Any, b: Any, raw: Any) -> list[Any]:
        witness = self.witness
        if raw is not None and raw.shadow is None:
            return [None] * 3
        with np.errstate(all="ignore"):
            own = witness.predict(w, b) if raw is None else raw.shadow
            return [own, *witness.apply(loss, own)]

    def visit(self, loss: Any, w: Matrix, b: Vector, oracle: Any, nu: float) -> Visit:
        guess = Guess()
        once = self.visits_once(loss, w.shape[1]) and not self.is_sparse and w.any()
        if once and hasattr(oracle, "expected"):
            guess = self._guess(loss, w, b, oracle, nu)
        self._expecting = oracle, nu
        ev, seen = self._evaluated(loss, w, b, None, guess, oracle, nu)
        q = oracle.weights(ev.losses, nu)
        operation: Sum = ("gradient", (ev.dlosses, q), {})
        if guess.kind:
            operation = (work.gradient_after, (ev.dlosses, q, ev.losses, guess, seen), {})
        told = self._ask([operation, *self._values(oracle.divergence, nu, ev.losses, q)])
        return Visit(ev, q, _sum(told[0]))

    def _guess(self, loss: Any, w: Matrix, b: Vector, oracle: Any, nu: float) -> Guess:
        """The weights at the threshold that the witnesses suggest."""
        kind, tau, cap = oracle.guess(nu)
        if not kind or tau == -math.inf:
            return guess_for(self, loss, w, b, oracle, nu) if kind else Guess()
        found = self._witness_evaluation(loss, w, b, None)[1]
        node = Node(found)
        expected = oracle.expected(node, nu)
        if expected is None:
            return Guess()
        low, high = expected[1]
        tau = 0.5 * (low.ref + high.ref)
        if kind == 2:
            tau -= nu * math.log(cap) if cap < math.inf else 0.0
        return Guess(kind, tau, nu, cap)

    def _values(self, divergence: Any, nu: float, losses: Node, q: Node) -> list[Sum]:
        """The sums of an objective."""
        found: list[Sum] = [("dot", (q, losses), {})]
        return [*found, ("distance", (divergence, q), {})] if nu > 0 else found

    def primal(self, divergence: Any, nu: float, losses: RowVector, q: RowVector) -> float:
        wanted = self._values(divergence, nu, losses, q)
        slopes, step = losses.kin("slopes"), losses.kin("step")
        if slopes is not None and q.kin("of") is losses:
            wanted.append(("slope_sums", (q, slopes), {}))
            if losses.kin("is_visit"):
                wanted.append(("gradient", (slopes, q), {}))
            if step is not None:
                wanted.append(("slope_along", (q, slopes, step), {}))
        first = self._key(wanted[0])
        if first in self._memo:
            wanted = self._values(divergence, nu, losses, q)
        self._ask(wanted)
        return super().primal(divergence, nu, losses, q)

    def drift(self, loss: Any, ev: Evaluation, index: Index, scale: float) -> float:
        some = self._some(index)
        return max(self._each(work.drift, (loss, ev, some, scale), {}))

    def steepest_of(self, dlosses: RowVector, index: Index, lengths: Vector) -> float:
        ends = np.cumsum([each.size for each in self._some(index).values])[:-1]
        parts = PerPart(np.split(lengths, ends))
        return max(self._each(work.steepest_of, (dlosses, self._some(index), parts), {}))

    def _some(self, index: Index) -> PerPart:
        """Numbers of rows as numbers in their parts."""
        of = np.searchsorted(self.layout.ends, index, side="right")
        starts = self.layout.ends - self.layout.sizes
        return PerPart([index[of == k] - starts[k] for k in self.parts])

    # ------------------------------------------------------------------------ in and out

    def export(self, values: RowVector) -> Any:
        """A Dask array: its entries stay on the workers."""
        return work.as_dask_array(self, values)

    def content(self) -> tuple[Any, ...]:
        told = np.concatenate([each for each in self._each(work.fingerprint, (), {})])
        return (np.array(self.layout.sizes), told)

    def imported(self, array: Any) -> RowVector:
        return work.entered(self, array)

    def enter(self, name: str, values: Any, kept: Kept = None) -> RowVector:
        if kept is not None:
            raise ValueError(f"{name} is for all rows, and some were dropped.")  # pragma: no cover
        if not hasattr(values, "dask"):
            values = check_vector(name, values, self.n_samples)
        elif tuple(values.shape) != (self.n_samples,):
            raise ValueError(
                f"{name} must have one entry per row, shape ({self.n_samples},), but has shape "
                f"{tuple(values.shape)}."
            )
        return self.imported(values)

    def _pieces(self, some: list[tuple[int, Index]]) -> list[tuple[Any, ...]]:
        by_part = dict(some)
        none = np.empty(0, dtype=np.int64)
        index = PerPart([by_part.get(k, none) for k in self.parts])
        return [each for each in self._each(work.pieces, (index,), {}) if each is not None]

    def _local(self, index: Index) -> list[tuple[int, Index]]:
        return [(k, some) for k, some in enumerate(self._some(index).values) if some.size]

    def with_baseline(self, baseline: RowVector | None) -> RowStore:
        layout = self.layout
        if baseline is None:
            bundles = layout.engine.map(work.without_baseline, layout.bundles, name="baseline")
        else:
            group, index = self.held(baseline)
            columns = layout.bundles, group.handles, [index] * len(layout.bundles)
            bundles = layout.engine.map(work.with_baseline, *columns, name="baseline")
        other = Layout(layout.engine, bundles, layout.bundled(layout.sizes))
        return DaskRows(other, self.facts | {"has_baseline": baseline is not None})

    # --------------------------------------------------------------------------- weights

    def oracle(self, uncertainty: Any, divergence: Any) -> AtomOracle:
        if uncertainty.is_spectral:
            return WholeVectorOracle(self, uncertainty, divergence)
        kind = RemoteOracle if RemoteOracle.takes(uncertainty) else AtomOracle
        return kind(self, uncertainty, divergence)

    @property
    def sorting(self) -> int:
        return 1 << 30

    def whole(
        self, function: Any, u: Node, *arguments: Any, count: int, tells: bool = False
    ) -> tuple[Any, ...]:
        """What a function of whole vectors makes of ``p`` and `u`, on one worker."""
        return work.of_whole(self, function, u, arguments, count, tells)

    def violation(self, uncertainty: Any, q: RowVector) -> float:
        if uncertainty.is_spectral and not uncertainty.needs_groups:
            return float(self.whole(violation_of_all_rows, q, uncertainty, count=0, tells=True)[-1])
        wanted: list[Sum] = [("total", (q,), {}), ("count", (q,), {})]
        if uncertainty.tail_share is not None and not uncertainty.needs_groups:
            wanted.append(("excess", (q, 1.0 / uncertainty.tail_share), {}))
        lacking = self.scaled(q, -1.0)
        wanted.append(("excess", (lacking, 0.0), {}))
        losses = q.kin("of")
        raw = None if losses is None else losses.kin("raw")
        if raw is not None and losses.kin("loss").has_conjugate:
            loss = losses.kin("loss")
            if not loss.has_class_hessian:
                wanted.append(("balance_sums", (loss, raw, q, None), {}))
        self._ask(wanted)
        return super().violation(uncertainty, q)

    def balance(
        self, loss: Any, raw: RowVector, q: RowVector, n_outputs: int
    ) -> tuple[RowVector, float] | None:
        if not loss.has_conjugate:
            return None
        masses = self.class_masses(q, n_outputs) if loss.has_class_hessian else None
        sums = self.balance_sums(loss, raw, q, masses)
        alpha, young = self.balanced(loss, raw, q, sums, masses)
        self._ask([("dot", (q, young), {}), ("gradient", (alpha, q), {})])
        return alpha, self.dot(q, young)

    def heaviest(self, weight: RowVector, size: int) -> RowVector:
        high = self.greatest(weight)
        levels = high * 0.5 ** np.arange(0.0, _LEVELS)
        levels[-1] = 0.0
        counts: list[int] = []
        for turn in range(_TURNS):
            told = np.array(self._each(work.counts_above, (weight, levels), {}))
            totals = told.sum(axis=0)
            if turn == 0 and totals[1] > size:
                counts = [size * int(count) // int(totals[1]) for count in told[:, 1]]
                break
            # The totals rise as the levels fall.
            k = int(np.flatnonzero(totals <= size)[-1])
            counts = told[:, k].tolist()
            if totals[k] >= _SHORT * size or k == levels.size - 1:
                break
            levels = np.linspace(levels[k], levels[k + 1], _LEVELS)
        return self._mapped(work.heaviest, (weight, PerPart(counts)), {})

    def gram(self, chosen: RowVector, weight: RowVector, intercept: bool) -> Matrix:
        found = self._ask(
            [
                ("gram", (chosen, weight, intercept), {}),
                ("size", (chosen,), {}),
                ("total", (weight, chosen), {}),
                ("total", (weight,), {}),
            ]
        )
        return _sum(found[0])

    def tables(self, problem: Any, kind: str, count: int, n_threads: int | None) -> Any:
        from drago.rows.cluster.tables import RemoteTables

        return RemoteTables(self, problem, kind, count)

    def gradient(self, dlosses: RowVector, q: RowVector) -> Gradient:
        return _sum(self._each("gradient", (dlosses, q), {}))


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


__all__ = ["DaskRows", "Layout", "Program"]
