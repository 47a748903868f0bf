"""How found groups fare."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago.plotting._axes import COLOURS, GREY, REFERENCE, add_title, axes_for, styled
from drago.plotting._models import curves

# Characters of a rule on one line, and lines of it.
_WIDTH, _LINES = 36, 3
# Inches of a figure: across, for what is around the axes, and for each group.
_ACROSS, _AROUND, _EACH = 6.0, 0.9, 0.45


class FoundGroupsDisplay:
    """The excess of found groups over that of all rows, with intervals; the worst group on top.

    The excess is the loss less what a baseline loses on the same rows. Groups whose excess is
    clearly higher than that of all rows are in colour. Create it with `from_result`.

    Parameters
    ----------
    rules : list of str
    above, low, high : arrays of shape (n_groups,)
        Excess less that of all rows, and its interval.
    stands_out : array of shape (n_groups,), optional
        Which groups are in colour; those whose interval lies above 0 where it is not given.
    is_excess : bool
        False where it is the loss itself.

    Attributes
    ----------
    lines_ : LineCollection
        The intervals.
    points_ : PathCollection
    ax_ : Axes
    figure_ : Figure

    Examples
    --------
    >>> import drago
    >>> from drago.plotting import FoundGroupsDisplay
    >>> data = drago.datasets.load("diabetes", prepare="paper")
    >>> display = FoundGroupsDisplay.from_result(drago.find_groups(data.X, data.y))
    """

    lines_: Any
    points_: Any
    ax_: Any
    figure_: Any

    def __init__(
        self,
        *,
        rules: Any,
        above: Any,
        low: Any,
        high: Any,
        stands_out: Any = None,
        is_excess: bool = True,
    ) -> None:
        self.above, self.low, self.high = curves(above=above, low=low, high=high)
        _, worse = curves(
            above=above, stands_out=self.low > 0 if stands_out is None else stands_out
        )
        self.stands_out = worse > 0
        self.rules = list(rules)
        if len(self.rules) != self.above.size:
            raise ValueError(
                f"rules must have one entry per group, of which there are {self.above.size}, but "
                f"has {len(self.rules)}."
            )
        self.is_excess = is_excess

    @classmethod
    def from_result(cls, found: Any, *, ax: Any = None, **kwargs: Any) -> FoundGroupsDisplay:
        """Draw the groups that were found.

        Parameters
        ----------
        found : FoundGroups
            From `find_groups`, or ``found_`` of a `GroupFinder`.
        ax : Axes, optional
        **kwargs
            For `Axes.hlines`.

        Returns
        -------
        FoundGroupsDisplay
        """
        table = found.table
        display = cls(
            rules=found.rules,
            above=table["above"],
            low=table["above_low"],
            high=table["above_high"],
            stands_out=found.stands_out,
            is_excess=found.is_excess,
        )
        return display.plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> FoundGroupsDisplay:
        """Draw it.

        Parameters
        ----------
        ax : Axes, optional
            By default a new figure is made, whose height grows with the number of groups.
        **kwargs
            For `Axes.hlines`.

        Returns
        -------
        self
        """
        given, ax = ax, axes_for(ax)
        count = self.above.size
        if given is None:
            ax.figure.set_size_inches(_ACROSS, _AROUND + _EACH * count)
        place = np.arange(count)
        colours = [COLOURS[1] if worse else GREY for worse in self.stands_out]
        # What is not known beyond a few rows has no ends.
        ends = np.concatenate([self.low, self.high, self.above])
        ends = ends[np.isfinite(ends)]
        reach = float(np.abs(ends).max()) if ends.size else 1.0
        low, high = (np.clip(np.nan_to_num(end, nan=0.0), -reach, reach)
                     for end in (self.low, self.high))  # fmt: skip
        style = styled("collections.LineCollection", {"colors": colours, "linewidth": 2}, kwargs)
        self.lines_ = ax.hlines(place, low, high, **style)
        self.points_ = ax.scatter(self.above, place, c=colours, s=24, zorder=3)
        ax.axvline(0.0, **REFERENCE)
        ax.set_yticks(place, [_broken(rule) for rule in self.rules])
        ax.set_ylim(count - 0.5, -0.5)
        ax.set_xlabel(f"{'excess' if self.is_excess else 'loss'} above that of all rows")
        add_title(ax, "Found groups")
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _broken(rule: str) -> str:
    """A rule on a few lines, broken between its conditions; what is beyond is left out."""
    lines = [""]
    for part in rule.split(" and "):
        joined = f"{lines[-1]} and {part}" if lines[-1] else part
        if len(joined) <= _WIDTH or not lines[-1]:
            lines[-1] = joined
        else:
            lines[-1] += " and"
            lines.append(part)
    if len(lines) > _LINES:
        lines = [*lines[:_LINES]]
        lines[-1] += " ..."
    return "\n".join(lines)
