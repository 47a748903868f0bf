"""What kernels tell of a long vector, against NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from drago import kernels

PART = 1 << 14  # entries that a thread takes at once
NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)
SIZES = (1, 63, 64, 65, 1000, PART - 1, PART, 2 * PART, 3 * PART + 64, 5 * PART - 7)


def check(values, level):
    for n_threads in (1, 3):
        assert kernels.count_above(values, level, n_threads) == np.count_nonzero(values > level)
        places = kernels.places_above(values, level, n_threads)
        assert places.dtype == np.int64
        np.testing.assert_array_equal(places, np.flatnonzero(values > level))
        found = kernels.extremes(values, n_threads)
        np.testing.assert_array_equal(found, (values.min(), values.max()))


@given(st.integers(1, 300).flatmap(lambda n: arrays(np.float64, n, elements=NUMBERS)), NUMBERS)
def test_short_ones(values, level):
    check(values, level)
    check(values, values[0])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", (0.0, 0.03, 0.5, 1.0))
def test_long_ones(size, share):
    rng = np.random.default_rng(size)
    values = np.where(rng.random(size) < share, rng.standard_normal(size) ** 2, 0.0)
    for level in (0.0, 1.0, values.max(), -1.0):
        check(values, level)
    for place in {0, size // 2, size - 1}:
        for wild in (np.inf, -np.inf, np.nan):
            changed = values.copy()
            changed[place] = wild
            check(changed, 0.0)


def test_parts_are_done_once_each_by_whoever_has_time():
    """More threads than cores: some have done their own parts before others begin."""
    values = np.arange(21.0 * PART)
    expected = np.flatnonzero(values > 5.0)
    for n_threads in [2, 3, 5, 21, 50] * 20:
        assert kernels.count_above(values, 5.0, n_threads) == expected.size
        np.testing.assert_array_equal(kernels.places_above(values, 5.0, n_threads), expected)


def test_no_entries():
    assert kernels.count_above(np.empty(0), 0.0) == 0
    assert kernels.places_above(np.empty(0), 0.0).size == 0
    with pytest.raises(ValueError, match="no entries"):
        kernels.extremes(np.empty(0))
