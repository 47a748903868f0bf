"""The kernels' own exponentials and logarithm, against mpmath."""

import math

import numpy as np
import pytest

from drago import kernels

mp = pytest.importorskip("mpmath").mp
RNG = np.random.default_rng(0)
NEAR_0 = RNG.uniform(-1, 1, 2000) * 10.0 ** -RNG.uniform(0, 300, 2000)
ARGUMENTS = {
    "exp": (kernels.exp_fast, np.append(RNG.uniform(-700, 700, 4000), NEAR_0)),
    "expm1": (kernels.expm1_fast, np.append(RNG.uniform(-49, 30, 4000), NEAR_0)),
    "log1p": (kernels.log1p_unit, np.append(RNG.uniform(0, 1, 4000), abs(NEAR_0))),
}
# Units in the last place: half for the last rounding, and as much for each of the two or three
# before it that count; a processor may contract products or not.
MOST = {"exp": 1.5, "expm1": 2.5, "log1p": 2.0}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_accuracy(name):
    function, arguments = ARGUMENTS[name]
    with mp.workprec(200):
        for x in arguments:
            exact = getattr(mp, name)(mp.mpf(float(x)))
            error = abs(mp.mpf(function(float(x))) - exact) / math.ulp(float(exact))
            assert error <= MOST[name], (x, float(error))


def test_ends():
    assert kernels.exp_fast(-709.0) == 0.0 and kernels.exp_fast(710.0) == math.inf
    assert kernels.exp_fast(0.0) == 1.0 and kernels.log1p_unit(0.0) == 0.0
    assert kernels.expm1_fast(-60.0) == -1.0 and kernels.expm1_fast(0.0) == 0.0
    assert math.isnan(kernels.exp_fast(math.nan)) and math.isnan(kernels.expm1_fast(math.nan))
