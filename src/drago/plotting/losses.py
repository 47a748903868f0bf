"""How the losses of the rows are spread, and what the worst part of them comes to."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago._validation import check_number, check_option, numeric
from drago.plotting._axes import (
    BEHIND,
    PALE,
    add_legend,
    add_title,
    axes_for,
    scale_losses,
    styled,
)
from drago.plotting._models import (
    SCALES,
    Vector,
    curves,
    is_heavy,
    is_wide,
    losses_of,
    nominal,
    unit_of,
)

# Tail fractions at which the tail risk is drawn, unless others are given.
_LEVELS = (0.01, 1.0, 200)


def tail_means(losses: Vector, p: Vector, levels: Any) -> Vector:
    """The mean of the worst share of the mass `p`, for each share in `levels`."""
    order = np.argsort(-losses)
    mass = np.concatenate([[0.0], np.cumsum(p[order])])
    total = np.concatenate([[0.0], np.cumsum((p * losses)[order])])
    # What the worst share loses in total is linear in the share between two rows: no sum is cut.
    return np.interp(levels, mass / mass[-1], total) / levels


class SortedLossDisplay:
    """The losses from the least to the largest: who is served how well.

    Two models on the same data show what robustness buys and what it costs: the robust one lies
    lower in the tail, which is shaded, and higher elsewhere. Create it with `from_estimator` or
    `from_predictions`.

    Parameters
    ----------
    share : array of shape (n,)
        The share of the rows (by weight) whose loss is at most that of `losses`.
    losses : array of shape (n,)
        Sorted.
    tail_fraction : float, optional
        The share of the rows to shade as the tail.
    name : str, optional
        For the legend.
    unit : str
        What a loss is called.

    Attributes
    ----------
    line_ : Line2D
    tail_ : Patch or None
        The shaded tail; None where there is none, or where it is on the axes already.
    tail_line_ : Line2D or None
        The mean of the tail, over its width.
    ax_ : Axes
    figure_ : Figure

    Examples
    --------
    >>> import numpy as np, drago
    >>> from drago.plotting import SortedLossDisplay
    >>> X = np.arange(20.0).reshape(-1, 1)
    >>> model = drago.DRORegressor().fit(X, X[:, 0] ** 2)
    >>> display = SortedLossDisplay.from_estimator(model, X, X[:, 0] ** 2)
    """

    line_: Any
    tail_: Any
    tail_line_: Any
    ax_: Any
    figure_: Any

    def __init__(
        self,
        *,
        share: Any,
        losses: Any,
        tail_fraction: float | None = None,
        name: str | None = None,
        unit: str = "loss",
    ) -> None:
        self.share, self.losses = curves(share=share, losses=losses)
        self.tail_fraction = tail_fraction
        self.name, self.unit = name, unit

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        tail_fraction: float | None = None,
        name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> SortedLossDisplay:
        """Draw the losses of a model on some data.

        Parameters
        ----------
        model : fitted scikit-learn model, pipeline or search
            One of this library by its own loss, others by the log loss or half the squared error.
        X, y : the data, training or held out
        sample_weight : array of shape (n,), optional
        tail_fraction : float in (0, 1], optional
            The share of the rows to shade; a `CVaR`'s own where it is not given.
        name : str, optional
            For the legend; the model's set, or its class, where it is not given.
        ax : Axes, optional
        **kwargs
            For `plot`.

        Returns
        -------
        SortedLossDisplay
        """
        losses, called, tail = losses_of(model, X, y)
        return cls.from_predictions(
            losses,
            sample_weight=sample_weight,
            tail_fraction=tail if tail_fraction is None else tail_fraction,
            name=called if name is None else name,
            unit=unit_of(model),
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        losses: Any,
        *,
        sample_weight: Any = None,
        tail_fraction: float | None = None,
        name: str | None = None,
        unit: str = "loss",
        ax: Any = None,
        **kwargs: Any,
    ) -> SortedLossDisplay:
        """Draw losses, whatever they come from.

        Parameters
        ----------
        losses : array of shape (n,)
        sample_weight : array of shape (n,), optional
        tail_fraction : float in (0, 1], optional
            The share of the rows to shade.
        name : str, optional
        unit : str
            What a loss is called.
        ax : Axes, optional
        **kwargs
            For `plot`.

        Returns
        -------
        SortedLossDisplay
        """
        losses, p, _ = nominal(losses, sample_weight)
        order = np.argsort(losses)
        share = np.cumsum(p[order])
        if tail_fraction is not None:
            tail_fraction = check_number(
                "tail_fraction", tail_fraction, low=0, high=1, open_low=True
            )
        display = cls(
            share=share / share[-1],
            losses=losses[order],
            tail_fraction=tail_fraction,
            name=name,
            unit=unit,
        )
        return display.plot(ax, **kwargs)

    def plot(
        self, ax: Any = None, *, name: str | None = None, scale: str = "auto", **kwargs: Any
    ) -> SortedLossDisplay:
        """Draw it.

        Parameters
        ----------
        ax : Axes, optional
            Those of a new figure where none are given.
        name : str, optional
        scale : {"auto", "linear", "log"}
            Of the axis of the losses. "auto" is logarithmic where a few losses are far above all
            others.
        **kwargs
            For `Axes.plot`.

        Returns
        -------
        self
        """
        check_option("scale", scale, SCALES)
        ax = axes_for(ax)
        style = {
            "label": self.name if name is None else name,
            "linewidth": 1.5,
            "drawstyle": "steps-pre",
        }
        style = styled("lines.Line2D", style, kwargs)
        # The first step starts at 0.
        share = np.concatenate([[0.0], self.share])
        losses = np.concatenate([self.losses[:1], self.losses])
        (self.line_,) = ax.plot(share, losses, **style)
        self._draw_tail(ax)
        ax.set_xlim(0.0, 1.0)
        ax.xaxis.set_major_formatter(_percent)
        ax.set_xlabel("rows, from the least loss to the largest")
        ax.set_ylabel(self.unit)
        scale_losses(ax, "y", scale, is_heavy(self.losses))
        add_legend(ax, loc="lower right" if ax.get_yscale() == "log" else "upper left")
        add_title(ax, "Losses of the rows, sorted")
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _draw_tail(self, ax: Any) -> None:
        """Shade the tail, if that is not done already, and mark its mean in the line's colour."""
        self.tail_ = self.tail_line_ = None
        if self.tail_fraction is None:
            return
        shaded = [patch for patch in ax.patches if patch.get_label().endswith("and its mean")]
        # What is compared is the mean of one tail.
        fraction = 1.0 - shaded[0].get_x() if shaded else self.tail_fraction
        ends = [1.0 - fraction, 1.0]
        p = np.diff(self.share, prepend=0.0)
        mean = tail_means(self.losses, p, fraction)
        (self.tail_line_,) = ax.plot(
            ends, [mean, mean], color=self.line_.get_color(), linewidth=1, linestyle="--"
        )
        if not shaded:
            text = f"worst {100 * fraction:g}% and its mean"
            self.tail_ = ax.axvspan(*ends, color=PALE, linewidth=0, zorder=BEHIND, label=text)


