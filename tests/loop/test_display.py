"""Progress on the way: what is told, by whom, and how it looks."""

import io
import sys

import numpy as np
import pytest

import drago
from drago._progress import begin, heard_by, listener, tell
from drago.loop.display import Bar, Display, displayed, new_display
from drago.loop.protocol import Progress


class Time:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self):
        return self.now


def progress(rel_gap, n_passes=1.0):
    nothing = dict.fromkeys(("n_iter", "coef", "intercept", "primal", "dual", "gap", "time"), 0.0)
    return Progress(**nothing, rel_gap=rel_gap, n_passes=n_passes)


def test_a_line_every_ten_seconds():
    time, out = Time(), io.StringIO()
    display = Display(out, time)
    with heard_by(display):
        begin("solve", 1000)
        display.limit(100.0)
        for _ in range(25):
            time.now += 1.0
            tell(100)
            if time.now == 15.0:
                display.certified(progress(1e-3))
    assert out.getvalue().splitlines() == [
        "solve: 1.0 passes, 100 rows/s, no certificate yet, 90 s left",
        "solve: 2.0 passes, 100 rows/s, certified relative gap 1.0e-03, 80 s left",
    ]


@pytest.mark.parametrize(("total", "words"), [(4000, "25% of 4000 rows"), (None, "1000 rows")])
def test_a_scan_says_how_much_of_it_is_done(total, words):
    time, out = Time(), io.StringIO()
    with heard_by(Display(out, time)):
        begin("scan", total)
        time.now = 20.0
        tell(1000)
    assert out.getvalue() == f"scan: {words}, 50 rows/s\n"


def test_rows_in_memory_are_counted_by_passes():
    time = Time()
    display = Display(io.StringIO(), time)
    display.begin("solve", 1000)
    time.now = 2.0
    display.certified(progress(1e-2, n_passes=4.0))
    assert display.passes == 4.0 and display.rate == 2000.0 and display.left is None


def test_nobody_listens_unless_asked_to():
    assert listener() is None
    tell(3)
    begin("solve", 3)
    with displayed(0) as display:
        assert display is None and listener() is None
    with displayed(1) as display, displayed(1) as inner:
        assert inner is display is listener()
    assert listener() is None


def test_a_bar_of_rich():
    console = pytest.importorskip("rich.console").Console
    out, time = io.StringIO(), Time()
    with Bar(console(file=out, force_terminal=True, width=100), time) as bar, heard_by(bar):
        begin("solve", 1000)
        time.now = 10.0
        tell(2500)
        bar.certified(progress(2e-3))
    text = out.getvalue()
    for words in ("solve", "2.5 passes", "250 rows/s", "certified relative gap 2.0e-03"):
        assert words in text


def test_lines_where_there_is_no_terminal_and_no_rich(monkeypatch):
    assert type(new_display()) is Display
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert type(new_display()) is Bar
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert type(new_display()) is Display


@pytest.fixture
def often(monkeypatch):
    """A line each time that something is told."""
    monkeypatch.setattr(Display, "pause", 0.0)


def test_a_fit_of_a_source_tells_of_its_scan_and_of_the_middle_of_passes(tmp_path, capsys, often):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 20))
    y = X[:, 0] + rng.standard_t(3, 4000)
    batches = [(X[k : k + 500], y[k : k + 500]) for k in range(0, 4000, 500)]
    source = drago.from_batches(batches, cache_dir=tmp_path, memory_limit=200_000)
    model = drago.DRORegressor("cvar", verbose=1, time_limit=1e4).fit(source)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    scan = [line for line in lines if line.startswith("scan: ")]
    solve = [line for line in lines if line.startswith("solve: ")]
    assert len(scan) == 8 and len(scan) + len(solve) == len(lines)
    assert len(solve) > 4 and all(line.endswith(" s left") for line in solve)
    passes = [float(line.split()[1]) for line in solve]
    assert passes == sorted(passes) and any(each % 1 for each in passes)
    assert "no certificate yet" in solve[0]
    head, *rest = out.splitlines()
    assert head.split()[-2:] == ["rows/s", "left"] and len(rest) == len(model.history_)


def test_silent_otherwise(tmp_path, capsys, often):
    X = np.random.default_rng(0).normal(size=(2000, 20))
    source = drago.from_batches([(X, X[:, 0])], cache_dir=tmp_path, memory_limit=100_000)
    drago.DRORegressor("cvar").fit(source)
    assert capsys.readouterr() == ("", "")
