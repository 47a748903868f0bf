"""Pieces of HTML: what notebooks show of an object, and what reports are made of.

Whatever is shown goes through `text`: names of columns, labels and messages may hold anything.
"""

from __future__ import annotations

import html
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# Characters of a name that are shown.
LONGEST = 120
# Lines of a table that a notebook shows.
MOST_LINES = 20
# Between thousands.
_THIN = "\u202f"
_RIGHT = ' style="text-align:right"'
# What cannot be shown, or turns the direction of what comes after it.
_UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


class Safe(str):
    """HTML that has been made here, and is shown as it is; a number, to the right of its cell."""


def text(value: Any, longest: int | None = LONGEST) -> str:
    """A value as text that is safe within HTML and within its attributes."""
    found = _UNSHOWN.sub("\ufffd", str(value))
    if longest is not None and len(found) > longest:
        found = found[: longest - 1] + "…"
    return html.escape(found, quote=True)


def number(value: Any, digits: int = 4) -> str:
    """A number with some digits; a dash for NaN."""
    if isinstance(value, Safe):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return text(value)
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}".replace(",", _THIN).replace("-", "−")
    value = float(value)
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{digits}g}".replace("-", "−")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    shown = f"{value:,.{places}f}".replace(",", _THIN).replace("-", "−")
    return shown.rstrip("0").rstrip(".") if places else shown


def is_number(value: Any) -> bool:
    """Whether it is shown as a number, to the right of its cell."""
    return isinstance(value, (Safe, numbers.Real)) and not isinstance(value, bool)


def table(
    columns: Mapping[str, Iterable[Any]],
    caption: str = "",
    *,
    heads: Mapping[str, str] | None = None,
    most: int | None = None,
) -> str:
    """Columns as a table; the first one names the lines.

    Parameters
    ----------
    columns : dict of columns
    caption : str
    heads : dict, optional
        What a column is called, where that is not its key.
    most : int, optional
        Lines that are shown at most; a last line counts the others.
    """
    values = {name: _listed(column) for name, column in columns.items()}
    lines = list(zip(*values.values()))
    called = [(heads or {}).get(name, name) for name in values]
    shown = lines if most is None else lines[:most]
    parts = ["<table>"]
    if caption:
        parts.append(f"<caption><span>{text(caption, None)}</span></caption>")
    parts.append("<thead><tr>")
    for name, column in zip(called, values.values()):
        right = _RIGHT if column and all(is_number(value) for value in column) else ""
        parts.append(f'<th scope="col"{right}>{text(name)}</th>')
    parts.append("</tr></thead><tbody>")
    parts += [_line(line) for line in shown]
    if len(lines) > len(shown):
        more = f"and {len(lines) - len(shown)} more"
        parts.append(f'<tr><td colspan="{len(called)}">{more}</td></tr>')
    parts.append("</tbody></table>")
    return "".join(parts)


def pairs(facts: Mapping[str, Any], caption: str = "") -> str:
    """Names and values as a table of two columns."""
    parts = ["<table>"]
    if caption:
        parts.append(f"<caption><span>{text(caption, None)}</span></caption>")
    parts.append("<tbody>")
    parts += [
        f'<tr><th scope="row">{text(name)}</th>{_cell(value)}</tr>' for name, value in facts.items()
    ]
    parts.append("</tbody></table>")
    return "".join(parts)


def shows(names: str) -> Callable[[Any], str]:
    """A method that shows some attributes of an object, by their names."""

    def _repr_html_(self: Any) -> str:
        return card(
            type(self).__name__, pairs({name: getattr(self, name) for name in names.split()})
        )

    return _repr_html_


def card(title: str, *parts: str) -> str:
    """What a notebook shows of an object: a title and what belongs to it."""
    return f"<div><p><strong>{text(title)}</strong></p>{''.join(parts)}</div>"


def paragraph(words: Any) -> str:
    """A sentence or more."""
    return f"<p>{text(words, None)}</p>"


def _line(cells: Sequence[Any]) -> str:
    first, *rest = cells
    head = number(first) if is_number(first) else text(first)
    return f'<tr><th scope="row">{head}</th>{"".join(map(_cell, rest))}</tr>'


def _cell(value: Any) -> str:
    if is_number(value):
        return f"<td{_RIGHT}>{number(value)}</td>"
    return f"<td>{text(value)}</td>"


def _listed(column: Iterable[Any]) -> list[Any]:
    return column.tolist() if hasattr(column, "tolist") else list(column)
