"""Which rows the adversary picks."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago._validation import check_number, check_option, check_vector, shown
from drago.plotting._axes import (
    add_legend,
    add_title,
    axes_for,
    level_line,
    scale_losses,
    styled,
)
from drago.plotting._models import (
    SCALES,
    cap_of,
    curves,
    inside,
    is_heavy,
    losses_of,
    nominal,
    unit_of,
)

# Points from which on a vector graphic would be slow to show.
_MANY = 5000


class WeightsDisplay:
    """The worst-case weight of each row against its loss.

    Weights are given as multiples of the nominal ones: 1 is what a row has in a plain mean, 0 says
    that the robust objective does not see it. With a `CVaR` no row gets more than
    ``1 / tail_fraction``, the cap. Create it with `from_estimator` or `from_predictions`.

    Parameters
    ----------
    losses : array of shape (n,)
    times : array of shape (n,)
        Weight over nominal weight.
    cap : float, optional
        The largest multiple that the set allows.
    name : str, optional
        For the legend.
    unit : str
        What a loss is called.

    Attributes
    ----------
    line_ : Line2D
        The points.
    cap_line_, nominal_line_ : Line2D or None
        None where there is no cap, or where the same line is on the axes already.
    ax_ : Axes
    figure_ : Figure

    Examples
    --------
    >>> import numpy as np, drago
    >>> from drago.plotting import WeightsDisplay
    >>> X = np.arange(20.0).reshape(-1, 1)
    >>> model = drago.DRORegressor(drago.CVaR(0.2)).fit(X, X[:, 0] ** 2)
    >>> display = WeightsDisplay.from_estimator(model, X, X[:, 0] ** 2)
    """

    line_: Any
    cap_line_: Any
    nominal_line_: Any
    ax_: Any
    figure_: Any

    def __init__(
        self,
        *,
        losses: Any,
        times: Any,
        cap: float | None = None,
        name: str | None = None,
        unit: str = "loss",
    ) -> None:
        self.losses, self.times = curves(losses=losses, times=times)
        self.cap = cap
        self.name, self.unit = name, unit

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        X: Any,
        y: Any,
        *,
        uncertainty: Any = None,
        groups: Any = None,
        baseline: Any = None,
        sample_weight: Any = None,
        name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> WeightsDisplay:
        """Draw the worst-case weights for the losses of a model on some data.

        They are those of `worst_case_report`: under the model's set, divergence and shift cost.
        For another model, and where a set is given, under that set without a shift cost.

        Parameters
        ----------
        model : fitted scikit-learn model, pipeline or search
        X, y : the data, training or held out
        uncertainty : UncertaintySet or its short name, optional
            Needed for a model that is not of this library.
        groups : array of shape (n,), optional
            Needed for a `Grouped` set.
        baseline : array of shape (n,), optional
            Subtracted from the losses before the weights are found, as in a fit with a baseline.
        sample_weight : array of shape (n,), optional
        name : str, optional
            For the legend; the model's set where it is not given.
        ax : Axes, optional
        **kwargs
            For `Axes.plot`.

        Returns
        -------
        WeightsDisplay
        """
        from drago.estimators.presets import as_set

        found = inside(model, X)
        if found is None or uncertainty is not None:
            if uncertainty is None:
                raise ValueError(
                    f"uncertainty must be given for {shown(model)}, which has no set of its own, "
                    "as in uncertainty=CVaR(0.1)."
                )
            chosen = as_set(uncertainty)
            losses, _, _ = losses_of(model, X, y)
            _, p, there = nominal(losses, sample_weight)
            labels = None if groups is None else np.asarray(groups)[there]
            weights = np.zeros(losses.size)
            excess = losses
            if baseline is not None:
                excess = losses - check_vector("baseline", baseline, losses.size)
            weights[there] = chosen.oracle(p, groups=labels).weights(excess[there], 0.0)
            return cls.from_predictions(
                losses,
                weights,
                sample_weight=sample_weight,
                cap=cap_of(chosen),
                name=chosen.label if name is None else name,
                unit=unit_of(model),
                ax=ax,
                **kwargs,
            )
        model, X = found
        report = model.worst_case_report(
            X, y, groups=groups, sample_weight=sample_weight, baseline=baseline, n_rows=0
        )
        return cls.from_predictions(
            report.losses,
            report.dual_weights,
            sample_weight=report.nominal_weights,
            cap=cap_of(model.uncertainty_),
            name=model.uncertainty_.label if name is None else name,
            unit=unit_of(model),
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        losses: Any,
        weights: Any,
        *,
        sample_weight: Any = None,
        cap: float | None = None,
        name: str | None = None,
        unit: str = "loss",
        ax: Any = None,
        **kwargs: Any,
    ) -> WeightsDisplay:
        """Draw weights against losses, whatever they come from.

        Parameters
        ----------
        losses : array of shape (n,)
        weights : array of shape (n,)
            With sum 1, such as `dual_weights` of a result.
        sample_weight : array of shape (n,), optional
            The nominal weights, up to a factor; all the same where they are not given.
        cap : float, optional
            The largest multiple of the nominal weights that the set allows.
        name : str, optional
        unit : str
            What a loss is called.
        ax : Axes, optional
        **kwargs
            For `plot`.

        Returns
        -------
        WeightsDisplay
        """
        losses, p, there = nominal(losses, sample_weight)
        weights = check_vector("weights", weights, there.size)[there]
        if cap is not None:
            cap = check_number("cap", cap, low=1)
        display = cls(losses=losses, times=weights / p, cap=cap, name=name, unit=unit)
        return display.plot(ax, **kwargs)

    def plot(
        self, ax: Any = None, *, name: str | None = None, scale: str = "auto", **kwargs: Any
    ) -> WeightsDisplay:
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
            "marker": "o",
            "markersize": 4,
            "markeredgewidth": 0,
            "linestyle": "",
            "alpha": 0.5,
            "rasterized": self.losses.size > _MANY,
        }
        style = styled("lines.Line2D", style, kwargs)
        (self.line_,) = ax.plot(self.losses, self.times, **style)
        self.nominal_line_ = level_line(ax, 1.0, "nominal", right=True)
        self.cap_line_ = None
        if self.cap is not None and self.cap > 1:
            self.cap_line_ = level_line(ax, self.cap, f"cap {self.cap:g}")
        ax.set_xlabel(self.unit)
        scale_losses(ax, "x", scale, is_heavy(self.losses))
        ax.set_ylabel("weight / nominal weight")
        # Points may be anywhere, and its markers look like some: it goes above the axes.
        add_legend(ax, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        add_title(ax, "Worst-case weights of the rows")
        self.ax_, self.figure_ = ax, ax.figure
        return self
