"""The figures, from the results alone; each as PNG and PDF.

The y-axes are the paper's normalised suboptimality ``(P(w_t) - P*) / (P(w_0) - P*)`` down to 1e-10.
Oracle calls are on a linear axis; seconds on a logarithmic one, for the methods differ by a factor
of a thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from improvements import changes, compare
from matplotlib.ticker import LogLocator, NullFormatter
from methods import METHODS
from plan import TARGET
from problems import Spec
from store import Results, Run

import drago
from drago.plotting import SimplexDisplay

# The width of a page of text, in inches, and the height of a row of panels.
WIDTH, ROW = 6.75, 1.75
FONT = {
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.1,
}
# Baselines are warm and dashed; the paper's DRAGO is blue, darker for larger blocks.
STYLES: dict[str, dict[str, Any]] = {
    "sgd": {"color": "#E69F00", "linestyle": "--", "linewidth": 0.8},
    "lsvrg": {"color": "#D55E00", "linestyle": "--"},
    "prospect": {"color": "#CC79A7", "linestyle": "--"},
    "lbfgs": {"color": "#000000", "linestyle": ":"},
    "drago-1": {"color": "#A6CEE3", "linestyle": "-"},
    "drago-16": {"color": "#56B4E9", "linestyle": "-"},
    "drago-64": {"color": "#0072B2", "linestyle": "-"},
    "drago-256": {"color": "#4B3F9E", "linestyle": "-"},
    "drago-n/d": {"color": "#08306B", "linestyle": "-"},
    "drago-lagged": {"color": "#08306B", "linestyle": "-."},
    "drago-auto": {"color": "#009E73", "linestyle": "-", "linewidth": 1.6},
}
STYLES |= {
    name.replace("drago", "steady"): style
    for name, style in STYLES.items()
    if name.startswith("drago") and name not in ("drago-lagged", "drago-auto")
}
_LABELS = {"calls": "oracle calls", "seconds": "wall time in seconds (log scale)"}
# Where a curve that touches the optimum up to rounding is drawn.
_FLOOR = 0.3 * TARGET


def draw_all(
    results: Results,
    folder: Path,
    suffixes: Sequence[str] = ("png", "pdf"),
    dpi: int = 200,
    redraw: bool = True,
) -> list[str]:
    """Draw every figure, or those that are not there; returns the names of all."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = _figures(results)
    with plt.rc_context(FONT):
        for name, draw in figures.items():
            paths = [folder / f"{name}.{suffix}" for suffix in suffixes]
            if all(path.exists() for path in paths) and not redraw:
                continue
            figure = draw()
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # it is laid out now, for all formats
            for path in paths:
                # No date inside: the same results give the same file.
                metadata = {"CreationDate": None} if path.suffix == ".pdf" else None
                figure.savefig(path, dpi=dpi, metadata=metadata)
            plt.close(figure)
    return list(figures)


def _figures(results: Results) -> dict[str, Callable[[], Any]]:
    plan = results.plan
    found: dict[str, Callable[[], Any]] = {"uncertainty": uncertainty_sets}
    for axis in ("calls", "seconds"):
        for group in ("regression", "chi2"):
            found[f"{group}_{axis}"] = lambda group=group, axis=axis: by_data(results, group, axis)
        found[f"batch_{axis}"] = lambda axis=axis: by_blocks(results, axis)
    found["text"] = lambda: by_shift_cost(results)
    if plan.tables:
        found["rates"] = lambda: rates(results)
        found["cost"] = lambda: cost(results)
    found["ablation"] = lambda: ablation(results)
    return found


# ----------------------------------------------------------------------------- the sets


def uncertainty_sets() -> Any:
    """Three rows: the set, the objective, and its maximum as the shift cost falls."""
    losses = [1.0, 2.0, 4.0]
    panels: list[tuple[str, Any, str]] = [
        (r"CVaR, $\theta$ = 0.5, $\chi^2$ penalty", drago.CVaR(0.5), "chi2"),
        (r"CVaR, $\theta$ = 0.5, KL penalty", drago.CVaR(0.5), "kl"),
        (r"$\chi^2$ ball, radius 0.2", drago.Chi2Ball(0.2), "chi2"),
    ]
    figure, axes = plt.subplots(1, 3, figsize=(WIDTH, 2.5), layout="constrained")
    for ax, (title, kind, divergence) in zip(axes, panels):
        display = SimplexDisplay.from_losses(
            losses, kind, divergence, contour_cost=2.0, name="uncertainty set", ax=ax
        )
        display.ax_.get_legend().remove()
        ax.set(title=title, xlim=(-0.12, 1.12), ylim=(-0.12, 1.0))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


