"""For tests of reports: pages read as a browser would, and models to report on."""

import itertools
import re
from html.parser import HTMLParser

import numpy as np
from sklearn import datasets
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import drago

VOID = {"meta", "br", "circle", "rect", "path", "link", "img", "input"}


class Page(HTMLParser):
    """Elements, their attributes and the text of a page; raises where tags do not match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.words = [], [], []
        self.raw = text
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        """All that can be read, with one blank between words."""
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attrs for name, attrs, _ in self.elements if name == tag]

    def numbers(self):
        """Numbers as they are shown."""
        said = " ".join(self.words)  # with the thin spaces between thousands
        return re.findall(r"[−+]?\d[\d\u202f]*(?:\.\d+)?(?:e[−+]?\d+)?", said)


def check(text):
    """A page that is well-formed, loads nothing, runs nothing, and can be read by everybody."""
    text.encode("utf-8")
    assert text.startswith("<!doctype html>")
    page = Page(text.removeprefix("<!doctype html>"))
    names = [name for name, _, _ in page.elements]
    assert not {"script", "iframe", "object", "embed", "link", "base", "form"} & set(names)
    for _, attrs, _ in page.elements:
        assert not [key for key in attrs if key.startswith("on") or key in ("src", "srcset")]
        assert attrs.get("href", "#").startswith("#")
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style and "@import" not in style and "http" not in style
    ids = [attrs["id"] for _, attrs, _ in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for attrs in page.all("a")} <= set(ids)
    assert page.all("html")[0]["lang"] == "en"
    for attrs in page.all("svg"):
        if attrs.get("aria-hidden") != "true":
            assert attrs["role"] == "img"
            assert set(attrs["aria-labelledby"].split()) <= set(ids)
    for key in ("aria-labelledby",):
        for _, attrs, _ in page.elements:
            assert set(attrs.get(key, "").split()) <= set(ids)
    tables, captions = names.count("table"), names.count("caption")
    assert tables and tables == captions
    assert all("scope" in attrs for attrs in page.all("th"))
    levels = [int(name[1]) for name in names if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    assert len(text) < 2_000_000
    return page


def heavy(n=400, seed=0):
    import pandas as pd

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    groups = np.array(["a", "b", "c"])[rng.integers(0, 3, n)]
    y = X @ np.ones(3) * np.where(groups == "c", -1.0, 1.0) + rng.standard_t(1.5, size=n)
    return pd.DataFrame(X, columns=["x0", "x1", "x2"]), y, groups


def case(name):
    """A fitted model with rows, target and groups."""
    if name == "regression":
        X, y = datasets.load_diabetes(return_X_y=True, as_frame=True)
        groups = np.where(X["sex"] > 0, "männlich", "weiblich")
        model = make_pipeline(StandardScaler(), drago.DRORegressor(drago.CVaR(0.3)))
        return model.fit(X, y), X, y, groups
    if name == "binary":
        X, y = datasets.load_breast_cancer(return_X_y=True, as_frame=True)
        labels = np.where(y == 1, "gut", "böse")
        return (
            make_pipeline(StandardScaler(), drago.DROClassifier()).fit(X, labels),
            X,
            labels,
            None,
        )
    if name == "multiclass":
        X, y = datasets.load_wine(return_X_y=True, as_frame=True)
        return make_pipeline(StandardScaler(), drago.DROClassifier()).fit(X, y), X, y, None
    X, y, groups = heavy()
    if name == "groups":
        return drago.DRORegressor("worst_group").fit(X, y, groups=groups), X, y, groups
    return drago.DRORegressor(drago.Chi2Ball(0.1)).fit(X, y), X, y, None


# Names that would do harm if they were not escaped, or cannot be shown.
HOSTILE = ['<script>alert(1)</script>', '"><img src=x onerror=alert(1)>', "' onload='x", "\ud800",
           "\u202egnirts", "\x00\x1b[31m", "&lt;b&gt;", "名前", "{{7*7}}", "a" * 5000]  # fmt: skip
