"""The adversary's choice among three rows, in the triangle of their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import check_nominal, check_number, check_vector
from drago.plotting._axes import GREY, add_legend, add_title, axes_for, styled
from drago.terms.uncertainty import Simplex, as_uncertainty

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Where the weights (1, 0, 0), (0, 1, 0) and (0, 0, 1) lie in the picture.
CORNERS: Matrix = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
# Directions in which the set's edge is sought; points on a side of the triangle of the contours'
# grid; steps of the path from the nominal weights to the vertex; lines of equal value.
_DIRECTIONS = 720
_GRID = 120
_STEPS = 200
_CONTOURS = 12
# What is seen: the triangle, with room for the losses at its corners; and where the legend begins.
_LIMITS = ((-0.1, 1.1), (-0.1, 0.96))
_BESIDE = (0.75, 0.98)


class SimplexDisplay:
    """The worst-case weights of three rows in a triangle, for several shift costs.

    Every point of the triangle is a way to weight the three rows, ``q``: a corner gives all weight
    to one row. The weights that the uncertainty set allows are filled in. Thin lines are contour
    lines, for one shift cost nu, of what the worst-case weights maximise:
    ``<q, losses> - nu D(q || p)``. The thick one goes through the maximum over the set. Dots are
    the maxima for several shift costs: for a high one they are next to the nominal weights ``p``,
    and as it falls they move to the edge of the set. Create it with `from_losses`.

    Parameters
    ----------
    losses, p : arrays of shape (3,)
        The losses and the nominal weights.
    edge : array of shape (n_points, 3)
        The corners of a polygon that is the set, or as good as.
    shift_costs : array of shape (n_costs,)
    weights : array of shape (n_costs, 3)
        The maximum for each shift cost.
    path : array of shape (n_steps, 3)
        The maxima for all shift costs from infinity to 0.
    contour_cost : float
        The shift cost of the contours.
    grid, values : arrays of shape (n_grid, 3) and (n_grid,)
        Weights and the objective there.
    level : float
        The largest value on the set.
    name : str, optional
        Of the set.

    Attributes
    ----------
    patch_ : Polygon
        The set.
    line_ : Line2D
        The path.
    points_ : Line2D
        The maxima.
    contours_ : TriContourSet
    ax_ : Axes
    figure_ : Figure

    Examples
    --------
    >>> from drago import CVaR
    >>> from drago.plotting import SimplexDisplay
    >>> display = SimplexDisplay.from_losses([1.0, 2.0, 4.0], CVaR(0.5))
    >>> display.path[-1].round(3)
    array([0.   , 0.333, 0.667])
    """

    patch_: Any
    line_: Any
    points_: Any
    contours_: Any
    ax_: Any
    figure_: Any

    def __init__(
        self,
        *,
        losses: Any,
        p: Any,
        edge: Any,
        shift_costs: Any,
        weights: Any,
        path: Any,
        contour_cost: float,
        grid: Any,
        values: Any,
        level: float,
        name: str | None = None,
    ) -> None:
        self.losses, self.p = np.asarray(losses), np.asarray(p)
        self.edge, self.path = np.asarray(edge), np.asarray(path)
        self.shift_costs, self.weights = np.asarray(shift_costs), np.asarray(weights)
        self.contour_cost = contour_cost
        self.grid, self.values = np.asarray(grid), np.asarray(values)
        self.level = level
        self.name = name

    @classmethod
    def from_losses(
        cls,
        losses: Any,
        uncertainty: Any = "cvar",
        divergence: Any = "auto",
        *,
        shift_costs: Any = None,
        contour_cost: float | None = None,
        p: Any = None,
        name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> SimplexDisplay:
        """Draw the picture for the losses of three rows.

        Parameters
        ----------
        losses : array of shape (3,)
        uncertainty : a set or its name
            As for `DROProblem`, but for `Grouped` sets.
        divergence : {"auto", "chi2", "kl"} or Divergence
        shift_costs : array of positive numbers, optional
            Those whose maxima are marked; by default from 4 times to a quarter of the spread of the
            losses.
        contour_cost : float > 0, optional
            The shift cost of the contours; by default the first of `shift_costs`, from the
            largest, for which the set makes a difference.
        p : array of shape (3,), optional
            Nominal weights; 1/3 each where they are not given.
        name : str, optional
            For the legend; the set where it is not given.
        ax : Axes, optional
        **kwargs
            For the patch of the set.

        Returns
        -------
        SimplexDisplay
        """
        losses = check_vector("losses", losses, 3)
        p = np.full(3, 1.0 / 3.0) if p is None else check_nominal(p)
        check_vector("p", p, 3)
        uncertainty = as_uncertainty(uncertainty)
        divergence = uncertainty.match(divergence)
        if shift_costs is None:
            spread = float(losses.max() - losses.min()) or 1.0
            shift_costs = spread * 2.0 ** np.arange(2, -3, -1)
        count = max(np.size(shift_costs), 1)
        shift_costs = check_vector("shift_costs", np.atleast_1d(shift_costs), count, what="cost")
        shift_costs = np.sort(shift_costs)[::-1]
        check_number("shift_costs", float(shift_costs[-1]), low=0, open_low=True)

        def best(u: Vector, cost: float) -> Vector:
            return uncertainty.worst_case(u, cost, divergence, p)

        if contour_cost is None:
            free = [Simplex().worst_case(losses, cost, divergence, p) for cost in shift_costs]
            held = [abs(best(losses, c) - q).max() > 1e-9 for c, q in zip(shift_costs, free)]
            contour_cost = float(shift_costs[np.argmax(held) if any(held) else -1])
        nu = check_number("contour_cost", contour_cost, low=0, open_low=True)

        def value(q: Vector) -> float:
            return float(losses @ q) - nu * divergence.value(q, p)

        between = np.geomspace(100.0 * shift_costs[0], 0.01 * shift_costs[-1], _STEPS)
        grid = _grid()
        display = cls(
            losses=losses,
            p=p,
            edge=_edge(best),
            shift_costs=shift_costs,
            weights=np.array([best(losses, cost) for cost in shift_costs]),
            path=np.array([p, *(best(losses, cost) for cost in between), best(losses, 0.0)]),
            contour_cost=nu,
            grid=grid,
            values=np.array([value(q) for q in grid]),
            level=value(best(losses, nu)),
            name=uncertainty.label if name is None else name,
        )
        return display.plot(ax, **kwargs)

    def plot(self, ax: Any = None, *, name: str | None = None, **kwargs: Any) -> SimplexDisplay:
        """Draw it.

        Parameters
        ----------
        ax : Axes, optional
            Those of a new figure where none are given.
        name : str, optional
        **kwargs
            For the patch of the set.

        Returns
        -------
        self
        """
        ax = axes_for(ax)
        ax.set_axis_off()
        ax.set_aspect("equal")
        ax.set(xlim=_LIMITS[0], ylim=_LIMITS[1])
        style = {
            "label": self.name if name is None else name,
            "linewidth": 0,
            "alpha": 0.3,
            "zorder": 1,
        }
        style = styled("patches.Polygon", style, kwargs)
        (self.patch_,) = ax.fill(*(self.edge @ CORNERS).T, **style)
        step = (self.values.max() - self.values.min()) / _CONTOURS
        levels = self.level + step * np.arange(-_CONTOURS, _CONTOURS + 1)
        self.contours_ = ax.tricontour(
            *(self.grid @ CORNERS).T,
            self.values,
            levels=levels,
            colors=GREY,
            linestyles="solid",
            linewidths=np.where(levels == self.level, 1.2, 0.4),
            zorder=2,
        )
        text = rf"objective, $\nu$ = {self.contour_cost:.3g}"
        ax.plot([], [], color=GREY, linewidth=1.2, label=text)
        ax.plot(*CORNERS[[0, 1, 2, 0]].T, color="black", linewidth=0.8, zorder=3)
        (self.line_,) = ax.plot(*(self.path @ CORNERS).T, color="black", linewidth=1, zorder=4)
        costs = f"{self.shift_costs[0]:.3g} to {self.shift_costs[-1]:.3g}"
        (self.points_,) = ax.plot(
            *(self.weights @ CORNERS).T,
            color="black",
            linestyle="",
            marker="o",
            markersize=4,
            label=rf"maximum, $\nu$ = {costs}",
            zorder=5,
        )
        self._write_on(ax)
        # Beside the upper corner, however large the axes are.
        beside = {"bbox_to_anchor": _BESIDE, "bbox_transform": ax.transData}
        add_legend(ax, loc="upper left", borderaxespad=0, frameon=False, **beside)
        add_title(ax, "Worst-case weights of three rows")
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _write_on(self, ax: Any) -> None:
        """The losses at the corners, and where the path begins."""
        words = [f"loss {loss:g}" for loss in self.losses] + ["$p$"]
        places = [*CORNERS, self.p @ CORNERS]
        for text, place, up in zip(words, places, (False, False, True, False)):
            ax.annotate(
                text,
                place,
                xytext=(0, 4 if up else -4),
                textcoords="offset points",
                ha="center",
                va="bottom" if up else "top",
                fontsize="small",
                zorder=6,
            )
        ax.plot(*places[-1], color="black", marker="o", markersize=4, mfc="white", zorder=5)


def _edge(best: Any) -> Matrix:
    """The points of the set that lie farthest in directions all around."""
    angles = np.linspace(0.0, 2.0 * np.pi, _DIRECTIONS, endpoint=False)
    middle = CORNERS.mean(axis=0)
    ahead = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points = np.array([best(u, 0.0) for u in ahead @ (CORNERS - middle).T])
    # A vertex is the farthest point of many directions.
    new = np.abs(points - np.roll(points, 1, axis=0)).max(axis=1) > 1e-9
    return points[new] if new.any() else points[:1]


def _grid() -> Matrix:
    """Weights all over the triangle."""
    i, j = np.meshgrid(np.arange(_GRID + 1), np.arange(_GRID + 1))
    inside = i + j <= _GRID
    i, j = i[inside], j[inside]
    return np.stack([i, j, _GRID - i - j], axis=1) / _GRID