# ------------------------------------------------------------------------------- curves


def by_data(results: Results, group: str, axis: str) -> Any:
    """A panel for each data set."""
    specs, methods = results.plan.groups()[group]
    columns = min(len(specs), 4 if len(specs) > 6 else 3)
    figure, axes = _grid(len(specs), columns)
    for ax, spec in zip(axes, specs):
        n, d = _size(results, spec, methods)
        name = spec.title if columns < 4 else spec.title.replace(" (", "\n(")
        _panel(ax, results, spec, methods, axis, f"{name}\nn = {n:,}, d = {d}")
    _outer(axes, columns, len(specs), axis)
    _legend(figure, methods, results)
    return figure


def by_shift_cost(results: Results) -> Any:
    """Text: a column for each nu; calls above, seconds below."""
    specs, methods = results.plan.groups()["text"]
    figure, axes = plt.subplots(
        2, len(specs), figsize=(WIDTH, 2 * ROW + 0.9), layout="constrained", squeeze=False
    )
    for row, axis in zip(axes, ("calls", "seconds")):
        for ax, spec in zip(row, specs):
            title = rf"{spec.data}, $\nu$ = {spec.nu:g}" if axis == "calls" else ""
            _panel(ax, results, spec, methods, axis, title)
            ax.set_xlabel(_LABELS[axis])
        row[0].set_ylabel("suboptimality")
    _legend(figure, methods, results)
    return figure


def by_blocks(results: Results, axis: str) -> Any:
    """A row for each data set and a column for each (mu, nu)."""
    specs, methods = results.plan.groups()["batch"]
    names = list(dict.fromkeys(spec.data for spec in specs))
    columns = len(specs) // len(names)
    figure, axes = _grid(len(specs), columns)
    for ax, spec in zip(axes, specs):
        title = rf"{spec.data}" "\n" rf"$\mu$ = {spec.mu:g}, $\nu$ = {spec.nu:g}"
        _panel(ax, results, spec, methods, axis, title)
    _outer(axes, columns, len(specs), axis)
    _legend(figure, methods, results)
    return figure


def _grid(count: int, columns: int) -> tuple[Any, list[Any]]:
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(WIDTH, rows * ROW + 0.8), layout="constrained", squeeze=False
    )
    for ax in axes.flat[count:]:
        ax.set_axis_off()
    return figure, list(axes.flat[:count])


def _size(results: Results, spec: Spec, methods: Sequence[str]) -> tuple[int, int]:
    run = results.runs(spec, methods[0])[0]
    return run.n, run.d


def _panel(
    ax: Any, results: Results, spec: Spec, methods: Sequence[str], axis: str, title: str
) -> None:
    everything = [run for method in methods for run in results.runs(spec, method)]
    ax.set(yscale="log", ylim=(_FLOOR, 30.0), title=title)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(width=0.6)
    ax.set_yticks([1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1.0])
    ax.grid(axis="y", linewidth=0.3, color="#DDDDDD")
    if axis == "seconds":
        ax.set_xscale("log")
        # The start of a run is at no time at all; a curve begins with its first point after that.
        first = min(run.seconds[run.seconds > 0].min(initial=1.0) for run in everything)
        last = max(float(run.seconds[-1]) for run in everything)
        ax.set_xlim(max(first, 1e-5), 1.3 * max(last, 1e-4))
    else:
        most = max(float(run.calls[-1]) for run in everything)
        n = everything[0].n
        ax.set_xlim(0.0, max(min(most, results.plan.shown * n), 1.0))
        ax.ticklabel_format(axis="x", style="sci", scilimits=(0, 0), useMathText=True)
        ax.xaxis.get_offset_text().set_fontsize(6)
    for run in everything:
        _draw(ax, run, axis)
    missing = [METHODS[run.method].label for run in everything if run.end == "no step size"]
    if missing:
        names = ", ".join(dict.fromkeys(missing)).replace(", DRAGO b =", ",")
        words = "\n".join(["no step size of the", "grid converges for", names.replace(" b", "\nb")])
        ax.text(1.0, 0.6, words, transform=ax.transAxes, fontsize=5, ha="right", va="top")


def _draw(ax: Any, run: Run, axis: str) -> None:
    style = STYLES[run.method] | ({} if run.seed == 0 else {"alpha": 0.45, "linewidth": 0.7})
    x = getattr(run, axis)
    y = np.maximum(run.suboptimality, _FLOOR)
    ax.plot(x, y, **style)
    if run.end == "limit":
        ax.plot(x[-1:], y[-1:], marker="x", markersize=3.5, color=style["color"])


