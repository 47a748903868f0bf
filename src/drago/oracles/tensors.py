"""Exact dual maximisation on tensors: ``argmax over q in Q of <u, q> - c Omega(q)``.

The same maps as the oracles of `drago.terms.uncertainty`, as operations on tensors.
No value is read back, and which operations run depends on shapes and on the set alone: calls can be
recorded in a CUDA graph and compiled by `torch.compile` (for `Spectrum`, see `TensorOracle`).

Everything is computed in float64, whatever comes in, and rounded at the end: thresholds are sums
over all rows and differences of losses are divided by ``c``, which float32 would not survive. Where
a device has no float64 (Apple's), float32 is what there is.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drago._validation import shown
from drago.oracles import search
from drago.oracles.pools import spectral
from drago.oracles.spectra import Spectra
from drago.oracles.thresholds import (
    capped_chi2,
    capped_kl,
    capped_vertex,
    chi2_ball,
    is_zero,
    kl_ball,
)
from drago.terms.divergences import Divergence
from drago.terms.uncertainty import (
    ESRM,
    Chi2Ball,
    CVaR,
    Extremile,
    Grouped,
    KLBall,
    Simplex,
    SpectralSet,
    Spectrum,
    as_uncertainty,
)
from drago.terms.uncertainty.capped import ON_BOUND

_SETS = (CVaR, Simplex, Chi2Ball, KLBall, Extremile, ESRM, Spectrum)


def working_dtype(device: torch.device) -> torch.dtype:
    """float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _check_rows(**vectors: Tensor | None) -> None:
    """An error where tensors are no vectors of one length, which they would be broadcast to."""
    given = {name: values for name, values in vectors.items() if values is not None}
    for name, values in given.items():
        if not isinstance(values, Tensor):
            raise TypeError(f"{name} must be a tensor, but {shown(values)} was given.")
    shapes = [tuple(values.shape) for values in given.values()]
    if any(len(shape) != 1 or shape != shapes[0] or shape[0] == 0 for shape in shapes):
        raise ValueError(
            f"{', '.join(given)} must be vectors of one length, at least 1, but have the shapes "
            f"{', '.join(map(str, shapes))}."
        )


