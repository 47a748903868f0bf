"""Rows on a device of torch: tensors that stay where they are.

X may be float32: products with it are summed in float64, as everything else is, so that a
certificate means the same as on arrays. Devices without float64 (Apple's) work in float32.
"""

from __future__ import annotations

import math
import warnings
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drago._validation import check_groups, check_nominal
from drago.files.checkpoint import fingerprint
from drago.oracles.tensors import TensorOracle, working_dtype
from drago.rows.base import Evaluation, Gradient, Index, Matrix, NonFiniteLossError, Vector
from drago.rows.memory import ArrayRows
from drago.rows.open import Opened
from drago.rows.tables.tensors import LinearTensorTables
from drago.rows.tensor_checks import (
    as_device,
    card_of_rank,
    check_features,
    check_target,
    check_weight,
    from_numpy,
    nominal_weights,
    on_host,
)
from drago.rows.tensor_curvature import TensorCurvature
from drago.rows.tensor_losses import on_tensors
from drago.rows.tensor_ranks import Ranks, as_group
from drago.rows.tensors import TensorVectors, by_label, to_host
from drago.terms.losses import Squared

Array = npt.NDArray[Any]

# Rows, and entries of X, that take a graphics card as long as it takes to tell it what to do.
_LEAST_PART, _SMALL = 1 << 20, 1 << 27
# A loss whose kernel gives raw predictions as well.
_PLAIN = Squared()


def open_rows(
    X: Tensor, y: Any, *, loss: Any, sample_weight: Any, groups: Any, process_group: Any = None
) -> Opened:
    """Tensors, see `drago.rows.open.open_rows`; y, weights and groups are brought to X.

    In a process group they are the rows of this rank, and the problem is about those of all ranks.
    """
    ranks = Ranks.of(as_group(process_group), 0)
    given = ranks.agreed(lambda: _checked(X, y, loss, sample_weight, groups))
    X, y, labels, weight = given
    n, device = int(X.shape[0]), X.device
    ranks.require_alike(
        n_features=X.shape[1],
        dtype=str(X.dtype),
        device=device.type,
        loss=repr(loss),
        sample_weight=weight is not None,
        groups=labels is not None,
    )
    ranks = ranks.anew(n)
    p, kept = nominal_weights(weight, n, device, ranks)
    mask = None
    if kept is not None:
        mask = on_host(kept)
        X, y, labels = X[kept], y[kept], None if labels is None else labels[mask]
    ranks = ranks.anew(int(p.shape[0]))
    place = None if labels is None else torch.from_numpy(ranks.numbers(labels)).to(device)
    rows = TensorRows(
        X, y, p, place, is_uniform=sample_weight is None, gives_tensors=True, ranks=ranks
    )
    return Opened(rows, mask, int(rows.top(y)) + 1 if loss.has_class_hessian else 1)


def _checked(X: Any, y: Any, loss: Any, sample_weight: Any, groups: Any) -> tuple[Any, ...]:
    """Features, target, labels of the groups and weights that can be worked with, on one device."""
    on_tensors(loss)  # says why not
    X = check_features(X)
    n, device = X.shape[0], X.device
    y = check_target(y, n, loss, device)
    labels = None if groups is None else on_host(groups)
    if labels is not None:
        check_groups(labels, n)
        labels = np.asarray(labels)
    weight = None if sample_weight is None else check_weight(sample_weight, n, device)
    return X, y, labels, weight


def moved(
    rows: Any, device: Any, loss: Any, uncertainty: Any, process_group: Any = None
) -> TensorVectors:
    """Rows on arrays or tensors, on a device; the results of a problem on arrays are arrays.

    In a process group every rank gives the same arrays, and takes its share of the rows.
    """
    place = as_device(device)
    if isinstance(rows, TensorVectors):
        here = rows.device
        same = here.type == place.type and place.index in (None, here.index)
        return rows if same else rows.moved(place)
    if rows.is_sparse:
        raise TypeError(
            "the torch engine takes dense features, but X is sparse: leave device=None, or "
            "give X.toarray() if that fits into memory."
        )
    on_tensors(loss)
    if uncertainty.is_users:
        TensorOracle(uncertainty)  # says why not
    ranks = _shares(as_group(process_group), rows)
    place = place if ranks.is_alone else card_of_rank(place)
    kind, p = working_dtype(place), ranks.own(rows.p)
    X = from_numpy(ranks.own(rows.X))
    if kind == torch.float32:
        X = X.float()
    y = from_numpy(ranks.own(rows.y))
    groups, baseline = rows.groups, rows.baseline
    return TensorRows(
        X.contiguous().to(place),
        y.to(place, y.dtype if y.dtype == torch.int64 else kind),
        from_numpy(p).to(place, kind),
        None if groups is None else from_numpy(ranks.own(groups)).to(place),
        is_uniform=rows.shares.size == 1,
        gives_tensors=False,
        baseline=None if baseline is None else from_numpy(ranks.own(baseline)).to(place, kind),
        ranks=ranks,
    )