class TailRiskDisplay:
    """The mean loss of the worst share of the rows, as the share shrinks.

    At 100% it is the mean of all losses, to the right it runs toward the largest one: the CVaR of
    every level in one picture. Create it with `from_estimator` or `from_predictions`.

    Parameters
    ----------
    levels : array of shape (n_levels,)
        Tail fractions, from 1 downward.
    risks : array of shape (n_levels,)
        The mean of the worst share of the losses.
    name : str, optional
        For the legend.
    unit : str
        What a loss is called.

    Attributes
    ----------
    line_ : Line2D
    ax_ : Axes
    figure_ : Figure

    Examples
    --------
    >>> import numpy as np
    >>> from drago.plotting import TailRiskDisplay
    >>> losses = np.random.default_rng(0).exponential(size=100)
    >>> display = TailRiskDisplay.from_predictions(losses, name="a model")
    """

    line_: Any
    ax_: Any
    figure_: Any

    def __init__(
        self, *, levels: Any, risks: Any, name: str | None = None, unit: str = "loss"
    ) -> None:
        self.levels, self.risks = curves(levels=levels, risks=risks)
        self.name, self.unit = name, unit

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        X: Any,
        y: Any,
        *,
        levels: Any = None,
        sample_weight: Any = None,
        name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> TailRiskDisplay:
        """Draw the tail risk of a model on some data, best on held-out rows.

        Parameters
        ----------
        model : fitted scikit-learn model, pipeline or search
            One of this library by its own loss, others by the log loss or half the squared error.
        X, y : the data
        levels : array of numbers in (0, 1], optional
            Tail fractions. By default from 1 to 0.01, or to one row where that is more.
        sample_weight : array of shape (n,), optional
        name : str, optional
            For the legend; the model's set, or its class, where it is not given.
        ax : Axes, optional
        **kwargs
            For `plot`.

        Returns
        -------
        TailRiskDisplay
        """
        losses, called, _ = losses_of(model, X, y)
        return cls.from_predictions(
            losses,
            levels=levels,
            sample_weight=sample_weight,
            name=called if name is None else name,
            unit=unit_of(model),
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        losses: Any,
        *,
        levels: Any = None,
        sample_weight: Any = None,
        name: str | None = None,
        unit: str = "loss",
        ax: Any = None,
        **kwargs: Any,
    ) -> TailRiskDisplay:
        """Draw the tail risk of losses, whatever they come from.

        Parameters
        ----------
        losses : array of shape (n,)
        levels : array of numbers in (0, 1], optional
            Tail fractions. By default from 1 to 0.01, or to one row where that is more.
        sample_weight : array of shape (n,), optional
        name : str, optional
        unit : str
            What a loss is called.
        ax : Axes, optional
        **kwargs
            For `plot`.

        Returns
        -------
        TailRiskDisplay
        """
        losses, p, _ = nominal(losses, sample_weight)
        if levels is None:
            low, high, count = _LEVELS
            # Below one row there is nothing but the largest loss.
            levels = np.geomspace(high, min(max(low, 1.0 / losses.size), 0.5), count)
        else:
            (levels,) = curves(levels=np.atleast_1d(numeric("levels", levels)))
            levels = np.sort(levels)[::-1]
            if not (levels.size and levels[0] <= 1 and levels[-1] > 0):
                raise ValueError(f"levels must be numbers in (0, 1], but {levels} was given.")
        display = cls(levels=levels, risks=tail_means(losses, p, levels), name=name, unit=unit)
        return display.plot(ax, **kwargs)

    def plot(
        self, ax: Any = None, *, name: str | None = None, scale: str = "auto", **kwargs: Any
    ) -> TailRiskDisplay:
        """Draw it.

        Parameters
        ----------
        ax : Axes, optional
            Those of a new figure where none are given.
        name : str, optional
        scale : {"auto", "linear", "log"}
            Of the axis of the losses. "auto" is logarithmic where a few losses are far above all
            others.
        **kwargs
            For `Axes.plot`.

        Returns
        -------
        self
        """
        check_option("scale", scale, SCALES)
        ax = axes_for(ax)
        style = {"label": self.name if name is None else name, "linewidth": 1.5}
        style = styled("lines.Line2D", style, kwargs)
        (self.line_,) = ax.plot(self.levels, self.risks, **style)
        ax.set_xscale("log")
        shown = ax.dataLim.intervalx
        ax.set_xlim(max(shown), min(shown))
        ax.xaxis.get_major_locator().set_params(subs=(1.0, 2.0, 5.0))
        ax.xaxis.set_major_formatter(_percent)
        ax.xaxis.set_minor_formatter("")
        ax.set_xlabel("worst share of the rows")
        ax.set_ylabel(f"mean {self.unit}")
        scale_losses(ax, "y", scale, is_wide(self.risks))
        add_legend(ax, loc="upper left")
        add_title(ax, "Mean loss of the worst rows")
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _percent(value: float, place: int) -> str:
    """A tick as a percentage, with as many digits as it needs."""
    return f"{100 * value:g}%"