class TensorOracle:
    """The dual oracle of a set, for tensors of any length.

    Parameters
    ----------
    uncertainty : UncertaintySet or str, default="cvar"
        As for `drago.DROProblem`, but for a user's own set, which works on arrays. A copy is kept.
    divergence : {"auto", "chi2", "kl"} or Divergence, default="auto"

    Notes
    -----
    `Spectrum` calls a user's function, which works on arrays. Its values for a number of rows of
    equal weight are asked for once and kept. With ``integral=`` and unequal weights every call
    makes a round trip to the processor; with ``density=`` none does.

    Examples
    --------
    >>> import torch
    >>> from drago import CVaR
    >>> from drago.torch_engine import TensorOracle
    >>> TensorOracle(CVaR(0.5)).weights(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.0)
    tensor([0.0000, 0.0000, 0.5000, 0.5000])
    """

    def __init__(self, uncertainty: Any = "cvar", divergence: Divergence | str = "auto") -> None:
        given = copy.deepcopy(as_uncertainty(uncertainty))
        self.divergence = given.match(divergence)
        given.lock()
        self.uncertainty = given
        self.grouped = isinstance(given, Grouped)
        self._inner = given._inner if isinstance(given, Grouped) else given
        if not isinstance(self._inner, _SETS):
            raise TypeError(
                "the torch engine takes the built-in sets, but a set of one's own "
                f"({type(getattr(self._inner, 'given', self._inner)).__name__}) was given: its "
                "worst_case works on arrays. Use drago.solve for it."
            )
        self._spectra = Spectra(self._inner) if isinstance(self._inner, SpectralSet) else None

    def weights(
        self,
        u: Tensor,
        c: float | Tensor,
        p: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> Tensor:
        """``argmax over q in Q of <u, q> - c Omega(q)``.

        Parameters
        ----------
        u : tensor of shape (n,)
            Losses, or the shifted vector of a proximal step.
        c : float or tensor of shape ()
            Price of moving away from `p`; 0 gives a vertex of the set, where equal losses share in
            proportion to `p`. The value of a tensor is not read: it must be positive.
        p : tensor of shape (n,), optional
            Nominal weights, nonnegative with sum 1; uniform by default. Rows of weight 0 take no
            part and may have any loss.
        groups : integer tensor of shape (n,), optional
            The group of each row, any integers; for `Grouped` alone.

        Returns
        -------
        q : tensor of shape (n,)
            In the dtype of `u`, float32 at least. NaN where `u` is not finite.
        """
        _check_rows(u=u, p=p, groups=groups)
        if groups is not None and (groups.is_floating_point() or groups.is_complex()):
            raise TypeError(
                f"groups must hold integers, but their dtype is {groups.dtype}; number the groups."
            )
        out = torch.promote_types(u.dtype, torch.float32)
        q = self.exact_weights(u.to(working_dtype(u.device)), c, p, groups)
        return q.to(out)

    def searched(
        self,
        u: Tensor,
        c: float | Tensor,
        p: Tensor | None,
        out: Tensor | None = None,
        memory: Tensor | None = None,
    ) -> Tensor | None:
        """`exact_weights` by a search without a sort, where there is one for the set and device.

        See `drago.oracles.search.weights` for `out` and `memory`.
        """
        kind, bound, name = self._inner, math.inf, self.divergence.name
        if self.grouped or not isinstance(kind, (CVaR, Simplex, Chi2Ball, KLBall)):
            return None
        if not search.takes(u, p, c):
            return None
        way = search.CHI2 if name == "chi2" else search.KL
        if isinstance(kind, CVaR):
            bound = 1.0 / float(kind.tail_fraction)
        if isinstance(kind, (Chi2Ball, KLBall)):
            way = search.BALL if isinstance(kind, Chi2Ball) else search.KL_BALL
            bound = float(kind.radius)
        elif is_zero(c):
            way = search.VERTEX
        if bound <= (0.0 if way in (search.BALL, search.KL_BALL) else 1.0):
            return None
        if not search.searches(way, bound, u.device):
            return None
        return search.weights(way, u, p, c, bound, out, memory)

    def exact_weights(
        self, u: Tensor, c: float | Tensor, p: Tensor | None, groups: Tensor | None
    ) -> Tensor:
        """`weights` in the working dtype, which `u` has."""
        n = int(u.shape[0])
        nominal = torch.full_like(u, 1.0 / n) if p is None else p.to(u)
        # Rows without weight carry the smallest loss of the others, where they change nothing.
        live = nominal > 0
        finite = (torch.isfinite(u) | ~live).all()
        u = torch.where(live, u, torch.where(live, u, math.inf).amin())
        if self.grouped:
            if groups is None:
                raise ValueError("Grouped needs to know the group of each row: give groups=.")
            q = self._by_group(u, c, nominal, groups)
        else:
            q = self._rows(u, c, nominal, p is None)
        return torch.where(finite, q, math.nan)

    def distance(self, q: Tensor, p: Tensor | None = None) -> Tensor:
        """``D(q || p)``, a tensor of shape (); `p` is uniform by default."""
        _check_rows(q=q, p=p)
        return self._distance(q, p)

    def _distance(self, q: Tensor, p: Tensor | None) -> Tensor:
        n = int(q.shape[0])
        p = torch.full_like(q, 1.0 / n) if p is None else p.to(q)
        ratio = torch.where(p > 0, q / torch.where(p > 0, p, 1.0), 1.0)
        if self.divergence.name == "chi2":
            return 0.5 * (p * (ratio - 1.0) ** 2).sum()
        # x log x - (x - 1) instead of x log x: the same in sum, and accurate where q is close to p.
        return (p * (torch.xlogy(ratio, ratio) - (ratio - 1.0))).sum()

    def _by_group(self, u: Tensor, c: float | Tensor, p: Tensor, groups: Tensor) -> Tensor:
        """As many groups as rows are provided for, so that nothing has to be counted."""
        ordered, order = groups.sort()
        new = torch.zeros_like(ordered)
        new[1:] = (ordered[1:] != ordered[:-1]).to(ordered.dtype)
        label = torch.zeros_like(order).scatter(0, order, new.cumsum(0))
        mass = torch.zeros_like(p).index_add(0, label, p)
        # From the maximum, so that equal losses give equal means and a constant changes nothing.
        total = torch.zeros_like(p).index_add(0, label, p * (u - u.amax()))
        some = mass > 0
        safe = torch.where(some, mass, 1.0)
        mean = total / safe
        mean = torch.where(some, mean, torch.where(some, mean, math.inf).amin())
        return p * (self._weights_of_means(mean, c, mass) / safe).gather(0, label)

    def _weights_of_means(self, mean: Tensor, c: float | Tensor, mass: Tensor) -> Tensor:
        """The weights of groups with these mean losses and masses."""
        return self._rows(mean, c, mass / mass.sum(), False)

    def _rows(self, u: Tensor, c: float | Tensor, p: Tensor, uniform: bool) -> Tensor:
        kind, name = self._inner, self.divergence.name
        if self._spectra is not None:
            return spectral(u, p, c, name, self._spectra, uniform)
        if isinstance(kind, Chi2Ball):
            return chi2_ball(u, p, c, float(kind.radius))
        if isinstance(kind, KLBall):
            return kl_ball(u, p, c, float(kind.radius))
        cap = 1.0 / float(kind.tail_fraction) if isinstance(kind, CVaR) else math.inf
        if is_zero(c):
            return capped_vertex(u, p, cap)
        return (capped_chi2 if name == "chi2" else capped_kl)(u, p, c, cap)


@dataclass(frozen=True)
class TensorResponse:
    """How weights move with the losses, ``dq_i = rate_i (du_i - m)``, all together.

    ``m`` is the mean of ``du`` weighted by the rates, which are 0 for rows that do not move.
    """

    rate: Tensor


class BoundOracle:
    """A `TensorOracle` with the nominal weights of a store's rows."""

    def __init__(self, rows: Any, oracle: TensorOracle) -> None:
        self.rows, self.oracle = rows, oracle
        self.p = None if rows.is_uniform else rows.p
        self._memory = search.new_memory(rows.device)
        self._mass = rows.by_group(rows.p) if oracle.grouped else None

    @property
    def memory(self) -> dict[str, float]:
        """Where the last search ended, as files hold it."""
        return dict(zip(("threshold", "moved", "passes"), self._memory.tolist()))

    @memory.setter
    def memory(self, values: dict[str, float]) -> None:
        self._memory.copy_(torch.tensor(list(values.values())))

    def weights(self, u: Tensor, c: float | Tensor, out: Tensor | None = None) -> Tensor:
        """``argmax over q in Q of <u, q> - c Omega(q)``; it starts where its last search ended."""
        found = self.oracle.searched(u, c, self.p, out, self._memory)
        if found is not None:
            return found
        if self._mass is None:
            q = self.oracle.exact_weights(u, c, self.p, None)
        else:
            q = self._of_groups(u, c, self._mass)
        return q if out is None else out.copy_(q)

    def _of_groups(self, u: Tensor, c: float | Tensor, mass: Tensor) -> Tensor:
        """The rows of a group share its weight; these are in their order once and for all."""
        rows = self.rows
        # From the maximum, so that equal losses give equal means and a constant changes nothing.
        mean = rows.by_group(rows.p * (u - rows.top(u))) / mass
        r = self.oracle._weights_of_means(mean, c, mass)
        return rows.p * (r / mass)[rows.groups]

    def response(
        self, u: Tensor, c: float, q: Tensor | None = None
    ) -> tuple[Tensor, TensorResponse | None]:
        """The weights and their derivative, which is known for `CVaR` and the simplex."""
        q = self.weights(u, c) if q is None else q
        if not self.oracle.uncertainty.is_capped or is_zero(c):
            return q, None
        is_chi2 = self.oracle.divergence.is_chi2
        rate = (self.rows.p if is_chi2 else q) / c
        return q, TensorResponse(torch.where(self._is_free(q), rate, 0.0))

    def with_mirror(self, u: Tensor, c: float) -> tuple[Tensor, Tensor]:
        """`weights` of `CVaR` and the simplex, and their mirror coordinate.

        With KL that is ``min((u_i - tau) / c, log cap)``, finite where a weight underflows; tau is
        read off the heaviest free row, or the least loss at the cap.
        """
        q = self.weights(u, c)
        ratio = self.rows.relative(q)
        if self.oracle.divergence.is_chi2:
            return q, ratio
        top, free = math.log(self._cap), self._is_free(q)
        place = torch.where(free, q, -1.0).argmax(0, keepdim=True)
        at_cap = torch.where(q > 0, u, math.inf).amin() - c * top
        of_free = u.gather(0, place) - c * torch.log(ratio.gather(0, place))
        tau = torch.where(free.any(), of_free, at_cap)
        return q, ((u - tau) / c).clamp(max=top)

    @property
    def _cap(self) -> float:
        share = self.oracle.uncertainty.tail_share
        return math.inf if share is None else 1.0 / share

    def _is_free(self, q: Tensor) -> Tensor:
        """Which weights lie between their bounds."""
        return (q > 0) & (q < self._cap * (1.0 - ON_BOUND) * self.rows.p)