def _outer(axes: Sequence[Any], columns: int, count: int, axis: str) -> None:
    """Words at the outer panels only."""
    for k, ax in enumerate(axes):
        if k % columns == 0:
            ax.set_ylabel("suboptimality")
        if k + columns >= count:
            label = _LABELS[axis]
            ax.set_xlabel(label if columns < 4 else label.replace(" (log", "\n(log"))


def _legend(figure: Any, methods: Sequence[str], results: Results) -> None:
    handles = [plt.Line2D([], [], label=METHODS[name].label, **STYLES[name]) for name in methods]
    if any(run.end == "limit" for run in results.all_runs()):
        label = "ended by the time limit"
        handles.append(plt.Line2D([], [], label=label, color="#666666", marker="x", linestyle=""))
    columns = min(len(handles), 4)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)


# ---------------------------------------------------------------------- rates and costs


def rates(results: Results) -> Any:
    """Iterations a decade against one parameter at a time, and the paper's bound."""
    rows = results.table("rates")
    names = list(dict.fromkeys(row["varied"] for row in rows))
    words = {"nu": r"$\nu$", "mu": r"$\mu$", "kappa": r"$\kappa_Q$", "b": "block size $b$"}
    figure, axes = plt.subplots(
        1, len(names), figsize=(WIDTH, 2.4), layout="constrained", squeeze=False
    )
    for ax, name in zip(axes[0], names):
        some = [row for row in rows if row["varied"] == name and np.isfinite(row["iterations"])]
        x = np.array([row[name] for row in some])
        ax.loglog(x, [row["iterations"] for row in some], "o-", color="#0072B2", markersize=3)
        ax.loglog(x, [row["bound"] for row in some], "--", color="#666666")
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_xlabel(words[name])
    axes[0][0].set_ylabel("iterations for a factor of ten")
    handles = [
        plt.Line2D([], [], color="#0072B2", marker="o", markersize=3, label="measured"),
        plt.Line2D([], [], color="#666666", linestyle="--", label="the paper's bound, constant 1"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def cost(results: Results) -> Any:
    """Time of an iteration against n + b d, and what is kept in memory."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.4), layout="constrained")
    rows = results.table("costs")
    markers = dict(zip(sorted({row["b"] for row in rows}), "osD^v"))
    for b, marker in markers.items():
        some = [row for row in rows if row["b"] == b]
        x = [row["n"] + row["b"] * row["d"] for row in some]
        y = [1e3 * row["seconds"] for row in some]
        left.loglog(x, y, marker, label=f"b = {b:,}", markersize=4, mfc="none")
    left.set(xlabel="n + b d", ylabel="ms an iteration")
    left.legend(frameon=False)
    kept = results.table("memory")
    labels = [f"{row['kept']}, b = {row['b']:,}" for row in kept]
    n, d = kept[0]["n"], kept[0]["d"]
    right.barh(labels, [row["numbers"] / n for row in kept], color="#56B4E9")
    right.axvline(d, color="#666666", linestyle="--")
    right.invert_yaxis()
    right.set(xlabel=f"numbers kept / n (dashed: d = {d})", title=f"n = {n:,}, d = {d}")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def ablation(results: Results) -> Any:
    """How many times longer it takes without each improvement."""
    specs = list(results.plan.ablation)
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 2.7), layout="constrained", sharey=True)
    markers = dict(zip(specs, "osD^v"))
    names = [change.name for change in changes()]
    for ax, axis in zip(axes, ("calls", "seconds")):
        for k, change in enumerate(changes()):
            for spec in specs:
                found = compare(results, spec, change, axis)
                if not np.isfinite(found.ratio):
                    continue
                ax.plot(found.ratio, k, markers[spec], color="#0072B2", mfc="none", markersize=5)
                if not found.exact:  # a bound: the truth lies where the arrow points
                    arrow = r"$\rightarrow$" if np.isfinite(found.better) else r"$\leftarrow$"
                    side = "left" if np.isfinite(found.better) else "right"
                    shift = (5 if side == "left" else -5, 0)
                    ax.annotate(
                        arrow, (found.ratio, k), shift, textcoords="offset points",
                        ha=side, va="center", color="#0072B2",
                    )  # fmt: skip
        ax.axvline(1.0, color="#666666", linewidth=0.6)
        ax.set(xscale="log", xlabel=f"{axis} without it / with it", yticks=range(len(names)))
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_yticklabels(names)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    handles = [
        plt.Line2D(
            [], [], marker=mark, linestyle="", color="#0072B2", mfc="none",
            label=rf"{spec.data}, $\mu$ = {spec.mu:g}",
        )
        for spec, mark in markers.items()
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure
