"""Does every internal link of the built site lead somewhere? ``python links.py FOLDER``."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of a page, and what it loads from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.anchors.update(given[key] for key in ("id", "name") if key in given)
        for key in ("href", "src"):
            if key in given:
                self.links.append(given[key])
                if tag != "a" and urlsplit(given[key]).netloc:
                    self.loads.append(given[key])


def broken(root: Path) -> list[str]:
    """Links without a target, and whatever a page would load from the network."""
    pages = {
        path: Page(path.read_text()) for path in root.rglob("*.html") if "_static" not in path.parts
    }
    found = []
    for path, page in pages.items():
        home = path.relative_to(root)
        found += [f"{home}: loads {url}" for url in page.loads if "rel=canonical" not in url]
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                found.append(f"{home}: {link} is not there")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors | {""}:
                found.append(f"{home}: {link} has no such anchor")
    return found


if __name__ == "__main__":
    wrong = sorted(set(broken(Path(sys.argv[1]).resolve())))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(bool(wrong))
