"""What the pictures have in common: matplotlib itself, colours, spines, legends."""

from __future__ import annotations

import importlib
import math
from typing import Any

# The palette of Okabe and Ito, which all kinds of colour vision tell apart; without its yellow,
# which is too light for lines on white, and with its black kept for what belongs to no model.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
GREY = "#666666"
PALE = "#ECECEC"
# What belongs to no model lies behind and is grey.
BEHIND = 0
# Powers of ten that a logarithmic axis of losses spans at most.
_DECADES = 5.0
REFERENCE: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": "--", "zorder": BEHIND}


def pyplot() -> Any:
    """``matplotlib.pyplot``, or how to get it."""
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError(
            "drago.plotting draws with matplotlib, which could not be imported "
            f"({error}): pip install drago[plot]"
        ) from error


def axes_for(ax: Any, *, markers: bool = False) -> Any:
    """The axes to draw on: those given, or those of a new figure of 4 x 3 inches.

    Axes with nothing on them yet get the colours of this package, and `markers` to match.
    """
    plt = pyplot()
    if ax is None:
        _, ax = plt.subplots(figsize=(4, 3), layout="constrained")
    if not ax.has_data():
        cycle: dict[str, Any] = {"color": COLOURS}
        if markers:
            cycle["marker"] = MARKERS
        ax.set_prop_cycle(**cycle)
        ax.tick_params(width=0.6, labelsize="small")
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_linewidth(0.6)
    return ax


def styled(artist: str, defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The style of an artist such as "lines.Line2D": what is given, short names as well ("lw")."""
    module, name = artist.split(".")
    kind = getattr(importlib.import_module(f"matplotlib.{module}"), name)
    normalised = importlib.import_module("matplotlib.cbook").normalize_kwargs(given, kind)
    return {**defaults, **normalised}


def is_drawn(ax: Any, label: str) -> bool:
    """Whether something of that label is there already, so that it is not drawn twice."""
    return label in ax.get_legend_handles_labels()[1]


def add_title(ax: Any, words: str) -> None:
    """A title, where there is no other; above a legend that lies above the axes."""
    if ax.get_title() not in ("", words):
        return
    legend, pad = ax.get_legend(), 6.0
    if legend is not None and legend.get_bbox_to_anchor()._bbox.y0 == 1.0:
        pad += 15.0 * math.ceil(len(legend.get_texts()) / legend._ncols) + 4.0
    ax.set_title(words, fontsize="medium", pad=pad)


def scale_losses(ax: Any, which: str, scale: str, is_heavy: bool) -> None:
    """The axis of losses, "x" or "y": logarithmic where they have a heavy tail, unless told.

    Once one of several curves made it so, it stays so. The least losses are cut off, because zeros
    and next to nothing would take all the room.
    """
    set_scale, set_limits = getattr(ax, f"set_{which}scale"), getattr(ax, f"set_{which}lim")
    if scale == "log" or (scale == "auto" and is_heavy):
        set_scale("log")
    if getattr(ax, f"get_{which}scale")() != "log":
        return
    place = 0 if which == "x" else 1
    high, least = ax.dataLim.max[place], ax.dataLim.minpos[place]
    if 0 < high < math.inf:
        set_limits(max(least, high * 10.0**-_DECADES) / 1.2, high * 1.5)


def add_legend(ax: Any, **place: Any) -> None:
    """A legend, where anything has a label; what lies behind the curves comes last in it.

    Its place is one where a picture of that kind is empty: to search for the best one would take
    long with many rows.
    """
    entries = list(zip(*ax.get_legend_handles_labels()))
    if entries:
        entries.sort(key=lambda entry: getattr(entry[0], "zorder", 1) == BEHIND)
        ax.legend(*zip(*entries), fontsize="small", framealpha=1, edgecolor="none", **place)


def level_line(ax: Any, height: float, text: str, *, right: bool = False) -> Any:
    """A dashed line with its name on it, at the left or the right end; None if it is there."""
    if any(other.get_text() == text for other in ax.texts):
        return None
    ax.annotate(
        text,
        (float(right), height),
        xycoords=("axes fraction", "data"),
        xytext=(-3 if right else 3, 2),
        textcoords="offset points",
        ha="right" if right else "left",
        fontsize="small",
        color=GREY,
    )
    return ax.axhline(height, **REFERENCE)


def power_of_ten(value: float) -> str:
    """A number for a label: as a power of ten where it is one."""
    mantissa, exponent = f"{value:e}".split("e")
    if float(mantissa) == 1.0 and abs(int(exponent)) > 2:
        return f"$10^{{{int(exponent)}}}$"
    return f"{value:g}"
