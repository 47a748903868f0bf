"""Rows on the workers of a cluster.

The parts live on the workers, in bundles: a task of a round works on one bundle. Vectors are made
where they are needed (`drago.rows.cluster.vectors`), and every sum that is likely to be wanted next
is taken in the same round. Sums are added in the order of the parts, so that neither the number of
the workers nor a failure changes a bit.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np

from drago._validation import check_vector
from drago.intercept import best_intercept
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
    RowStore,
    RowVector,
    Vector,
    Visit,
)
from drago.rows.cluster import work
from drago.rows.cluster.core import Layout, RemoteRows, Sum
from drago.rows.cluster.programs import PerPart
from drago.rows.cluster.tables import RemoteTables
from drago.rows.cluster.vectors import Call, Node, attribute, nodes_of
from drago.rows.parts import _sum

# Rows that may come to the driver at once, of all parts and of one at least; and as a share of
# the bytes of X.
_FETCHED, _FETCHED_OF_PART, _FETCHED_SHARE = 1 << 20, 1 << 11, 0.004
# Bytes, and a share of the rows, that a problem on a part of the rows may take on the driver.
_TAKEN, _TAKEN_SHARE = 1 << 24, 0.02
# Witnesses are so many times as many as those that tell how far off they are.
_FEWER = 16
# Levels at which rows of greater weight are counted, half as great from one to the next but one.
_LEVELS = 48


class DaskRows(RemoteRows):
    """Rows on the workers of a cluster, or in parts that threads of this process work on.

    Parameters
    ----------
    layout : Layout
    facts : dict
        ``n_features``, ``n_entries``, ``is_sparse``, ``is_uniform``, ``n_groups``, ``label_type``
        and ``row_bytes`` of the rows; ``has_groups`` and ``has_baseline``; ``notice`` where they
        are on disks.
    """

    capabilities = frozenset({"responses", "tables", "witnesses"})

    def __init__(self, layout: Layout, facts: dict[str, Any]) -> None:
        super().__init__(layout)
        self.facts = facts
        for name in ("n_features", "n_entries", "is_sparse", "is_uniform", "n_groups"):
            setattr(self, name, facts[name])
        self.label_type, self.notice = facts["label_type"], facts["notice"]
        row = facts["row_bytes"]
        most = min(_TAKEN // row, int(_TAKEN_SHARE * self.n_samples))
        self.most_part = max(self.least_part, most)
        self._expecting: tuple[Any, float] = (lambda: None), 0.0
        self._taken: tuple[Index, RowStore] | None = None
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
            f"{len(self.layout.bundles)} bundles, on {self.engine!r}"
            f"{', features on disk' if self.notice else ''})"
        )

    def __reduce__(self) -> Any:
        return self.engine.__reduce__()  # which says why not

    # ------------------------------------------------------------------------ visits to X

    def visits_once(self, loss: Any, n_outputs: int) -> bool:
        return n_outputs == 1 and loss.has_kernels

    def predict(self, w: Matrix, b: Vector) -> RowVector:
        return self._mapped("predict", (w, b), {})

    def evaluate(self, loss: Any, w: Any, b: Any, raw: RowVector = None) -> Evaluation:
        oracle, nu = self._expecting
        return self._evaluated(loss, w, b, raw, Guess(), oracle(), nu)[0]

    def _evaluated(
        self, loss: Any, w: Any, b: Any, raw: Any, guess: Guess, oracle: Any, nu: float
    ) -> tuple[Evaluation, Any]:
        """An evaluation, with what its oracle will ask for first; and what the visit has seen."""
        call = Call(work.evaluated, (loss, w, b, raw, guess), {}, is_tuple=True)
        found = self._witness_evaluation(loss, w, b, raw)
        own, losses, slopes, seen = nodes_of(call, [*found, None])
        losses.relate(slopes=slopes, loss=loss, raw=own, is_visit=True)
        if raw is not None:
            losses.relate(step=raw.kin("step"))
        ends: Sum = ("extremes", (losses,), {})
        question = None
        if oracle is not None and hasattr(oracle, "question"):
            question = oracle.question(losses, nu)
        made = [own, losses, slopes, seen] if guess.kind else [own, losses, slopes]
        (told,) = self._ask([question or ends], made)
        if question is not None and question[0] is looks.look:
            self._note(ends, [(each.least, each.most) for each in told])
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
        self._expecting = weakref.ref(oracle), nu  # whoever evaluates next will ask for the same
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
        if slopes is not None and (q is self.p or q.kin("of") is losses):
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

    # ------------------------------------------------------------------------ in and out

    def export(self, values: RowVector) -> Any:
        """A Dask array: its entries stay on the workers."""
        return work.as_dask_array(self, values)

    def take(self, index: Index) -> RowStore:
        """The last ones stay here, for the next solve."""
        if self._taken is None or not np.array_equal(self._taken[0], index):
            self._taken = index, super().take(index)
        return self._taken[1]

    def content(self) -> tuple[Any, ...]:
        told = self._each(work.fingerprint, (), {})
        return np.array(self.layout.sizes), np.concatenate(told)

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
        if uncertainty.needs_groups:
            return super().violation(uncertainty, q)
        cap = math.inf if uncertainty.tail_share is None else 1.0 / uncertainty.tail_share
        wanted: list[Sum] = [(work.limits, (q, cap), {})]
        losses = q.kin("of")
        raw = None if losses is None else losses.kin("raw")
        loss: Any = None if losses is None else losses.kin("loss")
        if raw is not None and loss.has_conjugate and not loss.has_class_hessian:
            wanted.append((work.balance_sums, (loss, raw, q, None), {}))
        # What comes next needs the weights again and again.
        lacking, total, count, excess = map(list, zip(*self._ask(wanted, self._keep(q))[0]))
        self._note(("total", (q,), {}), total)
        self._note(("count", (q,), {}), count)
        self._note(("excess", (q, cap), {}), excess)
        return max(0.0, abs(self.total(q) - 1.0), sum(lacking), self._excess(uncertainty, q))

    def extremes(self, values: RowVector) -> tuple[float, float]:
        if values is self.p and self.is_uniform:
            return 1.0 / self.n_samples, 1.0 / self.n_samples
        return super().extremes(values)

    def balance(
        self, loss: Any, raw: RowVector, q: RowVector, n_outputs: int
    ) -> tuple[RowVector, float] | None:
        if not loss.has_conjugate:
            return None
        masses = self.class_masses(q, n_outputs) if loss.has_class_hessian else None
        sums = _sum(self._each(work.balance_sums, (loss, raw, q, masses), {}))
        alpha, young = self._mapped(work.balanced, (loss, raw, q, sums, masses), {})
        self._ask([("dot", (q, young), {}), ("gradient", (alpha, q), {})])
        return alpha, self.dot(q, young)

    def likely_intercept(self, problem: Any, raw: RowVector) -> tuple[float, float] | None:
        """Between which numbers the best intercept should be; None where the witnesses cannot tell.

        It is about that of the witnesses: from fewer of them it would be so much farther away.
        """
        some = self.shadow(raw)
        if some is None or raw.name or problem.n_outputs > 1:
            return None
        found = []
        for step in (1, _FEWER):
            index = np.arange(0, self.n_witnesses, step)
            part = problem._replace(rows=self.witness.take(index))
            found.append(float(best_intercept(part, some[index])[0]))
        # The error of so many times as many rows is less by the root.
        width = max(2.0 * abs(found[1] - found[0]) / math.sqrt(_FEWER), 1e-6 * abs(found[0]))
        return found[0] - width, found[0] + width

    def curvature(self, loss: Any, raw: RowVector, q: RowVector) -> RowVector:
        """One vector for as long as the weights are there."""
        if loss.is_quadratic:
            return q
        known = q.kin("curvature")
        if known is None or known[0] is not loss or known[1] != raw.serial:
            node = self._mapped("curvature", (loss, raw, q), {})
            node.relate(within=q)
            known = loss, raw.serial, node
            q.relate(curvature=known)
        return known[2]

    def heaviest(self, weight: RowVector, size: int) -> RowVector:
        """As many of each part as it has above a level; of those about there, some of each."""
        within = weight.kin("within")
        count = self._known(("count", (weight if within is None else within,), {}))
        if count is not None and sum(count) <= size:
            return self._mapped(work.positive, (weight,), {})
        known = weight.shadow is not None and weight.shadow.max() > 0
        top = 4.0 * float(weight.shadow.max()) if known else self.greatest(weight)
        levels = top * 0.5 ** (0.5 * np.arange(_LEVELS))
        levels[-1] = 0.0
        told = np.array(self._each(work.counts_above, (weight, levels), {}))
        totals = told.sum(axis=0)  # they rise as the levels fall
        if totals[0] > size:
            counts = told[:, 0] * size // totals[0]
        elif totals[-1] <= size:
            counts = told[:, -1]
        else:
            k = int(np.flatnonzero(totals <= size)[-1])
            more = told[:, k + 1] - told[:, k]
            counts = told[:, k] + more * (size - totals[k]) // more.sum()
        return self._mapped(work.heaviest, (weight, PerPart(counts.tolist())), {})

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
        return RemoteTables(self, problem, kind, count)

    def gradient(self, dlosses: RowVector, q: RowVector) -> Gradient:
        return _sum(self._each("gradient", (dlosses, q), {}))
