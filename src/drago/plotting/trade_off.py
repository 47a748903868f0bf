"""What the worst group gains, and what the mean pays."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago.plotting._axes import COLOURS, GREY, REFERENCE, add_title, axes_for, styled
from drago.plotting._models import curves

_LABELS = {
    "worst_group_loss": "loss of the worst group",
    "worst_group_excess": "excess of the worst group",
    "found_group_excess": "excess of the worst found group",
    "tail_excess": "excess of the worst tenth",
}


class TradeOffDisplay:
    """Mean loss against that of the worst group, a point for each model.

    What lies to the left of and below the first model is better for all. Create it with
    `from_result` from a comparison or an audit, or with `from_path`.

    Parameters
    ----------
    names : list of str
    mean, worst : arrays of shape (n_models,)
    label : str
        What `worst` is.
    is_path : bool
        Whether the points are joined, in their order.

    Attributes
    ----------
    points_ : PathCollection
    texts_ : list of Annotation
        The names of a path's models; those of a comparison are in the legend.
    ax_ : Axes
    figure_ : Figure

    Examples
    --------
    >>> import numpy as np, drago
    >>> from drago.plotting import TradeOffDisplay
    >>> rng = np.random.default_rng(0)
    >>> X, groups = rng.normal(size=(200, 2)), np.arange(200) % 4 == 0
    >>> y = np.where(groups, -1.0, 1.0) * X[:, 0] + rng.normal(size=200)
    >>> path = drago.robust_path(X, y, tail_fractions=[1.0, 0.5, 0.2])
    >>> display = TradeOffDisplay.from_path(path, X, y, groups=groups)
    """

    points_: Any
    texts_: list[Any]
    ax_: Any
    figure_: Any

    def __init__(
        self,
        *,
        names: Any,
        mean: Any,
        worst: Any,
        label: str = "loss of the worst group",
        is_path: bool = False,
    ) -> None:
        self.mean, self.worst = curves(mean=mean, worst=worst)
        self.names, self.label, self.is_path = [str(name) for name in names], label, is_path
        if len(self.names) != self.mean.size:
            raise ValueError(
                f"names must have one entry per model, of which there are {self.mean.size}, but "
                f"has {len(self.names)}."
            )

    @classmethod
    def from_result(
        cls, found: Any, *, metric: str = "auto", ax: Any = None, **kwargs: Any
    ) -> TradeOffDisplay:
        """Draw the models of a comparison or an audit.

        Parameters
        ----------
        found : Comparison or Audit
        metric : {"auto", "worst_group_loss", "worst_group_excess", "found_group_excess", \
"tail_excess"}
            "auto" is the first one where groups were given, else "found_group_excess".
        ax : Axes, optional
        **kwargs
            For `Axes.scatter`.
        """
        table = getattr(found, "comparison", found).table
        if metric == "auto":
            given = np.isfinite(table["worst_group_loss"]).any()
            metric = "worst_group_loss" if given else "found_group_excess"
        if metric not in _LABELS:
            raise ValueError(f"metric must be one of {', '.join(_LABELS)}, but is {metric!r}.")
        display = cls(
            names=table["model"],
            mean=table["mean_loss"],
            worst=table[metric],
            label=_LABELS[metric],
        )
        return display.plot(ax, **kwargs)

    @classmethod
    def from_path(
        cls, path: Any, X: Any, y: Any, *, groups: Any, ax: Any = None, **kwargs: Any
    ) -> TradeOffDisplay:
        """Draw the models of a path, on rows that they have not seen.

        Parameters
        ----------
        path : RobustPath
        X, y : the rows to judge them on, as `drago.robust_path` takes them
        groups : array of shape (n,)
        ax : Axes, optional
        **kwargs
            For `Axes.scatter`.
        """
        from drago.estimators.path import losses_on
        from drago.scorers import worst_group_mean

        losses = losses_on(path, X, y)
        p = np.full(losses.shape[1], 1.0 / losses.shape[1])
        levels = zip(path.tail_fractions, path.shift_costs, path.l2_regs)
        display = cls(
            names=[_named(*level, path) for level in levels],
            mean=losses.mean(axis=1),
            worst=[worst_group_mean(row, p, groups) for row in losses],
            is_path=True,
        )
        return display.plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> TradeOffDisplay:
        """Draw it.

        Parameters
        ----------
        ax : Axes, optional
        **kwargs
            For `Axes.scatter`.
        """
        ax = axes_for(ax)
        colours = [GREY, *(COLOURS[k % len(COLOURS)] for k in range(self.mean.size - 1))]
        if self.is_path:
            ax.plot(self.mean, self.worst, color=GREY, linewidth=0.8, zorder=1)
            colours = [COLOURS[0]] * self.mean.size
        style = styled("collections.PathCollection", {"c": colours, "s": 24, "zorder": 3}, kwargs)
        self.points_ = ax.scatter(self.mean, self.worst, **style)
        ax.axvline(self.mean[0], **REFERENCE)
        ax.axhline(self.worst[0], **REFERENCE)
        self.texts_ = self._names_along(ax) if self.is_path else []
        if not self.is_path:
            dots = [ax.scatter([], [], color=colour, s=24) for colour in colours]
            ax.legend(dots, self.names, fontsize="small", framealpha=1, edgecolor="none")
        ax.margins(0.15)
        ax.set_xlabel("mean loss")
        ax.set_ylabel(self.label)
        add_title(ax, "What the worst off gain, and what the mean pays")
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _names_along(self, ax: Any) -> list[Any]:
        """On the side where there is more room, those of neighbours above and below."""
        middle = 0.5 * (float(self.mean.min()) + float(self.mean.max()))
        rank = np.argsort(np.argsort(self.worst))
        return [
            ax.annotate(
                name,
                (x, y),
                xytext=(5 if x <= middle else -5, 3 if rank[k] % 2 else -10),
                textcoords="offset points",
                ha="left" if x <= middle else "right",
                fontsize="small",
            )
            for k, (name, x, y) in enumerate(zip(self.names, self.mean, self.worst))
        ]


def _named(tail: float, cost: float, reg: float, path: Any) -> str:
    """A model of a path by the levels that vary."""
    parts = []
    if np.unique(path.tail_fractions[np.isfinite(path.tail_fractions)]).size > 1:
        parts.append(f"tail {tail:g}")
    if np.unique(path.shift_costs).size > 1:
        parts.append(f"cost {cost:.2g}")
    if np.unique(path.l2_regs).size > 1:
        parts.append(f"l2 {reg:g}")
    return ", ".join(parts)
