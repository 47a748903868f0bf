"""Objects that show themselves in notebooks, and their tables as frames."""

import re

import numpy as np
import pytest

import drago
from drago.result import History
from pages import HOSTILE, Page

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def things():
    rng = np.random.default_rng(0)
    n = 200
    X = pd.DataFrame(rng.normal(size=(n, 2)), columns=HOSTILE[:2])
    y = X.to_numpy()[:, 0] + rng.normal(size=n)
    names = [*HOSTILE[:3], HOSTILE[7]]
    groups = np.array(names, dtype=object)[np.arange(n) % 4]
    X.index = pd.Index([f"{names[k % 4]}{k}" for k in range(n)], dtype=object)
    problem = drago.DROProblem(X.to_numpy(), y)
    result = drago.solve(problem)
    model = drago.DRORegressor("worst_group").fit(X, y, groups=groups)
    report = model.worst_case_report(X, y, groups=groups, n_rows=150)
    found = drago.find_groups(X, y)
    audit = drago.audit(X, y, groups, time_budget=0, verbose=0)
    return {
        "problem": problem,
        "result": result,
        "certificate": drago.certify(problem, result.coef),
        "history": History(result.history.records * 400),
        "report": report,
        "report without groups": model.worst_case_report(X, y, groups=groups, n_rows=0),
        "path": drago.robust_path(X.to_numpy(), y, tail_fractions=np.linspace(0.1, 1, 30)),
        "found groups": found,
        "audit": audit,
        "comparison": audit.comparison,
    }


NAMES = ("problem", "result", "certificate", "history", "report", "path", "found groups", "audit",
         "comparison", "report without groups")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_a_table(things, name):
    shown = things[name]._repr_html_()
    shown.encode("utf-8")
    page = Page(shown)
    elements = [element for element, _, _ in page.elements]
    assert elements[0] == "div" and "table" in elements
    assert not {"script", "img", "b"} & set(elements)
    assert not [key for _, attrs, _ in page.elements for key in attrs if key.startswith("on")]
    assert elements.count("tr") <= 60 and len(shown) < 40_000


@pytest.mark.parametrize("name", NAMES)
def test_texts_fit_a_screen(things, name):
    assert repr(things[name]).count("\n") == 0
    assert str(things[name]).count("\n") <= 50


def test_what_is_shown_is_what_is_there(things):
    said = Page(things["certificate"]._repr_html_()).text
    certificate = things["certificate"]
    assert f"No point has an objective below {certificate.dual:.6g}" in said
    assert things["result"].message in Page(things["result"]._repr_html_()).text
    assert "and 135 more" in Page(things["report"]._repr_html_()).text
    assert "and 135 more rows" in str(things["report"])
    assert "and 10 more" in Page(things["path"]._repr_html_()).text
    for line in things["audit"].verdict:
        assert " ".join(line.split()) in Page(things["audit"]._repr_html_()).text
    assert "200" in Page(things["problem"]._repr_html_()).text
    assert "stands out" in Page(things["found groups"]._repr_html_()).text
    restricted = drago.certify(drago.DROProblem(np.eye(3), [1.0, 2.0, 4.0], l2_reg=0.0), np.ones(3))
    if restricted.restricted_to is not None:
        assert "points of norm at most" in restricted._repr_html_()


def test_every_table_is_a_frame_in_one_call(things):
    history = things["history"].to_frame()
    assert list(history.columns)[:2] == ["n_iter", "n_passes"] and len(history) == len(
        things["history"]
    )
    report = things["report"]
    assert report.to_frame()["loss"].tolist() == report.losses.tolist()
    assert list(report.rows_to_frame().columns) == ["row", "weight", "times", "loss"]
    assert len(report.rows_to_frame()) == 150
    assert report.groups_to_frame()["group"].nunique() == 4
    assert len(things["path"].to_frame()) == 30
    assert things["found groups"].to_frame().shape[0] == things["found groups"].n_groups
    audit = things["audit"]
    pd.testing.assert_frame_equal(audit.to_frame(), audit.comparison.to_frame())
    pd.testing.assert_frame_equal(audit.groups_to_frame(), audit.comparison.groups_to_frame())
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = drago.DRORegressorCV(cv=2, baseline=None, l2_regs=None).fit(X, X[:, 0])
    assert len(pd.DataFrame(model.cv_results_)) == len(model.cv_results_["params"])


def test_empty_history():
    assert re.search("0 certificates", History()._repr_html_())
    assert len(History().to_frame()) == 0
