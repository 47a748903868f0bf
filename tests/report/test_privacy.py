"""Reports without row data: nothing on them is about fewer than ten rows, nor can be computed."""

from dataclasses import replace

import numpy as np
import pytest

import drago
from drago._html import number
from drago.advice.table import Judged, side_by_side
from drago.report import facts as facts_room
from drago.report import pictures, privacy
from pages import check

pytest.importorskip("pandas")

# The loss of one row; all others are about 1. A mean over ten rows is a tenth of it, and the end of
# its interval a third.
HUGE = 1e7


def outlier(n=60, seed=0):
    """Rows of which the first cannot be predicted by what the others have in common."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    y = X[:, 0] + rng.normal(size=n)
    return X, y


def model_of(X, y, uncertainty="mild", **given):
    """A model that does not know the first row, where the target is then moved to a huge loss."""
    model = drago.DRORegressor(uncertainty).fit(X, y, **given)
    y = y.copy()
    y[0] = model.predict(X[:1])[0] + np.sqrt(2 * HUGE)
    return model, y


def shown(page):
    """The numbers on a page."""
    return [float(one.replace("\u202f", "").replace("−", "-")) for one in check(page).numbers()]


def leaks(page):
    """Numbers that are about fewer than three rows, one of which is the first."""
    return [one for one in map(abs, shown(page)) if 0.4 * HUGE < one < 2.1 * HUGE]


@pytest.mark.parametrize("n", [25, 99, 300])
@pytest.mark.parametrize("uncertainty", ["mild", "simplex", drago.CVaR(0.02)], ids=str)
def test_no_mean_over_few_rows(n, uncertainty):
    """The worst tenth of 99 rows, and rows that have all the weight, are fewer than ten."""
    X, y = outlier(n)
    model, y = model_of(X, y, uncertainty)
    assert leaks(drago.html_report(model, X, y))
    page = drago.html_report(model, X, y, rows=False)
    assert not leaks(page)
    assert ("worst 10%" in page) == (n >= 100)


@pytest.mark.parametrize("uncertainty", ["simplex", "worst_group"])
def test_the_certificate_of_a_fit_to_few_rows(uncertainty):
    """The objective of a model for the worst row is its loss and the penalty."""
    X, y = outlier(200)
    y[0] += np.sqrt(2 * HUGE)
    groups = np.repeat(["a", "b", "c"], [1, 99, 100])
    model = drago.DRORegressor(uncertainty, shift_cost=0.0, l2_reg=1e9, tol=0.5)
    model.fit(X, y, groups=groups)
    assert "No model of this kind" in drago.html_report(model, X, y, groups=groups)
    page = drago.html_report(model, X, y, groups=groups, rows=False)
    assert "No model of this kind" not in page and not leaks(page)


def test_a_row_with_most_of_the_weight_is_no_mean():
    """With weights, ten rows may be one and nine that hardly count."""
    X, y = outlier(400)
    model, y = model_of(X, y)
    groups = np.repeat(["a", "b", "c"], [20, 130, 250])
    weight = np.ones(400)
    weight[0] = 10.0
    page = drago.html_report(model, X, y, groups=groups, sample_weight=weight, rows=False)
    assert not leaks(page)
    assert "(smaller groups)" in page and ">a<" not in page
    weight[0] = 1e6
    page = drago.html_report(model, X, y, groups=groups, sample_weight=weight, rows=False)
    assert "no figures of them" in page and "<table" not in page


def test_groups_that_are_shown_as_one_are_enough_rows():
    rng = np.random.default_rng(0)
    for _ in range(300):
        sizes = rng.integers(1, 25, rng.integers(1, 7))
        codes = np.repeat(np.arange(sizes.size), sizes)
        weight = rng.choice([1.0, 1.0, 3.0, 40.0], codes.size)
        hidden = privacy.to_pool(codes, weight, 10)
        inside = hidden[codes]
        if not hidden.all():
            assert not hidden.any() or privacy.are_enough(weight[inside], 10)
        for g in np.flatnonzero(~hidden):
            assert privacy.are_enough(weight[codes == g], 10)


def test_bins_hold_ten_rows_and_their_means():
    rng = np.random.default_rng(0)
    losses = rng.exponential(size=130)
    share, means = pictures.bin_means(losses, np.ones(130), 10)
    np.testing.assert_allclose(share, (np.arange(13) + 0.5) / 13)
    np.testing.assert_allclose(means, np.sort(losses).reshape(13, 10).mean(axis=1))
    weight = rng.uniform(size=130)
    share, means = pictures.bin_means(losses, weight, 10)
    assert share.size == int(weight.sum() / weight.max() / 10)
    assert means.mean() == pytest.approx(np.average(losses, weights=weight))
    copies = np.repeat(losses, 3)
    share, means = pictures.bin_means(copies, np.ones(390), 30)
    np.testing.assert_allclose(means, pictures.bin_means(losses, np.ones(130), 10)[1])


def test_calibration_is_of_enough_weight():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = X[:, 0] + rng.normal(size=300) > 0
    model = drago.DROClassifier().fit(X, y)
    for heavy in (1.0, 8.0, 100.0):
        weight = np.ones(300)
        weight[5] = heavy
        bins = facts_room.read(model, X, y, None, weight).calibration
        assert bins["rows"].sum() == 300 and bins["rows"].min() >= 10
        assert bins["rows"].size == min(10, max(1, int((299 + heavy) / heavy / 11)))


# ---------------------------------------------------------------------------------- audits


@pytest.fixture(scope="module")
def audited():
    """An audit with four passes over groups of 4, 11, 40 and 65 rows."""
    rng = np.random.default_rng(0)
    groups = np.repeat(["a", "b", "c", "d"], [4, 11, 40, 65])
    X = rng.normal(size=(120, 2))
    y = X[:, 0] + rng.normal(size=120) + np.where(groups == "b", 3.0, 0.0)
    return drago.audit(X, y, groups=groups, time_budget=600, n_repeats=4, verbose=0)


@pytest.mark.slow
def test_no_group_can_be_computed_from_an_audit(audited):
    """Neither from the losses of groups, nor from how the worst one's excess changes.

    What all rows gain, less what the groups that are shown gain, is what the others gain: if the
    worst group's excess is told and it is one of the others, so is what the smallest one gains.
    """
    found = audited.comparison
    assert "b" in audited.verdict[0]
    table, verdict, count = privacy.without_rows(audited)
    assert count == 2
    assert sorted(set(table.groups["group"])) == ["(smaller groups)", "c", "d"]
    sizes = dict(zip(table.groups["group"], table.groups["rows"]))
    assert sizes == {"(smaller groups)": 15, "c": 40, "d": 65}
    page = drago.report.audit_report(audited, rows=False)
    figures = set(check(page).numbers())
    for name in ("worst_group_loss", "worst_group_excess"):
        assert number(table.table[name][0]) in figures
        # b is the worst of the four groups, and together with a it is something else.
        before = found.table[name][0]
        assert abs(before - table.table[name][0]) > 0.01
        assert number(before) not in figures and f"{before:.3f}" not in page
    of_b = {found.groups["loss"][k] for k, name in enumerate(found.groups["group"]) if name == "b"}
    assert not {number(loss) for loss in of_b} & figures
    assert f">{'b'}<" not in page and "&#x27;b&#x27;" not in page
    assert "2 groups are shown as one" in page
    assert verdict[0].startswith("The mean fit serves '(smaller groups)' worst")


@pytest.mark.slow
def test_rows_that_are_judged_often_are_one_row(audited):
    """Ten judgements of a row are not ten rows: bins are of rows, and so are groups."""
    judged = audited.comparison.judged
    assert judged.losses.shape[1] == 480 and judged.row_losses.shape[1] == 120
    np.testing.assert_allclose(judged.row_weight, 1.0)
    page = check(drago.report.audit_report(audited, rows=False))
    assert "Mean losses of 12 bins" in page.text


def test_a_group_that_is_judged_often_is_not_called_the_worst():
    """Four rows in five passes are four rows."""
    names = np.tile(np.arange(104), 5)
    groups = np.where(names < 4, "few", np.where(names < 50, "some", "many"))
    losses = np.where(names < 4, 9.0, np.where(names < 50, 2.0, 1.0))[None, :]
    parts = 5 * np.repeat(np.arange(5), 104) + names % 5
    judged = Judged(losses, np.full(520, 0.2), np.zeros(520), groups, parts, None,
                    np.array([np.nan]), names)  # fmt: skip
    found = side_by_side(["one"], "one", judged)
    assert found.worst_group == "some"
    assert found.table["worst_group_loss"][0] == pytest.approx(2.0)
    assert found.table["tail_excess"][0] > 2.0
    # A tenth of 104 rows are fewer than 47, and so are those of the group.
    least = side_by_side(["one"], "one", replace(judged, least=47))
    assert np.isnan(least.table["worst_group_loss"]).all()
    assert np.isnan(least.table["worst_group_loss_low"]).all()
    assert np.isnan(least.table["tail_excess"]).all()
    assert np.isfinite(least.table["mean_loss"]).all()


def test_an_audit_of_few_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9, 1))
    audit = drago.audit(X, X[:, 0] + rng.normal(size=9), time_budget=600, n_repeats=1, verbose=0)
    page = drago.report.audit_report(audit, rows=False)
    assert "no figures of them" in page and "<svg" not in page and "<table" not in page
    assert "<svg" in drago.report.audit_report(audit)