def _shares(group: Any, rows: Any) -> Ranks:
    """Equal shares of rows that all ranks have."""
    n = rows.n_samples
    if group is None:
        return Ranks(None, (n,))
    ranks = Ranks.of(group, 0)
    ends = [n * k // ranks.size for k in range(ranks.size + 1)]
    p, y = float(rows.p @ rows.p), float(rows.y @ rows.p)
    ranks.require_alike(n_samples=n, n_features=rows.n_features, y=y, sample_weight=p)
    return Ranks(group, np.diff(ends).tolist())


class TensorRows(TensorCurvature):
    """The rows of a tensor.

    Parameters
    ----------
    X : tensor of shape (n, n_features)
        float32 or float64, on any device, where the others are too.
    y, p, groups : tensors of shape (n,)
        `groups` may be None.
    is_uniform : bool
        Whether all of `p` is equal.
    gives_tensors : bool
        Whether vectors of results are tensors, too.
    baseline : tensor of shape (n,) or None
        What is subtracted from the losses.
    ranks : Ranks, optional
        Who else has rows; by default this process is alone.
    """

    capabilities = frozenset({"responses", "tables"})

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        p: Tensor,
        groups: Tensor | None,
        *,
        is_uniform: bool,
        gives_tensors: bool,
        baseline: Tensor | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(p, groups, is_uniform, gives_tensors, baseline, ranks)
        self.X, self.y = X, y
        self.n_features = int(X.shape[1])
        self.n_entries = self.n_samples * self.n_features

    def replaced(self, **changes: Any) -> TensorRows:
        """The same rows but for this."""
        return TensorRows(**(self.__getstate__() | changes))

    def __getstate__(self) -> dict[str, Any]:
        names = ("X", "y", "p", "groups", "baseline", "is_uniform", "gives_tensors", "ranks")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @cached_property
    def in_float64(self) -> TensorRows:
        """Themselves; on the processor where the device has no float64."""
        if self.p.dtype == torch.float64:
            return self
        p = self.p.cpu().double()
        return self.replaced(
            X=self.X.cpu().double(),
            y=self.y.cpu() if self.y.dtype == torch.int64 else self.y.cpu().double(),
            p=p / self.ranks.sum(p.sum()),
            groups=None if self.groups is None else self.groups.cpu(),
            baseline=None if self.baseline is None else self.baseline.cpu().double(),
        )

    def tables(
        self, problem: Any, kind: str, count: int, n_threads: int | None
    ) -> LinearTensorTables:
        return LinearTensorTables(self, problem, kind, count)

    @property
    def least_part(self) -> int:  # type: ignore[override]
        return _LEAST_PART if self.device.type == "cuda" else TensorVectors.least_part

    @property
    def small(self) -> int:  # type: ignore[override]
        return _SMALL if self.device.type == "cuda" else TensorVectors.small

    def has_cheap_gram(self, loss: Any) -> bool:
        return self.device.type == "cuda" and loss.is_quadratic

    @cached_property
    def kernels(self) -> Any:
        """Fused kernels for the passes with one output, where there are some for this device."""
        return _fused_passes(self.device) if self.device.type == "cuda" else None

    def kernels_for(self, loss: Any) -> Any:
        return None if loss.has_class_hessian else self.kernels

    @cached_property
    def norms(self) -> Tensor:
        """Squares of the euclidean norms of the rows."""
        square = torch.empty_like(self.p)
        for rows in self._chunks():
            square[rows] = (self.X[rows].to(self.p) ** 2).sum(1)
        return square

    def row_norms(self, intercept: bool) -> Tensor:
        """Euclidean norms of the rows, with a last 1 for an intercept."""
        return torch.sqrt(self.norms + float(intercept))

    def longest(self, intercept: bool) -> float:
        return self.greatest(self.row_norms(intercept))

    def steepest(self, b: float, radius: float, intercept: bool) -> float:
        norms = self.row_norms(intercept)
        return self.greatest(((self.y - b).abs() + norms * radius) * norms)

    # ------------------------------------------------------------------------ in and out

    def moved(self, place: torch.device) -> TensorRows:
        """The same rows on another device."""
        kind = working_dtype(place)
        p = self.p.to(place, kind)
        return self.replaced(
            X=(self.X.float() if kind == torch.float32 else self.X).to(place),
            y=self.y.to(place, self.y.dtype if self.y.dtype == torch.int64 else kind),
            p=p / self.ranks.sum(p.sum()),
            groups=None if self.groups is None else self.groups.to(place),
            baseline=None if self.baseline is None else self.baseline.to(place, kind),
        )

    def content(self) -> tuple[Any, ...]:
        given = (self.X, self.y, self.p, self.groups, self.baseline)
        arrays = [None if each is None else each.cpu().numpy() for each in given]
        return (
            tuple(arrays) if self.ranks.is_alone else tuple(self.ranks.texts(fingerprint(*arrays)))
        )

    def take(self, index: Index) -> TensorRows:
        _, place = self.local(index)
        p, groups, ranks = self.p[place], self.groups, self.ranks.anew(int(place.shape[0]))
        if groups is not None:
            groups = torch.from_numpy(ranks.numbers(groups[place].cpu().numpy())).to(self.device)
        return self.replaced(
            X=self.X.index_select(0, place),
            y=self.y[place],
            p=p / ranks.sum(p.sum()),
            groups=groups,
            baseline=None if self.baseline is None else self.baseline[place],
            ranks=ranks,
        )

    def sample(self, index: Index) -> ArrayRows:
        _, place = self.local(index)
        given = [self.X.index_select(0, place), self.y[place], self.p[place]]
        if self.baseline is not None:
            given.append(self.baseline[place])
        if not self.ranks.is_alone:
            # Numbers of rows ascend, so those of the ranks follow each other.
            counts = self.ranks.anew(int(place.shape[0])).counts
            given = [self.ranks.joined(values, counts) for values in given]
        X, y, p, *baseline = map(to_host, given)
        return ArrayRows(X, y, p / p.sum(), baseline=baseline[0] if baseline else None)

    def with_baseline(self, baseline: Tensor | None) -> TensorRows:
        return self.replaced(baseline=baseline)

    def condensed(self, n_classes: int) -> TensorRows | None:
        if self.baseline is not None:
            return None
        labels = self.y.to(torch.int64)
        if self.groups is not None:
            labels = labels + n_classes * self.groups
        cells = int(self.top(labels)) + 1
        if cells > self.n_samples:
            return None
        if self.is_uniform:  # counted, so that the number of ranks changes no bit
            here = torch.bincount(labels, minlength=cells).to(self.p.dtype)
        else:
            here = by_label(labels, self.p, cells)
        mass = to_host(self.ranks.sum(here))
        there = np.flatnonzero(mass)
        mass = check_nominal(mass[there] / mass.sum())
        kind = self.p.dtype
        return self.replaced(
            X=torch.zeros((there.size, 1), dtype=kind),
            y=torch.from_numpy(there % n_classes).to(self.y.dtype),
            p=torch.from_numpy(mass).to(kind),
            is_uniform=False,
            groups=None if self.groups is None else torch.from_numpy(there // n_classes),
            ranks=None,
        )

    # ------------------------------------------------------------------------ visits to X

    def _chunks(self) -> list[slice]:
        rows = max(1, self._chunk // self.n_features)
        return [slice(k, min(k + rows, self.n_here)) for k in range(0, self.n_here, rows)]

    def predict(self, w: Matrix, b: Vector) -> Tensor:
        if not w.any():
            return self.on_device(b).expand(self.n_here, -1).contiguous()
        return self.predicted(self.on_device(w), self.on_device(b))

    def predicted(self, w: Tensor, b: Tensor) -> Tensor:
        """``X w + b`` for coefficients on the device."""
        if self.kernels is not None and w.shape[1] == 1:
            raw = torch.empty_like(self.p)
            unused = torch.empty_like(self.p), torch.empty_like(self.p)
            self.fill(_PLAIN, w, b, *unused, raw)
            return raw[:, None]
        if self.X.dtype == w.dtype:
            return self.X @ w + b
        raw = torch.empty((self.n_here, w.shape[1]), dtype=w.dtype, device=self.device)
        for rows in self._chunks():
            torch.matmul(self.X[rows].to(w.dtype), w, out=raw[rows])
        return raw.add_(b)

    def apply(self, loss: Any, raw: Tensor) -> tuple[Tensor, Tensor]:
        losses, slopes = on_tensors(loss).evaluate(self.y, raw)
        return losses if self.baseline is None else losses - self.baseline, slopes

    def evaluate(self, loss: Any, w: Matrix, b: Vector, raw: Any = None) -> Evaluation:
        if raw is None and self.kernels_for(loss) is not None and w.any():
            losses, slopes, raw = (torch.empty_like(self.p) for _ in range(3))
            self.fill(loss, self.on_device(w), self.on_device(b), losses, slopes, raw)
            slopes, raw = slopes[:, None], raw[:, None]
        else:
            raw = self.predict(w, b) if raw is None else raw
            losses, slopes = self.apply(loss, raw)
        if not math.isfinite(float(self.ranks.sum(losses.sum() + slopes.sum()))):
            self._require_finite(loss, raw, losses, slopes)
        return Evaluation(w, b, raw, losses, slopes)

    def _require_finite(self, loss: Any, raw: Tensor, losses: Tensor, slopes: Tensor) -> None:
        """Raise, on all ranks, where a loss or a slope on one of them is not finite."""
        bad = torch.nonzero(~(torch.isfinite(losses) & torch.isfinite(slopes).all(1)))[:, 0]
        count = self._on_all_ranks(int(bad.shape[0]))
        if count == 0:
            return
        first = ""
        if bad.shape[0]:
            i = int(bad[0])
            first = f"first on row {self.ranks.start + i} at the raw prediction {raw[i].tolist()}"
        first = next(text for text in self.ranks.texts(first) if text)
        raise NonFiniteLossError(
            f"the loss {loss.name!r} is NaN or infinite on {count} rows, {first}; scale the "
            "features and the target."
        )

    def accumulate(self, c: Tensor) -> Tensor:
        """``X' c`` on the device, of the rows here."""
        if self.kernels is not None and c.shape[1] == 1:
            return self.kernels.accumulate(self.X, c[:, 0], *self.all_rows)[0][:, None]
        if self.X.dtype == c.dtype:
            return self.X.T @ c
        out = torch.zeros((self.n_features, c.shape[1]), dtype=c.dtype, device=self.device)
        for rows in self._chunks():
            out.addmm_(self.X[rows].to(c.dtype).T, c[rows])
        return out

    @cached_property
    def all_rows(self) -> tuple[Any, Tensor]:
        """All rows as one block, and its name, for the fused kernels."""
        starts = torch.tensor([0, self.n_here], device=self.device)
        return self.kernels.Rows(starts, 1, 1, self.n_here), starts[:1]

    def fill(
        self, loss: Any, w: Tensor, b: Tensor, losses: Tensor, slopes: Tensor, raw: Tensor
    ) -> None:
        """Losses, derivatives and raw predictions by the fused kernel, written to vectors."""
        self.kernels.evaluate(
            self.X, self.y, w[:, 0], b, *self.all_rows, losses, slopes, raw,
            code=loss.code, parameter=loss.parameter,
        )  # fmt: skip
        if self.baseline is not None:
            losses -= self.baseline

    def gradient(self, dlosses: Tensor, q: Tensor) -> Gradient:
        weighted = q[:, None] * dlosses
        if self.kernels is not None and weighted.shape[1] == 1:
            sums = self.kernels.accumulate(self.X, weighted[:, 0], *self.all_rows)
            both = torch.cat(sums)[:, None]
        else:
            both = torch.cat([self.accumulate(weighted), weighted.sum(0, keepdim=True)])
        found = to_host(self.ranks.sum(both))
        return Gradient(found[:-1], found[-1])

    def weighted_sum(self, c: Tensor) -> Matrix:
        """``X' c``."""
        return to_host(self.ranks.sum(self.accumulate(c)))

    def centre(self) -> Vector:
        return self.weighted_sum(self.p[:, None])[:, 0]

    def weighted_squares(self, q: Tensor) -> Vector:
        out = self.p.new_zeros(self.n_features)
        for rows in self._chunks():
            out += q[rows] @ self.X[rows].to(self.p.dtype) ** 2
        return to_host(self.ranks.sum(out))

    def drift(self, loss: Any, ev: Evaluation, index: Index, scale: float) -> float:
        _, place = self.local(index)
        rows = self.X.index_select(0, place).to(self.p.dtype)
        off = (rows @ self.on_device(ev.w) + self.on_device(ev.b) - ev.raw[place]).abs()
        slope = ev.dlosses[place].abs()
        if np.isfinite(loss.curvature):
            slope = (slope + loss.curvature * off).clamp(max=loss.lipschitz)
        size = ev.losses[place].abs().clamp(min=max(scale, np.finfo(float).tiny))
        return self.greatest(slope * off / size[:, None])


@cache
def _fused_passes(device: torch.device) -> Any:
    """The module of fused passes, None where it cannot be used."""
    if torch.version.hip is not None:
        return None
    try:
        from drago.rows import fused
    except ImportError:
        return None
    rows = fused.Rows.deal(1, device=device)
    one, two, three = (torch.ones(1, dtype=torch.float64, device=device) for _ in range(3))
    block = torch.zeros(1, dtype=torch.int64, device=device)
    try:
        fused.evaluate(one.view(1, 1), one, one, one, rows, block, two, three, code=0)
    except Exception as error:  # of many kinds: no compiler, an old version, another card
        warnings.warn(
            f"the fused passes on {device} could not be built, plain ones instead: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return fused
