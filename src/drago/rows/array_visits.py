"""Visits to rows of arrays: products with X, losses and gradients from one reading of it."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago._threads import threads_for, vector_threads
from drago._validation import is_of_scale, locked, require_features
from drago.rows.array_curvature import ArrayCurvature
from drago.rows.base import (
    Evaluation,
    Gradient,
    Index,
    Matrix,
    NonFiniteLossError,
    RowStore,
    Vector,
    Visit,
)

Array = npt.NDArray[Any]

# Entries of a block of X that is converted to float64 at a time.
_CHUNK = 1 << 18
# Entries of X from which it is worth to know which rows need not be read; and from which our own
# products with one column are faster than those of BLAS, which is in the cache with fewer.
_LARGE, _BEYOND_CACHE = 1 << 22, 1 << 20
# One in so many entries of X is still to be read for a gradient, roughly, where there was a guess.
_LEFT = 8
# Entries of X in a part that a thread takes at once.
_AT_ONCE = 1 << 19
# A smaller dense X has up to so many parts, of at least so many entries: threads then end together.
_PARTS, _AT_LEAST = 64, 1 << 16
# Features from which on a guess of the weights costs less than a second reading of the tail. The
# entries of a sparse row are so few, and so far apart in the sums, that it never does.
_LONG = 16
# What a row costs that is picked out, in bytes of those that are read one after the other: so many
# times its own, and as many as memory would have sent meanwhile.
_PICKED, _MEANWHILE = 1.1, 450
# Rows that tell the unit of each feature, and how small or large none is.
_MEASURED, _NO_SIZE = 1024, 1e-100
# Rows that a first guess of the weights comes from, where there are many more.
_GUESSED_FROM = 4096
# Outputs up to which products with X are our own.
_NARROW = 256
NONE = locked(np.empty(0))
NO_ROOM = np.empty(0)


class Guess(NamedTuple):
    """Weights before the losses are known: their kind, threshold, shift cost and cap."""

    kind: int = 0
    tau: float = 0.0
    nu: float = 1.0
    cap: float = np.inf


NO_GUESS = Guess()
CHI2, KL = 1, 2  # of a guess


class Seen(NamedTuple):
    """What a reading of X tells: losses, how many are not finite, and sums at guessed weights."""

    evaluation: Evaluation
    n_bad: int
    masses: tuple[float, float]
    first: Vector
    second: Vector


def guess_for(rows: RowStore, loss: Any, w: Matrix, b: Vector, oracle: Any, nu: float) -> Guess:
    """What an oracle remembers of its weights, or finds for some of the rows."""
    kind, tau, cap = oracle.guess(nu)
    n = rows.n_samples
    if kind and np.isnan(tau) and n > 2 * _GUESSED_FROM:
        some = rows.take(np.arange(_GUESSED_FROM, dtype=np.int64) * n // _GUESSED_FROM)
        witness = some.oracle(oracle.uncertainty, oracle.divergence)
        witness.weights(some.evaluate(loss, w, b).losses, nu)
        tau = witness.guess(nu)[1]
    return NO_GUESS if np.isnan(tau) else Guess(kind, tau, nu, cap)


def sharper(guess: Guess, masses: tuple[float, float]) -> float:
    """The threshold at which guessed weights of these sums would sum to 1; NaN where none would.

    It is exact, but for rows that change sides in between: see ``kernels/visits.hpp``.
    """
    first, second = masses
    if guess.kind == CHI2 and second > 0.0:
        return guess.tau + guess.nu * (first - 1.0) / second
    if guess.kind == KL and first > 0.0 and second < 1.0:
        return guess.tau + guess.nu * math.log(first / (1.0 - second))
    return math.nan


def parts_of_visit(n_samples: int, n_features: int, n_entries: int, is_sparse: bool) -> int:
    """How many parts so many rows are visited in."""
    parts = n_entries // _AT_ONCE
    if is_sparse:  # each has sums as long as there are features
        parts = min(parts, n_entries // (8 * n_features))
    return max(1, min(parts, n_samples // 64))


def gathered(
    X: Array, index: Index, dtype: Any, factors: Vector = NONE
) -> tuple[Array, float | None]:
    """Some rows of a dense matrix, each times its factor if there are any.

    And the sum of their squares, which is not finite where an entry or a square is not; None where
    it would take a look of its own.
    """
    if not X.flags.c_contiguous:
        found = X.take(index, axis=0).astype(dtype, copy=False)
        return found * factors[:, None] if factors.size else found, None
    out = np.empty((index.size, X.shape[1]), dtype)
    return out, kernels.gather_rows(X, index, factors, threads_for(out.size), out)


def _are_finite(values: Array) -> bool:
    """Whether all entries are; by threads."""
    flat = np.ascontiguousarray(values, dtype=np.float64).reshape(-1)
    least, greatest = kernels.extremes(flat, vector_threads(flat.size))
    return math.isfinite(least) and math.isfinite(greatest)


class ArrayVisits(ArrayCurvature):
    """What `drago.rows.memory.ArrayRows` reads of X."""

    X: Any
    stored: Any
    """The same, but it may not have been checked yet."""
    unread: bool
    shares: Any
    """p, or one entry of it where all are alike."""
    reach: tuple[Vector, Vector] | None = None
    """A unit of each feature, and ``||unit x_i||`` of each row; None until X was read."""

    def require_finite(self) -> None:
        """Check X, if nobody has."""
        if self.unread:
            require_features(self.stored)
            self.unread = False

    @cached_property
    def is_by_rows(self) -> bool:
        return not self.is_sparse and bool(self.stored.flags.c_contiguous)

    @property
    def kernel_baseline(self) -> Vector:
        """The baseline as kernels take it: empty where there is none."""
        return NONE if self.baseline is None else self.baseline

    def _chunks(self) -> list[slice]:
        # Of sparse rows as many as have so many entries.
        rows = max(1, _CHUNK * self.n_samples // max(self.n_entries, self.n_samples))
        return [slice(k, min(k + rows, self.n_samples)) for k in range(0, self.n_samples, rows)]

    def predict(self, w: Matrix, b: Vector) -> Matrix:
        if not w.any():
            raw = np.zeros((self.n_samples, b.size))  # memory that nobody has to fill
            if b.any():
                raw[:] = b
            return raw
        X = self.X
        if self._is_narrow(w.shape[1]):
            raw = np.empty((self.n_samples, w.shape[1]))
            kernels.narrow_predict(X, np.ascontiguousarray(w), np.ascontiguousarray(b), raw)
            return raw
        if self.n_entries >= _BEYOND_CACHE and self._is_one_by_rows(w.shape[1]):
            raw = np.empty((self.n_samples, 1))
            model = np.ascontiguousarray(w[:, 0]), float(b[0])
            kernels.predict(*self._storage, *self._work, *model, raw[:, 0])
            return raw
        if X.dtype == np.float64:
            product = X @ (w[:, 0] if w.shape[1] == 1 else w)
            raw = np.asarray(product, dtype=np.float64).reshape(self.n_samples, -1)
        else:
            raw = np.empty((self.n_samples, w.shape[1]))
            for rows in self._chunks():
                raw[rows] = X[rows].astype(np.float64) @ w
        if b.any():
            raw = raw + b
        return np.ascontiguousarray(raw)

    def evaluate(self, loss: Any, w: Matrix, b: Vector, raw: Any = None) -> Evaluation:
        if raw is None and self.visits_once(loss, w.shape[1]) and w.any():
            seen = self._read(loss, w, b, NO_GUESS)
            if seen.n_bad == 0:
                return seen.evaluation
        raw = self.predict(w, b) if raw is None else raw
        losses, dlosses = self.apply(loss, raw)
        # The slopes of a built-in loss are finite where its losses are.
        if not (_are_finite(losses) and (loss.has_kernels or _are_finite(dlosses))):
            bad = ~(np.isfinite(losses) & np.isfinite(dlosses).all(axis=1))
            i = int(np.argmax(bad))
            raise NonFiniteLossError(
                f"the loss {loss.name!r} is NaN or infinite on {int(bad.sum())} rows, "
                f"first on row {i} at the raw prediction {raw[i]}; "
                "check the loss, or scale the features and the target."
            )
        return Evaluation(w, b, raw, losses, dlosses)

    def visits_once(self, loss: Any, n_outputs: int) -> bool:
        return loss.has_kernels and self._is_one_by_rows(n_outputs)

    def _is_one_by_rows(self, n_outputs: int) -> bool:
        """Whether there is one output, and X is such that our own products read it."""
        return n_outputs == 1 and (self.is_sparse or self.is_by_rows)

    def visit(self, loss: Any, w: Matrix, b: Vector, oracle: Any, nu: float) -> Visit:
        """X is read once, and then the rows alone whose weights were not as they were guessed."""
        if not self.visits_once(loss, w.shape[1]):
            return super().visit(loss, w, b, oracle, nu)
        guess = self._guess(loss, w, b, oracle, nu)
        seen = self._read(loss, w, b, guess)
        ev = seen.evaluation
        if seen.n_bad:
            ev = self.evaluate(loss, w, b)  # raises, and says which rows are to blame
        oracle.look_near(nu, sharper(guess, seen.masses))
        q = oracle.weights(ev.losses, nu)
        return Visit(ev, q, self._gradient(ev.dlosses, q, guess, seen))

    def _guess(self, loss: Any, w: Matrix, b: Vector, oracle: Any, nu: float) -> Guess:
        if self.is_sparse or self.n_features < _LONG:
            return NO_GUESS
        return guess_for(self, loss, w, b, oracle, nu)

    @cached_property
    def _storage(self) -> tuple[Any, ...]:
        """The arrays of X, as kernels take them."""
        X = self.stored
        return (X.data, X.indices, X.indptr) if self.is_sparse else (X,)

    @cached_property
    def _n_parts(self) -> int:
        """Parts of a visit, so that its sums do not depend on the number of threads."""
        size = self.n_samples, self.n_features, self.n_entries, self.is_sparse
        finer = 1 if self.is_sparse else min(self.n_entries // _AT_LEAST, _PARTS)
        return max(parts_of_visit(*size), min(finer, self.n_samples // 64))

    def _read(self, loss: Any, w: Matrix, b: Vector, guess: Guess) -> Seen:
        """All that one reading of X tells; the first one also whether X is finite."""
        if self.reach is None and self._spares(guess):
            return self._measure(loss, w, b, guess)
        if not self.unread:
            return self._seen_in(self._storage, loss, w, b, guess)
        norm = np.empty(1)
        seen = self._seen_in(self._storage, loss, w, b, guess, NONE, norm)
        self._check(float(norm[0]))
        return seen

    def _check(self, largest: float) -> None:
        """Check X, of which no entry is larger than this if it is a number."""
        if self.unread and not is_of_scale(largest, self.n_entries):
            require_features(self.stored)
        self.unread = False

    def _spares(self, guess: Guess) -> bool:
        """Whether a visit near to another may leave rows out, and how far they reach is needed."""
        is_large = self.n_features >= _LONG and self.n_entries >= _LARGE
        if not (is_large and guess.kind == CHI2 and self.has("bounds") and self.is_by_rows):
            return False
        return self._is_less(1.0 / guess.cap)  # no fewer rows have weight

    def _is_less(self, share: float) -> bool:
        """Whether to pick so many rows out costs less than to read all of them."""
        size = self.n_features * self.stored.itemsize
        return share * (_PICKED * size + _MEANWHILE) < size

    def _measure(self, loss: Any, w: Matrix, b: Vector, guess: Guess) -> Seen:
        """A reading of X that also tells ``||unit x_i||``."""
        unit, reach = self._unit(), np.empty(self.n_samples)
        seen = self._seen_in(self._storage, loss, w, b, guess, unit, reach)
        least, greatest = kernels.extremes(reach, vector_threads(reach.size))
        self._check(float(greatest / unit.min()))
        # Of what is so small nothing is known: its squares were rounded to 0, or nearly.
        if least < _NO_SIZE:
            reach[reach < _NO_SIZE] = math.inf
        self.reach = unit, reach
        return seen

    def _unit(self) -> Vector:
        """About one over the size of each feature."""
        unit = np.ones(self.n_features)
        count = max(1, min(_MEASURED, self.n_samples, _AT_ONCE // self.n_features))
        index = np.arange(count, dtype=np.int64) * self.n_samples // count
        some, _ = gathered(self.stored, index, np.float64)
        with np.errstate(over="ignore"):  # whoever reads all of it will say so
            size = np.sqrt(np.einsum("ij,ij->j", some, some) / count)
        np.divide(1.0, size, out=unit, where=(size > _NO_SIZE) & (size < 1.0 / _NO_SIZE))
        return unit

    @property
    def _work(self) -> tuple[int, int]:
        """In how many parts X is read, and by how many threads."""
        return self._n_parts, threads_for(self.n_entries)

    def _asked(self, loss: Any, w: Matrix, b: Vector) -> tuple[Any, ...]:
        """What kernels of visits are given between X and a guess."""
        model = np.ascontiguousarray(w[:, 0]), float(b[0]), loss.code, loss.parameter
        return *self._work, *model, self.y, self.shares, self.kernel_baseline

    def _seen_in(
        self,
        storage: tuple[Any, ...],
        loss: Any,
        w: Matrix,
        b: Vector,
        guess: Guess,
        unit: Vector = NONE,
        reach: Vector = NO_ROOM,
    ) -> Seen:
        """The same, wherever the entries are; and ``||unit x_i||`` or the norm of X in the room."""
        # In one piece: of fresh memory the system gives large pages to large pieces.
        raw, losses, slopes = np.empty((3, self.n_samples))
        first, second = np.empty((2, self.n_features + 1))
        n_bad, *masses = kernels.visit(
            *storage,
            *self._asked(loss, w, b),
            *guess,
            raw,
            losses,
            slopes,
            unit,
            reach,
            first,
            second,
        )
        ev = Evaluation(w, b, raw[:, None], losses, slopes[:, None])
        return Seen(ev, n_bad, tuple(masses), first, second)

    def _gradient(
        self, dlosses: Matrix, q: Vector, guess: Guess = NO_GUESS, seen: Seen | None = None
    ) -> Gradient:
        """After a visit with a guess, or without one."""
        if seen is None:
            self.require_finite()
        out = np.empty(self.n_features + 1)
        kernels.gradient_after(
            *self._storage,
            self._n_parts,
            threads_for(self.n_entries // (_LEFT if guess.kind else 1)),
            self.shares,
            q,
            q if seen is None else seen.evaluation.losses,
            np.ascontiguousarray(dlosses[:, 0]),
            *guess,
            *((0.0, 0.0, NONE, NONE) if seen is None else (*seen.masses, seen.first, seen.second)),
            out,
        )
        return Gradient(out[:-1, None], out[-1:])

    def apply(self, loss: Any, raw: Matrix) -> tuple[Vector, Matrix]:
        losses, dlosses = loss.evaluate(self.y, raw)
        return losses if self.baseline is None else losses - self.baseline, dlosses

    def weighted_sum(self, c: Matrix) -> Matrix:
        """``X' c`` in float64, shape (n_features, columns of c).

        With one column rows of large data whose entry is 0, as those outside of a tail, are not
        read.
        """
        X = self.X
        if self.n_entries >= _BEYOND_CACHE and self._is_one_by_rows(c.shape[1]):
            out = np.empty(self.n_features)
            kernels.sum_rows(*self._storage, *self._work, np.ascontiguousarray(c[:, 0]), out)
            return out[:, None]
        if X.dtype == np.float64:
            product = X.T @ (c[:, 0] if c.shape[1] == 1 else c)
            return product[:, None] if product.ndim == 1 else product
        out = np.zeros((self.n_features, c.shape[1]))
        for rows in self._chunks():
            out += X[rows].astype(np.float64).T @ c[rows]
        return out

    def gradient(self, dlosses: Matrix, q: Vector) -> Gradient:
        if self._is_one_by_rows(dlosses.shape[1]):
            return self._gradient(dlosses, q)
        if dlosses.shape[1] == 1:
            weighted = q * dlosses[:, 0]
            return Gradient(self.weighted_sum(weighted[:, None]), weighted.sum(keepdims=True))
        if self._is_narrow(dlosses.shape[1]):
            out, sums = np.empty((self.n_features, dlosses.shape[1])), np.empty(dlosses.shape[1])
            kernels.narrow_gradient(self.X, q, np.ascontiguousarray(dlosses), out, sums)
            return Gradient(out, sums)
        weighted = q[:, None] * dlosses
        return Gradient(self.weighted_sum(weighted), weighted.sum(axis=0))

    def _is_narrow(self, n_outputs: int) -> bool:
        """Whether there are several outputs, but so few that our own products are the faster."""
        is_few = 1 < n_outputs <= _NARROW
        return is_few and self.is_by_rows and self.stored.dtype == np.float64

    def centre(self) -> Vector:
        return self.weighted_sum(self.p[:, None])[:, 0]

    def dense(self, index: Index) -> Matrix:
        """Some rows of X as a dense float64 array."""
        if self.is_sparse:
            return np.ascontiguousarray(self.picked(index).toarray(), dtype=np.float64)
        return self._gathered(index, np.float64)

    def picked(self, index: Index) -> Any:
        """Some rows of X, as it is stored."""
        return self.X[index]

    def scaled_rows(self, index: Index, factors: Vector) -> Matrix:
        """Some rows of X as a dense float64 array, each times its factor."""
        if self.is_sparse:
            rows = self.dense(index)
            rows *= factors[:, None]
            return rows
        return self._gathered(index, np.float64, factors)

    def _gathered(self, index: Index, dtype: Any, factors: Vector = NONE) -> Array:
        return gathered(self.X, index, dtype, factors)[0]

    def weighted_squares(self, q: Vector) -> Vector:
        index = np.flatnonzero(q)
        return q[index] @ self.dense(index) ** 2

    def steepest_of(self, dlosses: Matrix, index: Index, lengths: Vector) -> float:
        return float((np.linalg.norm(dlosses[index], axis=1) * lengths).max())

    def drift(self, loss: Any, ev: Evaluation, index: Index, scale: float) -> float:
        rows = self.picked(index) if self.is_sparse else self.dense(index)
        off = np.abs(rows @ ev.w + ev.b - ev.raw[index])
        # What that makes of the losses, at most.
        slope = np.abs(ev.dlosses[index])
        if np.isfinite(loss.curvature):
            slope = np.minimum(slope + loss.curvature * off, loss.lipschitz)
        size = np.maximum(np.abs(ev.losses[index]), max(scale, np.finfo(float).tiny))
        return float((slope * off / size[:, None]).max())
