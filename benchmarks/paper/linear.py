"""What counts as a linear rate: a factor of ten takes about as much work late as it does early.

A rate like 1/t makes each decade ten times as long as the one before, so that the later half of
the decades here takes a thousand times as long as the former; a floor is never passed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

# The work from the first to the second level is compared with that from the second to the third.
LEVELS = (1e-2, 1e-5, 1e-8)
# How many times longer the later half may take: noise, and the luck of single runs.
MOST = 5.0
RULE = (
    f"it ends below {LEVELS[2]:g}, and takes at most {MOST:g} times as long from {LEVELS[1]:g} to "
    f"{LEVELS[2]:g} as from {LEVELS[0]:g} to {LEVELS[1]:g}"
)


def places(work: Vector, suboptimality: Vector) -> tuple[float, float, float]:
    """Where a curve falls below each level for good; infinite where it ends above.

    Between two points the logarithm is taken for a straight line, because methods that show
    themselves once an epoch would otherwise seem to jump.
    """
    first, middle, last = (_place(work, suboptimality, level) for level in LEVELS)
    return first, middle, last


def _place(work: Vector, suboptimality: Vector, level: float) -> float:
    above = np.flatnonzero(~(suboptimality <= level))
    if not above.size:
        return float(work[0])
    k = above[-1]
    if k + 1 == suboptimality.size:
        return np.inf
    if not np.isfinite(suboptimality[k]):
        return float(work[k + 1])
    before, after = np.log(suboptimality[k]), np.log(max(suboptimality[k + 1], 1e-16))
    share = (before - np.log(level)) / (before - after)
    return float(work[k] + share * (work[k + 1] - work[k]))


def is_linear(found: tuple[float, float, float]) -> bool:
    """Whether places as those of `places` are those of a linear rate."""
    first, middle, last = found
    return bool(np.isfinite(last) and last - middle <= MOST * (middle - first))
