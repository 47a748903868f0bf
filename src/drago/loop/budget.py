"""What certificates cost and may cost, and when the next one is due by count."""

from __future__ import annotations

import math
from dataclasses import dataclass

from drago.loop.protocol import Iterate


@dataclass(frozen=True)
class _CertificateRule:
    """How many passes certificates may cost, and how often they are made."""

    small: int = 1 << 19
    """Entries of X up to which a certificate takes as long as several iterations."""
    first: float = 1.0
    """What the first certificate may cost on larger data."""
    least: float = 4.0
    """What any other one may cost at least: without it one could not tell success."""
    advance: float = 4.0
    """What all certificates together may cost beyond their share."""
    share: float = 0.5
    """Their share of the method's own passes."""
    unasked: float = 2.0
    """What one costs beside that: the losses, two gradients and the exact weights."""
    looking: float = 0.1
    """The part of the method's passes that may go into certificates which are due by count."""
    thinning: float = 1.5
    """The next one by count is due after this many times as many iterations."""


_RULE = _CertificateRule()


class Budget:
    """The passes of a solve beside the method's own.

    Parameters
    ----------
    n_entries : int
        Entries of X: on large data the first certificate is a cheap look.

    Attributes
    ----------
    is_large : bool
        Whether a pass takes long enough to be waited for.
    looks : int
        Certificates so far.
    judged_iter : int
        The iteration of the last one; -1 before there is one.
    next_look : int
        The iteration from which on another one is due.
    passes : float
        What certificates, and a start on a part of the rows, have cost.
    """

    def __init__(self, n_entries: int) -> None:
        self.is_large = n_entries > _RULE.small
        self.looks, self.judged_iter, self.next_look = 0, -1, 1
        self.passes = 0.0
        self._metric_passes = 0.0  # apart: certificates are not to be fewer for it
        self._allowed = math.inf

    def spend(self, passes: float) -> None:
        """Take note of passes over the rows, in units of all of them."""
        self.passes += passes

    def spend_on_metric(self, passes: float) -> None:
        """The same for passes that a metric took: they do not lower the credit of certificates."""
        self._metric_passes += passes

    def total(self, n_passes: float) -> float:
        """All passes, with those of the method itself."""
        return n_passes + self.passes + self._metric_passes

    @property
    def is_first_look(self) -> bool:
        """Whether the next certificate is a cheap look: the first one on large data."""
        return self.looks == 0 and self.is_large

    def credit(self, n_passes: float) -> float:
        """What the next certificate may cost, after so many passes of the method.

        Certificates may take half as much work as the method has put in, and a little more. The
        first one on large data is a cheap look: if it fails, an iteration of a method that
        converges well is worth more than a better bound.
        """
        if self.is_first_look:
            return _RULE.first
        return max(_RULE.advance + _RULE.share * n_passes - self.passes, _RULE.least)

    @property
    def credit_for_look(self) -> float:
        """What one may cost that is due by count while a measured estimate is far from the goal."""
        return _RULE.first

    def last_word(self, n_passes: float) -> float:
        """What a certificate at the end takes; on small data nobody waits for it."""
        if not self.is_large:
            return 0.0
        return min(self.credit(n_passes), _RULE.least) + _RULE.unasked

    def credit_for(self, passes: float) -> float:
        """What a certificate may cost that is to take no more than so many passes in all."""
        return max(passes - _RULE.unasked, _RULE.first)

    def is_look_due(self, iterate: Iterate) -> bool:
        """Whether one is due by count, whatever the method's estimate of the gap.

        On small data there is none before an estimate that measures the gap itself is small.
        """
        if iterate.is_measured and not self.is_large:
            return False
        affordable = self.passes + 1.0 <= _RULE.looking * iterate.n_passes
        return affordable and iterate.n_iter >= self.next_look

    def looked(self, n_iter: int) -> None:
        """Take note of a certificate."""
        self.looks += 1
        self.judged_iter = n_iter
        # The estimate is what calls for a certificate in good time.
        self.next_look = max(n_iter + 1, int(_RULE.thinning * n_iter) + 1)

    def hand_over(self, n_iter: int, allowed: float) -> None:
        """Another method goes on from iteration `n_iter`, up to so many passes in all."""
        self.next_look, self._allowed = n_iter + 1, allowed

    def is_spent(self, n_passes: float) -> bool:
        """Whether the method has had the passes that were allowed to it."""
        return n_passes > self._allowed

    def resume(self, looks: int, judged_iter: int, next_look: int, passes: float) -> None:
        """Go on from where a solve was saved."""
        self.looks, self.judged_iter, self.next_look = looks, judged_iter, next_look
        self.passes = passes
