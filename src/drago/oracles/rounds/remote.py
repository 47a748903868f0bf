"""Exact weights for rows on other machines, in a few rounds of sums over all of them.

A few rows on this side, the *witnesses*, tell about where the threshold is. One round asks all
parts for the rows next to there, and for the sums of the others: with these the search of
`drago.oracles.rounds.arrays` ends on this side, exactly. Where the threshold lies elsewhere, the
next rounds ask for sums at several thresholds at once, until the rows between two of them are few.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from drago.oracles.atoms import AtomOracle, AtomResponse, RowVector
from drago.oracles.rounds import looks, tilt_looks
from drago.oracles.rounds.arrays import (
    BALL,
    CHI2,
    KL,
    VERTEX,
    _find,
    _halfway,
    search_parts,
)
from drago.oracles.rounds.looks import Look, Spec
from drago.oracles.rounds.rows import Place, Rows
from drago.oracles.rounds.tilt import price_in_ball
from drago.oracles.rounds.tilt_search import RemoteLosses, TiltSearch
from drago.terms.uncertainty.base import price

# Thresholds of a round, and rounds at most: only rounding could take more.
_PLACES, _ROUNDS = 16, 120
# The share of the witnesses on each side of a guess that tell how far to look, and how many times
# the last error of a guess. Without a last one: how many times its standard error.
_NEAR, _ERRORS, _DEVIATIONS = 0.002, 4.0, 3.0
# Units of the price up to which the rows below a bracket are settled, with the KL divergence.
_REACH = 3.9
# Losses are those of before where the threshold moved by less than this share of their deviation.
_ALIKE = 0.02


class RemoteOracle(TiltSearch):
    """The dual oracle of a set that a threshold decides, for a store whose rows are elsewhere.

    Parameters
    ----------
    rows : store
        Its ``told(function, u, ...)`` is what a function tells of each part, its
        ``made(function, u, ...)`` a new row vector, and its `witness` a few rows on this side;
        ``shadow(u)`` are the entries of a vector there, or None.
    """

    def __init__(self, rows: Any, uncertainty: Any, divergence: Any) -> None:
        super().__init__(rows, uncertainty, divergence)
        self.memory |= dict.fromkeys(("error", "searched"), math.nan)
        self._last: tuple[Spec, Place] | None = None
        self._soft = (math.nan, math.nan, math.nan)  # greatest loss, price and total

    # ------------------------------------------------------------------------------ guesses

    def spec(self, u: RowVector, c: float) -> Spec | None:
        """What a search is about; None where it takes no threshold."""
        mass = 1.0 / self.rows.n_samples if self.rows.is_uniform else math.nan
        if self.is_ball:
            if not self.divergence.is_chi2:
                return None
            shadow = self.rows.shadow(u)
            ends = self.rows.extremes(u) if shadow is None else (shadow.min(), shadow.max())
            spread = float(ends[1] - ends[0])
            unit = spread if 0.0 < spread < math.inf else 1.0
            return Spec(BALL, c, float(self.uncertainty.radius), unit, mass)
        kind = (CHI2 if self.divergence.is_chi2 else KL) if c > 0 else VERTEX
        if self.cap == math.inf and kind in (VERTEX, KL):
            return None
        return Spec(kind, c, self.cap, 1.0, mass)

    def expected(self, u: RowVector, c: float) -> tuple[Spec, tuple[Place, Place]] | None:
        """The search that is to come, and a bracket that is likely to hold the threshold."""
        c = price(float(c))
        spec = self.spec(u, c) if self.is_free else None
        found = None if spec is None else self._bracket(spec, u)
        return None if spec is None or found is None else (spec, found[1])

    def question(self, u: RowVector, c: float) -> tuple[Any, tuple[Any, ...], Any] | None:
        """What `weights` will ask all parts first."""
        found = self.expected(u, c)
        if found is not None:
            spec, bracket = found
            return looks.look, (u, spec, *self._first(spec, u, bracket), self.rows.limit), {}
        if not self.is_free or self.divergence.is_chi2:
            return None
        c = price(float(c))
        if not self.is_ball:
            return (looks.top, (u, c), {}) if self.cap == math.inf else None
        theta = self._first_theta(u, c)
        return None if math.isnan(theta) else (tilt_looks.tilts, self._look_at(u, theta), {})

    def _bracket(self, spec: Spec, u: RowVector) -> tuple[float, tuple[Place, Place], float] | None:
        """The guess, a bracket around it, and the threshold of the witnesses."""
        shadow, witness = self.rows.shadow(u), self.rows.witness
        if shadow is None or not np.isfinite(shadow).all():
            return None
        p = None if self.rows.is_uniform else witness.p
        start = self.memory["sampled"], 0.0
        found = search_parts(spec.kind, [(shadow, p)], spec.c, spec.bound, start)
        tau = found.threshold
        if not math.isfinite(tau):
            return None
        away = np.abs(shadow - tau)
        if spec.kind == CHI2 and spec.bound < math.inf:
            away = np.minimum(away, np.abs(shadow - (tau + spec.c * spec.bound)))
        rank = min(int(_NEAR * away.size) + 2, away.size - 1)
        width = float(np.partition(away, rank)[rank])
        known, guess, strange = self.memory, tau, 1.0
        if known["searched"] == spec.c and math.isfinite(known["anchor"] + known["sampled"]):
            # The witnesses err by what they erred by before, as far as these are those losses.
            moved = abs(tau - known["sampled"]) / max(float(shadow.std()), 1e-300)
            strange = min(moved, 1.0) if moved > _ALIKE else 0.0
            guess += (1.0 - strange) * (known["anchor"] - known["sampled"])
            if math.isfinite(known["error"]):
                width = max(width, _ERRORS * known["error"])
        if strange > 0.0:
            width = max(width, strange * self._deviation(spec, shadow, p))
        if self.rows.n_witnesses >= self.rows.n_samples:
            width = max(1e-9 * abs(guess), 1e-300)
        return guess, (Place(guess - width), Place(guess + width)), tau

    def _deviation(self, spec: Spec, shadow: np.ndarray, p: np.ndarray | None) -> float:
        """How far the threshold of the witnesses is from that of all rows, at most."""
        rows = spec.rows(shadow, p)
        rows.unit = 1.0 / shadow.size if p is None else 1.0
        weights = np.full(shadow.size, 1.0 / shadow.size) if p is None else p
        some = slice(None, None, max(1, shadow.size // 512))
        share = weights[some] / weights[some].sum()
        low, high = rows.starts(shadow[some], share, float(shadow.max()))
        # Of so many more rows than these the error is less.
        less = math.sqrt(share.size / shadow.size)
        return _DEVIATIONS * less * abs(high - low)

    # ------------------------------------------------------------------------------ weights

    def _weigh(self, u: RowVector, c: float) -> tuple[RowVector, float]:
        rows = self.rows
        self._last = None
        if not self.is_free:
            return rows.p, math.inf
        spec = self.spec(u, c)
        if spec is None:
            return self._without_threshold(u, c)
        guessed = self._bracket(spec, u)
        found, open_rows = self._search(spec, u, None if guessed is None else guessed[1])
        if found is None or open_rows is None:
            return rows.scaled(u, math.nan), math.nan
        around = None
        if isinstance(open_rows, looks.BallRows):
            around = self._around(spec, u, found, open_rows)
        threshold = open_rows.weights(found, np.empty)[1]
        bottom = spec.bottom(threshold, found.ref, found.ref - spec.c * found.x)
        q = rows.made(looks.weigh, u, spec, found, bottom, around)
        rows.relate(q, u)
        self._last = spec, found
        self._learn(spec, threshold, guessed)
        return q, open_rows.effective

    def _around(
        self, spec: Spec, u: RowVector, found: Place, open_rows: Any
    ) -> tuple[float, float, float] | None:
        """The sums that the weights of a ball on its boundary need."""
        price_binds = open_rows.price > 0.0 and found.a / open_rows.price <= open_rows.inside(found)
        if open_rows.top(found) or price_binds:
            return None
        told = self.rows.told(looks.spread_at, u, spec, found)
        e, f, out = np.sum(told, axis=0).tolist()
        open_rows.known_around = e, f, out
        return e, f, out

    def _learn(self, spec: Spec, threshold: float, guessed: Any) -> None:
        """For the next guess."""
        memory, before = self.memory, self.memory["threshold"]
        moved = threshold - before if math.isfinite(before) else 0.0
        memory |= {"threshold": threshold, "moved": moved, "price": spec.c, "searched": spec.c}
        memory |= {"anchor": threshold, "sampled": math.nan, "error": math.nan}
        if guessed is not None:
            memory |= {"sampled": guessed[2], "error": abs(threshold - guessed[0])}

    def _search(
        self, spec: Spec, u: RowVector, bracket: tuple[Place, Place] | None
    ) -> tuple[Place | None, Rows | None]:
        """The threshold with its sums, and the rows that decided it."""
        rows = self.rows
        low = high = None
        places, bracket = self._first(spec, u, bracket)
        for _ in range(_ROUNDS):
            told: list[Look] = rows.told(looks.look, u, spec, places, bracket, rows.limit)
            least, most = min(each.least for each in told), max(each.most for each in told)
            if not all(math.isfinite(each.least) for each in told):
                return None, None
            model = spec.rows(np.zeros(1), np.ones(1))
            if low is None or high is None:
                low, high = map(Place, model.ends(least, most))
            sums = (tuple(map(sum, zip(*each))) for each in zip(*(each.sums for each in told)))
            for place, (a, b, d) in zip(places, sums):
                there = Place(place.ref, place.x, a, b, d)
                if model.hit(there):
                    return there, looks.joined(spec, [looks.NOTHING], there)
                low, high = _tighter(model, low, high, there)
            opened = [each.open for each in told if each.open is not None]
            if bracket is not None and len(opened) == len(told):
                found = looks.joined(spec, opened, bracket[1])
                inside, low, high = self._inside(found, bracket, low, high)
                if inside is not None:
                    return inside, found
            certain = low.known and high.known and bracket != (low, high)
            bracket, places = (low, high), ()
            if not (certain and self._are_few(spec, u, low, high)):
                places = tuple(self._places(spec, u, low, high))
        raise ArithmeticError("no threshold was found; please report this.")  # pragma: no cover

    def _inside(
        self, rows: Rows, bracket: tuple[Place, Place], low: Place, high: Place
    ) -> tuple[Place | None, Place, Place]:
        """The threshold, if it lies in the bracket; otherwise on which side it is."""
        first, last = bracket
        outer = first.ref <= low.ref, last.ref >= high.ref
        first, last = rows.sums(first), rows.sums(last)
        for place in (first, last):
            if rows.hit(place):
                return place, low, high
        if rows.total(first) < 1.0 and not outer[0]:
            return None, low, first
        if rows.total(last) >= 1.0 and not outer[1]:
            return None, last, high
        middle = Place(0.5 * first.ref + 0.5 * last.ref)
        with np.errstate(all="ignore"):
            return _find(rows, first, last, [middle])[0], low, high

    def _are_few(self, spec: Spec, u: RowVector, low: Place, high: Place) -> bool:
        """Whether the rows between two thresholds will come, as far as the witnesses tell."""
        shadow = self.rows.shadow(u)
        # Rows below a bracket of many units weigh all too differently at its ends.
        if shadow is None or (spec.kind == KL and high.ref - low.ref > _REACH * spec.c):
            return False
        above = spec.c * spec.bound if spec.kind == CHI2 and spec.bound < math.inf else 0.0
        open_ = (shadow >= low.ref) & (shadow < high.ref)
        open_ |= (shadow >= low.ref + above) & (shadow < high.ref + above)
        share = (np.count_nonzero(open_) + 1) / shadow.size
        return 2.0 * share * self.rows.n_samples < self.rows.limit * len(self.rows.parts)

    def _first(
        self, spec: Spec, u: RowVector, bracket: tuple[Place, Place] | None
    ) -> tuple[tuple[Place, ...], tuple[Place, Place] | None]:
        """What the first round asks for: a bracket, and thresholds within where that is too wide.

        The rows about the guess come nevertheless: often they will do.
        """
        if bracket is None or self._are_few(spec, u, *bracket):
            return (), bracket
        low, high = (place.ref for place in bracket)
        middle, count = 0.5 * (low + high), _PLACES // 2
        if spec.kind == KL:
            count = min(math.ceil((high - low) / (_REACH * spec.c)) + 1, count)
        narrow = 0.5 * (high - low) / (count - 1)
        narrow = min(narrow, 0.5 * _REACH * spec.c) if spec.kind == KL else narrow
        places = tuple(map(Place, np.linspace(low, high, count).tolist()))
        return places, (Place(middle - narrow), Place(middle + narrow))

    def _places(self, spec: Spec, u: RowVector, low: Place, high: Place) -> list[Place]:
        """Thresholds between two others: evenly spaced ones, those of witnesses, and the middle of
        all floats in between, so that it ends whatever the losses are."""
        found = set(np.linspace(low.ref, high.ref, _PLACES // 2 + 2)[1:-1].tolist())
        found.add(_halfway(low.ref, high.ref))
        shadow = self.rows.shadow(u)
        if shadow is not None:
            inner = np.unique(shadow[(shadow > low.ref) & (shadow < high.ref)])
            some = np.linspace(0, inner.size - 1, _PLACES // 2).astype(np.int64)
            found |= set(inner[some].tolist()) if inner.size else set()
        if spec.kind == VERTEX:
            found.add(low.ref)  # it may itself be the threshold
        return [Place(ref) for ref in sorted(found) if low.ref <= ref < high.ref]

    # -------------------------------------------------------------------- without a threshold

    def _without_threshold(self, u: RowVector, c: float) -> tuple[RowVector, float]:
        """The whole simplex, and KL balls."""
        effective, tilted = c, None
        if self.is_ball:
            tilted = self._tilted(u, c)
            if tilted is not None:
                effective = 1.0 / tilted.theta
            else:
                losses = RemoteLosses(self.rows, u, float(self.uncertainty.radius))
                theta = self.memory["threshold"]
                effective = price_in_ball(losses, c, float(self.uncertainty.radius), theta)
            if effective > c:
                self.memory["threshold"] = 1.0 / effective
        greatest, total = self._top(u, effective) if tilted is None else (tilted.top, tilted.total)
        self._soft = greatest, effective, total
        q = self.rows.made(looks.soft, u, *self._soft)
        self.rows.relate(q, u)
        if not self.is_ball:
            tau = greatest + effective * math.log(total) if effective > 0 else greatest
            self.memory |= {"threshold": tau, "price": c}
        return q, effective

    def _top(self, u: RowVector, c: float) -> tuple[float, float]:
        told = self.rows.told(looks.top, u, c)
        greatest = max(each[0] for each in told)
        if c == 0.0:
            return greatest, sum(total for top, total in told if top == greatest)
        return greatest, sum(total * math.exp((top - greatest) / c) for top, total in told)

    def with_mirror(self, u: RowVector, c: float) -> tuple[RowVector, RowVector]:
        rows, c = self.rows, price(float(c))
        q, effective = self._weigh(u, c)
        if self.divergence.is_chi2:
            return q, rows.relative(q)
        effective = effective if self.is_ball else c
        if not self.is_free or not effective > 0:
            return q, rows.made(_mirror, q, self.divergence)
        if self._last is not None:
            return q, rows.made(looks.log_ratio, u, *self._last)
        return q, rows.made(looks.log_soft, u, *self._soft)


def _mirror(part: Any, q: np.ndarray, divergence: Any) -> np.ndarray:
    return divergence._mirror(q, part.p)


def _tighter(model: Rows, low: Place, high: Place, there: Place) -> tuple[Place, Place]:
    """The bracket with another threshold whose sums are known."""
    if model.total(there) >= 1.0:
        return (there, high) if there.ref >= low.ref else (low, high)
    return (low, there) if there.ref <= high.ref else (low, high)


class WholeVectorOracle(AtomOracle):
    """The dual oracle of a spectral set: one worker sees the losses of all rows, and sorts them.

    Parameters
    ----------
    rows : store
        Its ``whole(function, u, ...)`` runs a function of whole vectors on one worker.
    """

    def weights(self, u: RowVector, c: float) -> RowVector:
        q = self._whole("weights", u, c, 1)[0]
        self.rows.relate(q, u)
        return q

    def with_mirror(self, u: RowVector, c: float) -> tuple[RowVector, RowVector]:
        q, mirror = self._whole("with_mirror", u, c, 2)
        self.rows.relate(q, u)
        return q, mirror

    def response(
        self, u: RowVector, c: float, q: RowVector | None = None
    ) -> tuple[RowVector, AtomResponse | None]:
        """Where a gradient of each pool is more than there is memory for, it is not known."""
        rows = self.rows
        q, rate, pool, direction, told = self._whole("response", u, c, 4, tells=True)
        n_pools, has_direction = told
        rows.relate(q, u)
        if n_pools < 0 or 8 * n_pools * rows.n_features > rows.sorting:
            return q, None
        return q, AtomResponse(rate, pool, direction if has_direction else None, n_pools)

    def _whole(self, name: str, u: RowVector, c: float, count: int, tells: bool = False) -> Any:
        return self.rows.whole(
            _of_all_rows, u, name, self.uncertainty, self.divergence, float(c), count=count,
            tells=tells,
        )  # fmt: skip


def _of_all_rows(
    p: np.ndarray, u: np.ndarray, name: str, uncertainty: Any, divergence: Any, c: float
) -> tuple[list[np.ndarray], Any]:
    """What the oracle in memory says of all rows: vectors, and a few numbers."""
    oracle = uncertainty._oracle(p / p.sum(), divergence, None)
    if name == "weights":
        return [oracle.weights(u, c)], None
    if name == "with_mirror":
        return list(oracle.with_mirror(u, c)), None
    q, found = oracle.response(u, c)
    none = np.zeros(u.size)
    if found is None:
        return [q, none, none, none], (-1, False)
    pool = found.pool.astype(np.float64)
    has_direction = found.direction is not None
    vectors = [q, found.rate, pool, found.direction if has_direction else none]
    return vectors, (int(found.pool.max(initial=-1)) + 1, has_direction)


def violation_of_all_rows(p: np.ndarray, q: np.ndarray, uncertainty: Any) -> tuple[Any, Any]:
    """How far weights are from a set, in mass."""
    return [], float(uncertainty._violation(q, p / p.sum(), None))
