"""Reports in a real browser: nothing to complain about on its console."""

import html
import shutil
import subprocess

import numpy as np
import pytest

import drago
from pages import HOSTILE, case

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for path in map(shutil.which, NAMES) if path), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(NAMES)} is installed")


def load(path, profile, *, width=1400, dark=False):
    """The page as the browser sees it, and what it says on its console."""
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
            f"--user-data-dir={profile}", f"--window-size={width},2000", "--enable-logging=stderr",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_console_is_read(tmp_path):
    """The test below would pass on an empty list."""
    text = drago.html_report(*case("binary")[:3])
    path = tmp_path / "bad.html"
    path.write_text(text.replace("<main>", "<main><script>var a = 1</script>"))
    assert load(path, tmp_path / "profile")[1]


@pytest.mark.parametrize("name", ["groups", "binary"])
def test_no_error_on_the_console(name, tmp_path):
    model, X, y, groups = case(name)
    path = tmp_path / "report.html"
    path.write_text(drago.html_report(model, X, y, groups=groups, title=HOSTILE[0]))
    for width, dark in [(1400, False), (400, True)]:
        dom, said = load(path, tmp_path / "profile", width=width, dark=dark)
        assert said == []
        assert dom.count("<svg") == path.read_text().count("<svg") > 0
        assert "<script" not in dom


def test_nothing_is_wider_than_a_narrow_screen(tmp_path):
    """Wide tables scroll by themselves. In a frame, as windows have a least width."""
    model, X, y, groups = case("groups")
    text = drago.html_report(model, X, y, groups=np.char.add(groups, " " + "long" * 20))
    path = tmp_path / "frame.html"
    path.write_text(
        f'<title></title><iframe width="400" height="900" srcdoc="{html.escape(text)}" onload="'
        "document.title = contentDocument.documentElement.scrollWidth + '/' + clientWidth\">"
    )
    dom, _ = load(path, tmp_path / "profile")
    wide, screen = map(int, dom[dom.index("<title>") + 7 : dom.index("</title>")].split("/"))
    assert 300 < wide <= screen
