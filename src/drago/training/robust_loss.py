"""Robust losses of minibatches, for training with autograd.

``max over q in Q of <q, losses> - nu D(q || p)`` of the losses in a batch, and its gradient: the
worst-case weights themselves (the envelope theorem), so that a backward pass costs what that of the
mean loss costs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from drago._validation import check_flag, check_number, refuse_masked, shown
from drago.oracles.tensors import TensorOracle, working_dtype
from drago.terms.divergences import Divergence
from drago.training.gather import gather


class _Refused(torch.autograd.Function):
    """The gradient; its own gradient would take the weights for constant, and is refused."""

    @staticmethod
    def forward(gradient: Tensor, losses: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        raise RuntimeError(
            "a robust loss has no second derivative: the worst-case weights move with the losses. "
            "Take RobustLoss.weights as constants, (weights * losses).sum(), if that is meant."
        )


class _Envelope(torch.autograd.Function):
    """A value that was found before, with the slope that it has in the losses."""

    @staticmethod
    def forward(losses: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        losses, _, slope = inputs
        ctx.save_for_backward(losses, slope)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        losses, slope = ctx.saved_tensors
        gradient = grads[0] * slope
        if torch.is_grad_enabled():
            gradient = _Refused.apply(gradient, losses)
        return gradient, None, None


class RobustLoss(nn.Module):
    """The robust loss of a batch of per-sample losses.

    It takes the place of ``losses.mean()``: compute the losses with ``reduction="none"``, and call
    ``backward`` on what it returns.

    Parameters
    ----------
    uncertainty : UncertaintySet or str, default="cvar"
        The set of reweightings, as for `drago.DROProblem`. It is given by a level, so batches may
        have any size. A copy is kept.
    divergence : {"auto", "chi2", "kl"} or Divergence, default="auto"
    shift_cost : float, default=0.0
        The price nu of a reweighting, in the unit of the loss. With a positive one the robust loss
        is differentiable everywhere; without one, ties give a subgradient, in which they share.
    check_finite : bool, default=False
        Raise if a loss is NaN or infinite, or a weight negative. That takes a look at the values,
        for which a GPU has to wait. Without it the loss and its gradient are NaN in that case,
        which `torch.amp.GradScaler` takes for an overflow: it skips the step.
    process_group : ProcessGroup, optional
        With `DistributedDataParallel`: the ranks whose batches form one. All of them are
        ``torch.distributed.group.WORLD``.
    equal_batches : bool, default=False
        Says that the batches of all ranks have one size, which is not exchanged then: a GPU would
        have to wait for it. It has to be true, for nothing checks it.

    Notes
    -----
    A robust loss of batches is biased. The worst case is found within each batch, so what is
    minimised is the mean over batches of their robust losses, not the robust loss of the data. It
    lies below (except with `Grouped`), for the robust loss is concave in the distribution of the
    losses. For CVaR with tail fraction a, batches of m samples and losses in [0, B], it is short by
    at most the order of ``B / sqrt(a m)`` [1]_. Where the losses have a density f at the threshold
    of the tail, it is short by ``(1 - a) / (2 f m)`` and by terms that vanish faster: of order 1/m,
    but f is small for small a; exponential losses have f = a. A shift cost helps: with chi2 and no
    cap, it is at most of the order ``B^2 / (nu m)`` [1]_. So the batch should hold many samples of
    the tail, ``a m`` of 10 and more. With `Grouped` it may also lie above, as the largest of a few
    noisy means does. `drago.solve` has no such bias.

    Second derivatives are refused: the weights move with the losses, and not smoothly.

    float16 and bfloat16 losses give a float32 result, others one of their own kind. Inside, all is
    float64, so float32 losses of 1e30 are in range.

    With `process_group` the losses of all ranks are gathered, the worst case is found over all of
    them, and every rank returns this one loss. Its gradient with respect to a rank's own losses is
    multiplied by the number of ranks, for `DistributedDataParallel` takes the mean of gradients:
    what comes out is the gradient of the loss of the whole batch. All ranks have to take part, with
    the same arguments and at least one sample.

    `torch.compile` makes one graph of it, but not with a process group or a `Spectrum`, which calls
    a function of one's own.

    References
    ----------
    .. [1] D. Levy, Y. Carmon, J. C. Duchi and A. Sidford, "Large-Scale Methods for Distributionally
       Robust Optimization", NeurIPS 2020.

    Examples
    --------
    >>> import torch
    >>> from drago import CVaR
    >>> from drago.torch_engine import RobustLoss
    >>> losses = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    >>> value = RobustLoss(CVaR(0.5), shift_cost=0.0)(losses)
    >>> value.backward()
    >>> value.item(), losses.grad.tolist()
    (3.5, [0.0, 0.0, 0.5, 0.5])
    """

    def __init__(
        self,
        uncertainty: Any = "cvar",
        divergence: Divergence | str = "auto",
        shift_cost: float = 0.0,
        *,
        check_finite: bool = False,
        process_group: Any = None,
        equal_batches: bool = False,
    ) -> None:
        super().__init__()
        self.oracle = TensorOracle(uncertainty, divergence)
        self.shift_cost = check_number("shift_cost", shift_cost, low=0)
        self.check_finite = check_flag("check_finite", check_finite)
        self.process_group = process_group
        self.equal_batches = check_flag("equal_batches", equal_batches)

    def extra_repr(self) -> str:
        return (
            f"{self.oracle.uncertainty!r}, divergence={self.oracle.divergence.name!r}, "
            f"shift_cost={self.shift_cost:g}"
        )

    def forward(
        self,
        losses: Tensor,
        sample_weight: Tensor | None = None,
        groups: Tensor | None = None,
        baseline: Tensor | None = None,
    ) -> Tensor:
        """The robust loss, a tensor of shape ().

        Parameters
        ----------
        losses : tensor of shape (n,) or (n, 1)
            One loss per sample.
        sample_weight : tensor of shape (n,), optional
            Nominal weights, nonnegative; uniform by default. They need not sum to 1. Samples of
            weight 0 take no part, and their losses may be anything.
        groups : integer tensor of shape (n,), optional
            The group of each sample, for `Grouped`. Groups that a batch lacks are no trouble.
        baseline : tensor of shape (n,), optional
            Subtracted from the losses, as in `drago.DROProblem`: what is attainable on each sample,
            from a model that has not seen it. It gets no gradient.
        """
        losses = _less(losses, baseline)
        value, q = self._solve(losses, sample_weight, groups)
        if self.process_group is not None:
            q = q * torch.distributed.get_world_size(self.process_group)
        return _Envelope.apply(losses, value, q)

    def weights(
        self,
        losses: Tensor,
        sample_weight: Tensor | None = None,
        groups: Tensor | None = None,
        baseline: Tensor | None = None,
    ) -> Tensor:
        """The worst-case weights of the samples, in the shape of the losses, without a gradient.

        They sum to 1; with a process group, over all ranks.
        """
        return self._solve(_less(losses, baseline), sample_weight, groups)[1]

    @torch.no_grad()
    def _solve(
        self, losses: Tensor, sample_weight: Tensor | None, groups: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The value, and the weights in the shape of the losses."""
        n = _check_losses(losses)
        if self.oracle.grouped and groups is None:
            raise ValueError(
                f"{self.oracle.uncertainty!r} needs the group of each sample: groups=."
            )
        if groups is not None and not self.oracle.grouped:
            given = self.oracle.uncertainty
            raise ValueError(
                f"groups was given, but {given!r} has no use for it; Grouped({given!r}) has."
            )
        u: Tensor | None = losses.reshape(-1).to(working_dtype(losses.device))
        weight = None if sample_weight is None else _column("sample_weight", sample_weight, losses)
        label = None if groups is None else _column("groups", groups, losses)
        weight = None if weight is None else weight.to(working_dtype(losses.device))
        begin = 0
        if self.process_group is not None:
            (u, weight, label), begin = gather(
                self.process_group, self.equal_batches, u, weight, label
            )
        assert u is not None
        if self.check_finite:
            _require_sound(u, weight)
        value, q = self._worst_case(u, weight, label)
        out = torch.promote_types(losses.dtype, torch.float32)
        return value.to(out), q[begin : begin + n].reshape(losses.shape).to(out)

    def _worst_case(
        self, u: Tensor, weight: Tensor | None, groups: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        p = None if weight is None else weight / weight.sum()
        q = self.oracle.exact_weights(u, self.shift_cost, p, groups)
        if weight is not None:
            q = torch.where((weight >= 0).all() & torch.isfinite(weight.sum()), q, math.nan)
            u = torch.where(weight > 0, u, 0.0)
        value = (q * u).sum()
        if self.shift_cost > 0:
            value = value - self.shift_cost * self.oracle._distance(q, p)
        return value, q


def _check_losses(losses: Tensor) -> int:
    """The number of losses."""
    if not isinstance(losses, Tensor):
        raise TypeError(f"losses must be a tensor, but {shown(losses)} was given.")
    if not losses.is_floating_point():
        raise TypeError(f"losses must hold real numbers, but their dtype is {losses.dtype}.")
    shape = tuple(losses.shape)
    if len(shape) not in (1, 2) or shape[1:] not in ((), (1,)) or shape[0] == 0:
        raise ValueError(
            f"losses must have one entry per sample, shape (n,) with n >= 1, but have shape "
            f"{shape}; compute them with reduction='none' and, where a sample has several, take "
            "their mean over it."
        )
    return int(shape[0])


def _less(losses: Tensor, baseline: Tensor | None) -> Tensor:
    """Losses less a baseline, in the kind of the losses."""
    if baseline is None:
        return losses
    _check_losses(losses)
    column = _column("baseline", baseline, losses)
    if column.is_complex():
        raise TypeError(f"baseline must hold real numbers, but its dtype is {column.dtype}.")
    return losses - column.reshape(losses.shape).to(losses.dtype)


def _column(name: str, given: Any, losses: Tensor) -> Tensor:
    """One entry per sample, on the device of the losses."""
    refuse_masked(name, given)
    column = torch.as_tensor(given, device=losses.device).detach()
    n = int(losses.shape[0])
    if tuple(column.shape) not in ((n,), (n, 1)):
        raise ValueError(
            f"{name} must have one entry per sample, shape ({n},), but has shape "
            f"{tuple(column.shape)}."
        )
    if name == "sample_weight" and column.is_complex():
        raise TypeError(f"sample_weight must hold real numbers, but its dtype is {column.dtype}.")
    if name == "groups":
        if column.is_floating_point() or column.is_complex():
            raise TypeError(
                f"groups must hold integers, but their dtype is {column.dtype}; number the groups."
            )
        column = column.to(torch.int64)
    return column.reshape(-1)


def _require_sound(u: Tensor, weight: Tensor | None) -> None:
    """Refuse losses and weights that would give NaN."""
    if weight is not None:
        if not bool((weight >= 0).all()) or not bool(torch.isfinite(weight.sum())):
            raise ValueError("sample_weight must hold finite numbers >= 0, but does not.")
        if not bool((weight > 0).any()):
            raise ValueError("sample_weight must have a positive entry, but all of them are zero.")
    bad = ~torch.isfinite(u)
    if weight is not None:
        bad = bad & (weight > 0)
    if bool(bad.any()):
        raise ValueError(
            f"losses contain {int(bad.sum())} NaN or infinite entries, the first at "
            f"{int(bad.to(torch.int8).argmax())}; lower the learning rate or leave these samples "
            "out."
        )


def robust_loss(
    losses: Tensor,
    uncertainty: Any = "cvar",
    divergence: Divergence | str = "auto",
    shift_cost: float = 0.0,
    sample_weight: Tensor | None = None,
    groups: Tensor | None = None,
    baseline: Tensor | None = None,
    *,
    check_finite: bool = False,
    process_group: Any = None,
    equal_batches: bool = False,
) -> Tensor:
    """The robust loss of a batch of per-sample losses: `RobustLoss` in one call.

    In a training loop, make a `RobustLoss` once: it checks its settings and copies the set there.

    Parameters
    ----------
    losses, sample_weight, groups, baseline :
        As in `RobustLoss.forward`.
    uncertainty, divergence, shift_cost, check_finite, process_group, equal_batches :
        As in `RobustLoss`.

    Returns
    -------
    loss : tensor of shape ()

    Examples
    --------
    >>> import torch
    >>> from drago import CVaR
    >>> from drago.torch_engine import robust_loss
    >>> losses = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    >>> loss = robust_loss(losses, CVaR(0.5))
    >>> loss.backward()
    >>> loss.item(), losses.grad.tolist()
    (3.5, [0.0, 0.0, 0.5, 0.5])
    """
    module = RobustLoss(
        uncertainty,
        divergence,
        shift_cost,
        check_finite=check_finite,
        process_group=process_group,
        equal_batches=equal_batches,
    )
    return module(losses, sample_weight, groups, baseline)
