"""The built-in losses on tensors: the same formulas, and the same classes to everyone who asks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from drago.terms.losses import Huber, Logistic, Loss, Multinomial, Squared


def _as_is(values: Tensor) -> Tensor:
    return values


class _OnTensors:
    """What the losses have in common.

    `balance` takes the function that makes sums over all rows from those over the rows here.
    """

    def evaluate_into(self, y: Any, raw: Any, losses: Any, dlosses: Any) -> None:
        found = self.evaluate(y, raw)
        losses.copy_(found[0])
        dlosses.copy_(found[1])

    def evaluate(self, y: Any, raw: Any) -> tuple[Any, Any]:
        """Losses (n,) and derivatives (n, n_outputs)."""
        raise NotImplementedError  # pragma: no cover


class TensorSquared(_OnTensors, Squared):
    """``1/2 (z - y)^2``."""

    def evaluate(self, y: Any, raw: Any) -> tuple[Any, Any]:
        residual = raw[:, 0] - y
        return 0.5 * residual * residual, residual[:, None]

    def second(self, y: Any, raw: Any) -> Any:
        return torch.ones_like(y)

    def balance(self, y: Any, raw: Any, q: Any, summed: Any = _as_is) -> tuple[Any, Any]:
        residual = raw[:, 0] - y
        first, mass = summed(torch.stack([q @ residual, q.sum()]))
        mean = first / mass
        return (residual - mean)[:, None], (0.5 * mean * mean).expand(y.shape[0])


class TensorHuber(_OnTensors, Huber):
    """``1/2 r^2`` for ``|r| <= delta``, ``delta (|r| - delta/2)`` beyond."""

    def evaluate(self, y: Any, raw: Any) -> tuple[Any, Any]:
        residual = raw[:, 0] - y
        slopes = residual.clamp(-self.delta, self.delta)
        return slopes * (residual - 0.5 * slopes), slopes[:, None]

    def second(self, y: Any, raw: Any) -> Any:
        return ((raw[:, 0] - y).abs() <= self.delta).to(y)

    def balance(self, y: Any, raw: Any, q: Any, summed: Any = _as_is) -> tuple[Any, Any]:
        r = raw[:, 0] - y
        slopes = r.clamp(-self.delta, self.delta)
        alpha = slopes * _balance(slopes, q, summed)
        size, a = r.abs(), alpha.abs()
        beyond = (self.delta - a) * (size - 0.5 * (self.delta + a))
        young = torch.where(size > self.delta, beyond, 0.5 * (alpha - slopes) ** 2)
        return alpha[:, None], young


class TensorLogistic(_OnTensors, Logistic):
    """``log(1 + exp(-z))`` for y = 1, ``log(1 + exp(z))`` for y = 0."""

    def evaluate(self, y: Any, raw: Any) -> tuple[Any, Any]:
        sign = 1.0 - 2.0 * y
        m = sign * raw[:, 0]
        # softplus of torch is linear beyond 20, which is wrong by 2e-9
        losses = m.clamp(min=0.0) + torch.log1p(torch.exp(-m.abs()))
        return losses, (sign * torch.sigmoid(m))[:, None]

    def second(self, y: Any, raw: Any) -> Any:
        e = torch.exp(-raw[:, 0].abs())
        return e / (1.0 + e) ** 2

    def balance(self, y: Any, raw: Any, q: Any, summed: Any = _as_is) -> tuple[Any, Any]:
        losses, slopes = self.evaluate(y, raw)
        scale = _balance(slopes[:, 0], q, summed)
        alpha = slopes[:, 0] * scale
        a = alpha.abs()
        young = torch.xlogy(a, scale)
        rest = (1.0 - a) * (torch.log1p(-a.clamp(max=1.0 - 1e-16)) + losses)
        young = young + torch.where(scale < 1, rest, 0.0)
        return alpha[:, None], young.clamp(min=0.0)


def _balance(slopes: Tensor, q: Tensor, summed: Any) -> Tensor:
    """Factors that shrink the slopes of the heavier sign until their weighted sum is 0."""
    up, down = summed(torch.stack([q @ slopes.clamp(min=0.0), q @ (-slopes).clamp(min=0.0)]))
    for_up = torch.where(up > down, down / up, 1.0)
    for_down = torch.where(down > up, up / down, 1.0)
    return torch.where(slopes > 0, for_up, torch.where(slopes < 0, for_down, 1.0))


class TensorMultinomial(_OnTensors, Multinomial):
    """``log sum_c exp(z_c) - z_y``."""

    def evaluate(self, y: Any, raw: Any) -> tuple[Any, Any]:
        own = y[:, None]
        e = torch.exp(raw - raw.amax(1, keepdim=True))
        # Without the own class, so that a loss near 0 and a slope near 0 keep their digits.
        others = e.scatter(1, own, 0.0)
        rest, mine = others.sum(1), e.gather(1, own)[:, 0]
        small = torch.log1p(rest / mine)
        top = raw.amax(1) - raw.gather(1, own)[:, 0]
        losses = torch.where(mine == 1.0, small, torch.log(rest + mine) + top)
        slopes = others / (rest + mine)[:, None]
        return losses, slopes.scatter(1, own, -slopes.sum(1, keepdim=True))

    def probabilities(self, raw: Any) -> Any:
        return torch.softmax(raw, 1)

    def balance(self, y: Any, raw: Any, q: Any, summed: Any = _as_is) -> tuple[Any, Any]:
        mass = torch.zeros(raw.shape[1], dtype=raw.dtype, device=raw.device).index_add(0, y, q)
        mass = summed(mass)
        there = mass > 0
        inside = torch.where(there, raw, -math.inf)
        restricted = torch.softmax(inside, 1)
        mean = summed(q @ restricted)
        keep = torch.where(there, mass / mean, math.inf).amin().clamp(max=1.0)
        rest = ((mass - keep * mean) / (1.0 - keep)).clamp(min=0.0)
        mixed = keep * restricted + (1.0 - keep) * torch.where(there, rest, 0.0)
        restricted = torch.where(keep < 1.0, mixed, restricted)
        log_all = torch.log_softmax(raw, 1)
        young = (torch.xlogy(restricted, restricted) - restricted * log_all).sum(1)
        alpha = restricted - torch.nn.functional.one_hot(y, raw.shape[1]).to(raw)
        return alpha, young.clamp(min=0.0)


_KINDS: dict[type[Loss], Any] = {
    Squared: TensorSquared, Huber: TensorHuber, Logistic: TensorLogistic,
    Multinomial: TensorMultinomial,
}  # fmt: skip


def on_tensors(loss: Loss) -> Any:
    """The same loss for tensors."""
    kind = _KINDS.get(type(loss))
    if kind is None:
        raise TypeError(
            "the torch engine takes the losses 'squared', 'huber', 'logistic' and 'multinomial', "
            f"but {loss!r} was given: write a loss of your own with torch functions and give it "
            "to drago.torch_engine.AutogradProblem."
        )
    return kind(loss.delta) if isinstance(loss, Huber) else kind()
