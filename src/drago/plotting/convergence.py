"""How fast a solve got how far."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import check_number, check_option
from drago.plotting._axes import (
    REFERENCE,
    add_legend,
    add_title,
    axes_for,
    is_drawn,
    power_of_ten,
    styled,
)
from drago.plotting._models import curves, unwrap
from drago.result import SolverResult

Vector = npt.NDArray[np.float64]

_LABELS = {"passes": "passes over the data", "time": "seconds"}


class ConvergenceDisplay:
    """The certified relative gap on the way, a point for each certificate.

    The gap bounds the distance to the optimum from above, so the truth lies on the curve or below
    it. Create it with `from_estimator` or `from_result`.

    Parameters
    ----------
    passes, seconds, rel_gap : arrays of shape (n_certificates,)
        Visits to all rows and seconds until each certificate, and the
        relative gap that it certifies.
    tol : float, optional
        The gap at which the solve was to stop.
    name : str, optional
        For the legend.

    Attributes
    ----------
    line_ : Line2D
    tol_line_ : Line2D or None
        None where there is no tolerance, or where the same one is on the axes already.
    ax_ : Axes
    figure_ : Figure

    Examples
    --------
    >>> import drago
    >>> from drago.plotting import ConvergenceDisplay
    >>> data = drago.datasets.load("diabetes", prepare="paper")
    >>> problem = drago.DROProblem(data.X, data.y, uncertainty=drago.CVaR(0.2))
    >>> display = ConvergenceDisplay.from_result(drago.solve(problem, "lbfgs"))
    >>> display = ConvergenceDisplay.from_result(drago.solve(problem, "drago"), ax=display.ax_)
    """

    line_: Any
    tol_line_: Any
    ax_: Any
    figure_: Any

    def __init__(
        self,
        *,
        passes: Any,
        seconds: Any,
        rel_gap: Any,
        tol: float | None = None,
        name: str | None = None,
    ) -> None:
        self.passes, self.seconds, self.rel_gap = curves(
            passes=passes, seconds=seconds, rel_gap=rel_gap
        )
        self.tol = tol
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        *,
        x: str = "passes",
        name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> ConvergenceDisplay:
        """Draw the course of a model's fit, and its tolerance.

        Parameters
        ----------
        model : DRORegressor or DROClassifier
            Fitted; or a pipeline or a search that ends in one.
        x : {"passes", "time"}
        name : str, optional
            For the legend; the name of the solver where it is not given.
        ax : Axes, optional
        **kwargs
            For `Axes.plot`.

        Returns
        -------
        ConvergenceDisplay
        """
        model = unwrap(model)
        return cls.from_result(model.result_, tol=model.tol, x=x, name=name, ax=ax, **kwargs)

    @classmethod
    def from_result(
        cls,
        result: SolverResult,
        *,
        tol: float | None = None,
        x: str = "passes",
        name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> ConvergenceDisplay:
        """Draw the course of a solve.

        Parameters
        ----------
        result : SolverResult
        tol : float, optional
            Drawn as a line.
        x : {"passes", "time"}
        name : str, optional
            For the legend; the name of the solver where it is not given.
        ax : Axes, optional
        **kwargs
            For `Axes.plot`.

        Returns
        -------
        ConvergenceDisplay
        """
        if not isinstance(result, SolverResult):
            raise TypeError(
                f"result must be a SolverResult, but a {type(result).__name__} was given; "
                "for a fitted model use from_estimator."
            )
        history = result.history
        display = cls(
            passes=history.n_passes,
            seconds=history.time,
            rel_gap=history.rel_gap,
            tol=tol,
            name=result.solver if name is None else name,
        )
        return display.plot(ax, x=x, **kwargs)

    def plot(
        self, ax: Any = None, *, x: str = "passes", name: str | None = None, **kwargs: Any
    ) -> ConvergenceDisplay:
        """Draw it.

        Parameters
        ----------
        ax : Axes, optional
            Those of a new figure where none are given.
        x : {"passes", "time"}
            What the gap is drawn against.
        name : str, optional
        **kwargs
            For `Axes.plot`.

        Returns
        -------
        self
        """
        label = _LABELS[check_option("x", x, _LABELS)]
        ax = axes_for(ax, markers=True)
        style = {
            "label": self.name if name is None else name,
            "linewidth": 1.5,
            "markersize": 4,
        }
        style = styled("lines.Line2D", style, kwargs)
        along = self.passes if x == "passes" else self.seconds
        (self.line_,) = ax.plot(along, self.rel_gap, **style)
        self.tol_line_ = None
        # A tolerance of 0 asks for all that rounding allows: there is no line to draw.
        if self.tol is not None and check_number("tol", self.tol, low=0) > 0:
            text = f"tolerance {power_of_ten(self.tol)}"
            if not is_drawn(ax, text):
                # Named in the legend: both ends of the line may have curves on them.
                self.tol_line_ = ax.axhline(self.tol, label=text, **REFERENCE)
        ax.set_yscale("log")
        ax.set_xlabel(label)
        ax.set_ylabel("certified relative gap")
        # Curves may be anywhere: it goes above the axes.
        add_legend(ax, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        add_title(ax, "Certified distance from the optimum")
        self.ax_, self.figure_ = ax, ax.figure
        return self
