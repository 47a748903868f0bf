"""The mass that a spectrum gives to rows in the order of their losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from drago.terms.uncertainty import ESRM, Extremile, SpectralSet, Spectrum


def _running_sum(x: Tensor) -> Tensor:
    """Sums of the first 1, 2, ... entries, by doubling: the same on every run, unlike `cumsum`."""
    step = 1
    while step < int(x.shape[0]):
        x = x + pad(x[:-step], (step, 0))
        step *= 2
    return x


class Spectra:
    """The masses of a spectral set for any number of rows, on any device.

    Tables made from a user's function are kept, for each device and, with equal weights, each
    number of rows.
    """

    def __init__(self, uncertainty: SpectralSet) -> None:
        self.uncertainty = uncertainty
        self._tables: dict[Any, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Tables are made again where they are needed, which may be on another machine.
        return {**self.__dict__, "_tables": {}}

    def masses(self, p: Tensor, uniform: bool) -> Tensor:
        """The spectrum's mass of consecutive intervals of lengths `p`, from 0 upward."""
        n = int(p.shape[0])
        given = self.uncertainty
        if isinstance(given, Spectrum) and (uniform or given.integral is not None):
            return self._asked(given, p, uniform)
        if uniform:
            upper = torch.arange(1, n + 1, device=p.device).to(p) / n
        else:
            upper = _running_sum(p)
            upper = (upper / upper[-1:]).clamp(max=1.0)
        # Products, not differences of integrals: a small mass keeps all its digits.
        if isinstance(given, Extremile):
            draws = float(given.n_draws)
            rest = torch.log1p(-(p / upper).clamp(max=1.0))
            sigma = upper**draws * -torch.expm1(draws * rest)
        elif isinstance(given, ESRM) and given.risk_aversion > 0:
            g = float(given.risk_aversion)
            sigma = torch.exp(-g * (1.0 - upper)) * -torch.expm1(-g * p)
        elif isinstance(given, ESRM):
            sigma = p
        else:
            sigma = self._interpolated(upper)
        return sigma / sigma.sum()

    def _interpolated(self, upper: Tensor) -> Tensor:
        """Differences of the integral of a density, which is linear between its panels."""
        table = self._kept("panels", upper)
        panels = int(table.shape[0]) - 1
        place = (upper * panels).floor().clamp(max=panels - 1)
        index = place.to(torch.int64)
        low, high = table.gather(0, index), table.gather(0, index + 1)
        value = low + (upper * panels - place) * (high - low)
        return (value - pad(value[:-1], (1, 0))).clamp(min=0.0)

    def _asked(self, given: Spectrum, p: Tensor, uniform: bool) -> Tensor:
        """From the user's function: a table for rows of equal weight, otherwise a round trip."""
        if uniform:
            return self._kept(int(p.shape[0]), p)
        return torch.from_numpy(given.masses(p.double().cpu().numpy())).to(p)

    @torch.compiler.disable
    def _kept(self, key: Any, like: Tensor) -> Tensor:
        place = (key, like.device, like.dtype)
        if place not in self._tables:
            given = self.uncertainty
            assert isinstance(given, Spectrum)
            if key == "panels":
                table = given._integral(np.linspace(0.0, 1.0, given._PANELS + 1))
            else:
                table = given.masses(np.full(key, 1.0 / key))
            self._tables[place] = torch.from_numpy(table).to(like)
        return self._tables[place]
