"""`compare` and `audit`: models side by side, paired intervals, and a verdict."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import drago
from drago.advice.audit import _recommended, _tell_how_far
from drago.advice.table import METRICS, Judged, calibration_error, side_by_side
from drago.advice.verdict import verdict_of
from drago.scorers import row_losses, tail_mean

pd = pytest.importorskip("pandas")


def data(n=400, seed=0):
    """A frame with a group column; the minority has another law."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(n, 3)), columns=["a", "b", "c"])
    table["kind"] = rng.choice(["usual", "rare"], n, p=[0.85, 0.15])
    table["town"] = rng.choice(["north", "south"], n)
    sign = np.where(table["kind"] == "rare", -1.0, 1.0)
    y = sign * table["a"] + 0.5 * table["b"] + 0.5 * rng.normal(size=n)
    return table, y.to_numpy()


# --------------------------------------------------------------------------------- the table


def chosen_by_hand(values, weight, labels, parts, names):
    """The mean over the rows of the group that is the worst by the other parts."""
    total, mass = 0.0, 0.0
    for part in np.unique(parts):
        codes = labels if labels.ndim == 1 else labels[part]
        others = ~np.isin(names, names[parts == part])
        sizes = {g: (codes[others] == g).sum() for g in np.unique(codes[others])}
        means = {
            g: np.average(values[others & (codes == g)], weights=weight[others & (codes == g)])
            for g, size in sizes.items()
            if size >= 10
        }
        inside = (parts == part) & (codes == max(means, key=means.get))
        total, mass = total + weight[inside] @ values[inside], mass + weight[inside].sum()
    return total / mass


def test_the_table_by_hand():
    rng = np.random.default_rng(0)
    n = 200
    losses, weight = rng.exponential(size=(2, n)), rng.integers(1, 4, n).astype(float)
    baseline, groups = rng.exponential(size=n), rng.choice(["x", "y", "z"], n)
    groups[:4] = "few"  # too few rows to be called the worst
    losses[:, :4] = 100.0
    found, parts = rng.integers(0, 3, (2, n)), rng.integers(0, 2, n)
    judged = Judged(losses, weight, baseline, groups, parts, found, np.array([0.1, 0.2]))
    table = side_by_side(["one", "two"], "one", judged)
    p, names = weight / weight.sum(), np.arange(n)
    for k in range(2):
        line = table.line(["one", "two"][k])
        excess = losses[k] - baseline
        assert line["mean_loss"] == pytest.approx(p @ losses[k])
        for name, values, labels in (
            ("worst_group_loss", losses[k], groups),
            ("worst_group_excess", excess, groups),
            ("found_group_excess", excess, found),
        ):
            expected = chosen_by_hand(values, weight, labels, parts, names)
            assert line[name] == pytest.approx(expected)
        assert line["tail_excess"] == pytest.approx(tail_mean(excess, p, 0.1))
        for name in METRICS:
            assert line[f"{name}_change"] == pytest.approx(line[name] - table.line("one")[name])
    one = table.line("one")
    assert all(one[f"{name}_{end}"] == 0 for name in METRICS for end in ("low", "high"))
    frame = table.groups_to_frame()
    assert len(frame) == 8 and len(table.to_frame()) == 2
    line = frame[(frame["group"] == "y") & (frame["model"] == "two")].iloc[0]
    away = (losses[1] - losses[0])[groups == "y"]
    assert line["change"] == pytest.approx(np.average(away, weights=weight[groups == "y"]))
    assert line["low"] < line["change"] < line["high"]
    by_group = {g: np.average((losses[0] - baseline)[groups == g], weights=weight[groups == g])
                for g in "xyz"}  # fmt: skip
    assert table.worst_group == max(by_group, key=by_group.get)


def test_a_group_of_one_row_has_no_interval():
    rng = np.random.default_rng(0)
    groups = np.repeat(["a", "b"], [99, 1])
    judged = Judged(
        rng.random((2, 100)), np.ones(100), np.zeros(100), groups, np.arange(100) % 2, None,
        np.full(2, np.nan),
    )  # fmt: skip
    frame = side_by_side(["a", "b"], "a", judged).groups_to_frame()
    assert np.isnan(frame[frame["group"] == "b"]["low"]).all()
    assert np.isfinite(frame[frame["group"] == "a"]["low"]).all()


@pytest.mark.slow
def test_intervals_of_the_worst_group_cover():
    """All groups fare alike under both models, of which one's losses spread more.

    The worst group's change is 0: it is inside in at least 88 of 100 draws, see below.
    """
    inside = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        noise = rng.exponential(size=600)
        losses = np.array([0.5 + 0.5 * noise, 0.2 + 0.8 * noise])
        judged = Judged(
            losses, np.ones(600), np.zeros(600), np.arange(600) % 12, rng.permutation(600) % 5,
            None, np.full(2, np.nan),
        )  # fmt: skip
        line = side_by_side(["a", "b"], "a", judged, seed).line("b")
        inside += line["worst_group_loss_low"] <= 0.0 <= line["worst_group_loss_high"]
    assert inside >= 88


def test_what_is_equal_up_to_rounding_is_equal():
    losses = np.random.default_rng(0).random(100)
    judged = Judged(
        np.array([losses, losses * (1.0 + 1e-15)]), np.ones(100), np.zeros(100), None,
        np.arange(100) % 2, None, np.full(2, np.nan),
    )  # fmt: skip
    line = side_by_side(["a", "b"], "a", judged).line("b")
    assert line["mean_loss_low"] == line["mean_loss_change"] == line["mean_loss_high"] == 0.0


def test_rows_judged_twice_are_drawn_together():
    """Two equal judgements of each row say what one says, intervals included."""
    rng = np.random.default_rng(1)
    n = 120
    losses, weight = rng.exponential(size=(2, n)), rng.integers(1, 4, n).astype(float)
    baseline, groups = rng.exponential(size=n), rng.choice(["x", "y"], n)
    found, parts = rng.integers(0, 2, (2, n)), rng.integers(0, 2, n)
    calibration = np.full(2, np.nan)
    once = Judged(losses, weight, baseline, groups, parts, found, calibration)
    both = np.tile(np.arange(n), 2)
    twice = Judged(
        losses[:, both], weight[both] / 2, baseline[both], groups[both], parts[both],
        found[:, both], calibration, both,
    )  # fmt: skip
    one, two = (side_by_side(["a", "b"], "a", judged) for judged in (once, twice))
    assert one.n_rows == two.n_rows == n
    for name in METRICS:
        for end in ("", "_change", "_low", "_high"):
            assert one.table[name + end] == pytest.approx(two.table[name + end])
    for name in ("rows", "loss", "change", "low", "high"):
        assert one.groups[name] == pytest.approx(two.groups[name])


def test_paired_intervals_cover():
    """Two models whose mean losses differ by 0.1: in at least 88 of 100 draws it is inside.

    Of a coverage of 95%, fewer than 88 have a probability of 2e-3.
    """
    inside = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        shared = rng.exponential(size=150)
        losses = np.array([shared, shared + 0.1 + 0.5 * rng.normal(size=150)])
        judged = Judged(
            losses, np.ones(150), np.zeros(150), None, np.zeros(150, int), None, np.full(2, np.nan)
        )
        line = side_by_side(["a", "b"], "a", judged, seed).line("b")
        inside += line["mean_loss_low"] <= 0.1 <= line["mean_loss_high"]
    assert inside >= 88


def test_calibration():
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    y = (rng.random(20_000) < p).astype(int)
    right = np.column_stack([1 - p, p])
    assert calibration_error(right, y, np.ones(y.size)) < 0.02
    assert calibration_error(np.full((y.size, 2), 0.5), y, np.ones(y.size)) < 0.02
    sure = np.column_stack([1.0 - (p > 0.5), p > 0.5])
    # Of those said to be 0 or 1, a quarter are not.
    assert calibration_error(sure, y, np.ones(y.size)) == pytest.approx(0.25, abs=0.02)
    three = np.column_stack([right * 0.5, np.full(y.size, 0.5)])
    assert 0.0 <= calibration_error(three, y, np.ones(y.size)) <= 1.0


# -------------------------------------------------------------------------------------- compare


def test_any_models_side_by_side():
    table, y = data()
    labels = np.where(y > 0, "up", "down")
    X = table[["a", "b", "c"]]
    models = {
        "logistic": LogisticRegression().fit(X[:200], labels[:200]),
        "robust": make_pipeline(StandardScaler(), drago.DROClassifier()).fit(X[:200], labels[:200]),
        "trees": HistGradientBoostingClassifier(max_iter=20).fit(X[:200], labels[:200]),
    }
    found = drago.compare(models, X[200:], labels[200:], groups=table["kind"][200:])
    for name, model in models.items():
        losses = row_losses(model, X[200:], labels[200:])
        assert found.line(name)["mean_loss"] == pytest.approx(losses.mean())
    assert found.reference == "logistic" and found.n_rows == 200
    assert np.isfinite(found.table["calibration"]).all()
    text = str(found)
    assert "picked on one part of the rows" in text and "worst tenth's excess" in text
    assert "worst group's loss" in text and "95% interval" in text and "trees" in text
    line = found.line("robust")
    robust = next(each for each in text.splitlines() if each.startswith("robust"))
    assert f"[{line['mean_loss_low']:+.3f}, {line['mean_loss_high']:+.3f}]" in robust
    assert "loss by group" in text and "usual" in text and "rare" in text
    other = drago.compare(models, X[200:], labels[200:], reference="trees", baseline=None)
    assert np.isnan(other.table["worst_group_loss"]).all()
    assert "worst group" not in str(other)
    weight = np.r_[np.zeros(50), np.ones(150)]
    some = drago.compare(models, X[200:], labels[200:], sample_weight=weight, baseline=None)
    assert some.n_rows == 150


def test_groups_by_name_and_crossed():
    table, y = data()
    X, rest = table[["a", "b"]][:200], table[200:]
    fitted = make_pipeline(drago.DRORegressor()).fit(X, y[:200])

    class OnTwo(LinearRegression):
        def predict(self, X):
            return fitted.predict(X[["a", "b"]])

    models = {"one": OnTwo().fit(X, y[:200])}
    named = drago.compare(models, rest, y[200:], groups="kind", baseline=None)
    given = drago.compare(models, rest, y[200:], groups=rest["kind"], baseline=None)
    assert named.groups["loss"] == given.groups["loss"]
    crossed = drago.compare(models, rest, y[200:], groups=["kind", "town"], baseline=None)
    assert set(crossed.groups["group"]) == {
        "rare, north", "rare, south", "usual, north", "usual, south",
    }  # fmt: skip


@pytest.mark.parametrize("change, words", [
    ({"models": {}}, "models must be a dict"),
    ({"reference": "other"}, "reference must be one of"),
    ({"groups": np.zeros(3)}, "groups"),
    ({"baseline": np.zeros(3)}, "baseline must be 'auto', None or an array"),
    ({"sample_weight": np.zeros(3)}, "sample_weight"),
])  # fmt: skip
def test_wrong_input_is_named(change, words):
    table, y = data(100)
    X = table[["a", "b"]]
    settings = {"models": {"one": LinearRegression().fit(X, y)}, "X": X, "y": y, **change}
    with pytest.raises(ValueError, match=words):
        drago.compare(**settings)


def test_classifiers_and_regressors_do_not_mix():
    table, y = data(100)
    X = table[["a", "b"]]
    models = {"a": LinearRegression().fit(X, y), "b": LogisticRegression().fit(X, y > 0)}
    with pytest.raises(ValueError, match=r"of \['a', 'b'\] only \['b'\] are classifiers"):
        drago.compare(models, X, y)
    with pytest.raises(NotFittedError, match=r"models\['c'\], a LogisticRegression, is not fitted"):
        drago.compare({"b": models["b"], "c": LogisticRegression()}, X, y > 0)
    with pytest.raises(ValueError, match=r"models\['c'\], a RidgeClassifier, knows no prob"):
        drago.compare({"b": models["b"], "c": RidgeClassifier().fit(X, y > 0)}, X, y > 0)


# ---------------------------------------------------------------------------------------- audit


@pytest.fixture(scope="module")
def audited():
    table, y = data(600)
    return drago.audit(table, y, groups="kind", verbose=0, n_repeats=1, time_budget=600)


def test_an_audit_says_what_helps(audited):
    """The minority follows the opposite law: its own features serve it, and so do trees."""
    assert audited.comparison.models == [
        "mean fit", "robust fit", "mean fit + found groups", "mean fit + group interactions",
        "reweighted", "boosted trees",
    ]  # fmt: skip
    own = audited.comparison.line("mean fit + group interactions")
    assert own["worst_group_excess_high"] < 0
    assert audited.verdict[0].startswith("The mean fit serves 'rare' worst: a loss of ")
    assert audited.verdict[2] == "What would help:"
    assert any(
        line.startswith("- mean fit + group interactions (it needs the group of every new row): ")
        for line in audited.verdict[3:]
    )
    text = str(audited)
    for name, what in audited.methods.items():
        assert f"\n{name}: {what}\n" in text
    assert "model = make_pipeline(prepare," in text and audited.recommended in text
    assert audited.notes == [
        "'kind' is the group, and no feature of these models.",
        "Judged in 1 pass of 5-fold cross-validation.",
    ]


def test_the_recommended_model_is_fitted_and_takes_new_rows(audited):
    table, _ = data(50, seed=1)
    assert np.isfinite(audited.model.predict(table.drop(columns="kind"))).all()
    table.loc[3, "a"] = np.nan
    table.loc[4, "town"] = "west"
    assert np.isfinite(audited.model.predict(table.drop(columns="kind"))).all()


def test_classes_without_groups(capsys):
    table, y = data(300)
    labels = np.where(y > 0, "up", "down")
    found = drago.audit(table[["a", "b", "c"]].to_numpy(), labels, time_budget=0.0)
    assert found.comparison.models[-1] == "boosted trees" and len(found.comparison.models) == 4
    assert found.notes == [
        "The audit stopped early, after 1 of 5 folds, because its time was up (time_budget=0 "
        "seconds): what it says is about part of the rows, and tentative. To judge all rows, give "
        "it more time_budget."
    ]
    assert set(found.model.predict(table[["a", "b", "c"]].to_numpy())) <= {"up", "down"}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("audit: classification, 300 rows, 4 methods")
    assert lines[1].startswith("audit: pass 1, fold 1 of 5")
    assert lines[2].startswith("audit: fitting what is recommended")


@pytest.mark.slow
def test_shuffled_labels_claim_nothing():
    """Where the target is shuffled, nothing helps, and the verdict says so.

    Five methods have intervals of 95%: of six audits, some may claim by chance, but few.
    """
    quiet = 0
    for seed in range(6):
        table, y = data(400, seed=seed)
        y = np.random.default_rng(seed).permutation(y)
        found = drago.audit(
            table, y, groups="kind", n_repeats=1, time_budget=600, random_state=seed, verbose=0
        )
        claims = [line for line in found.verdict if "helps" in line or "would help" in line]
        assert found.recommended == "mean fit" or claims  # the verdict and what to use agree
        quiet += not claims
    assert quiet >= 4


def test_repeated_folds_judge_every_row_again():
    table, y = data(150)
    found = drago.audit(
        table[["a", "b"]], y, groups=table["kind"], n_repeats=2, time_budget=600, verbose=0
    )
    assert found.notes == ["Judged in 2 passes of 5-fold cross-validation."]
    assert found.comparison.n_rows == 150 and found.comparison.judged.losses.shape == (6, 300)
    with pytest.raises(ValueError, match="n_repeats"):
        drago.audit(table[["a", "b"]], y, n_repeats=0)


def test_many_rows_are_sampled(monkeypatch):
    import drago.advice.audit as module

    monkeypatch.setattr(module, "MOST_ROWS", 200)
    table, y = data(500)
    found = drago.audit(table, y, verbose=0, time_budget=0.0)
    assert found.notes[0] == "Tried on 200 rows drawn from 500."
    assert found.comparison.n_rows == 40  # a fifth of them


def comparison(gains, prices, errors):
    """A table of methods with these gains in the worst group's excess and prices in the mean."""
    n = 4000
    groups = np.repeat(["a", "b"], n // 2)
    base = np.where(groups == "a", 1.0, 2.0)
    noise = np.random.default_rng(0).normal(size=n)
    noise -= np.where(groups == "b", noise[groups == "b"].mean(), noise[groups == "a"].mean())
    rows = [base]
    for gain, price, error in zip(gains, prices, errors):
        worse = np.where(groups == "a", 2 * price + gain, -gain)
        rows.append(base + worse + error * np.sqrt(n / 2) * noise)
    names = ["mean fit", "robust fit", "mean fit + group interactions", "boosted trees"]
    zeros, ones = np.zeros(n), np.ones(n)
    parts = np.arange(n) % 2
    judged = Judged(np.array(rows), ones, zeros, groups, parts, None, np.full(4, np.nan))
    return side_by_side(names, "mean fit", judged)


@pytest.mark.parametrize("gains, prices, errors, expected", [
    ((0.1, 0.3, 0.2), (0.0, 0.0, 0.0), (0.01, 0.01, 0.01), "boosted trees"),
    ((0.3, 0.3, 0.2), (0.0, 0.0, 0.0), (0.01, 0.01, 0.01), "robust fit"),
    ((0.3, 0.3, 0.2), (0.2, 0.0, 0.2), (0.01, 0.01, 0.01), "mean fit"),
    ((0.3, 0.3, 0.0), (0.0, 0.0, 0.0), (1.0, 0.01, 0.01), "mean fit"),
])  # fmt: skip
def test_what_is_recommended(gains, prices, errors, expected):
    """The least excess under the cap, if its interval excludes 0; never what needs the groups."""
    assert _recommended(comparison(gains, prices, errors), True) == expected


@pytest.mark.parametrize("gain, error, words", [
    (0.3, 0.01, "Robustness helps"),
    (-0.3, 0.01, "Robustness does harm"),
    (0.0, 0.01, "No benefit of robust fitting could be shown"),
    (0.0, 1.0, "cannot tell"),
])  # fmt: skip
def test_the_verdict(gain, error, words):
    found = comparison((gain, 0.0, 0.0), (0.0, 0.0, 0.0), (error, 0.01, 0.01))
    lines = verdict_of(found, "mean fit", True)
    assert lines[0].startswith("The mean fit serves 'b' worst: a loss of 2.000 on 2000 rows")
    assert words in lines[1]
    assert lines[2].startswith("Nothing else that was tried")
    assert lines[3].startswith("Use the mean fit")
    assert ("must end below +2%" in lines[3]) == (gain > 0 and error < 1)
    assert lines[3].count("What helps was not recommended") == (gain > 0 and error < 1)


def test_why_what_helps_more_is_not_recommended():
    found = comparison((0.1, 0.3, 0.2), (0.0, 0.0, 0.5), (0.01, 0.01, 0.01))
    assert _recommended(found, True) == "robust fit"
    last = verdict_of(found, "robust fit", True)[-1]
    assert last.startswith("Use: robust fit. What helps more was not recommended, because it ")
    best = comparison((0.1, 0.2, 0.3), (0.0, 0.0, 0.0), (0.01, 0.01, 0.01))
    assert verdict_of(best, "boosted trees", True)[-1] == "Use: boosted trees."


@pytest.mark.parametrize("done, wanted, said", [
    (5, 1, "Judged in 1 pass of 5-fold cross-validation."),
    (15, 3, "Judged in 3 passes of 5-fold cross-validation."),
    (7, 3, "Judged in 1 pass of 5-fold cross-validation and 2 folds of the next one; 3 were "
           "wanted, and it stopped because."),
    (5, 2, "Judged in 1 pass of 5-fold cross-validation; 2 were wanted, and it stopped because."),
])  # fmt: skip
def test_how_far_an_audit_came(done, wanted, said):
    notes = []
    _tell_how_far(done, 5, wanted, "because", notes)
    assert notes == [said]


def test_the_group_with_the_largest_loss_is_called_the_worst():
    """Also where another one has the larger excess, which is said then."""
    found = comparison((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.01, 0.01, 0.01))
    line = verdict_of(replace(found, worst_group="a"), "mean fit", True)[0]
    assert line.startswith("The mean fit serves 'b' worst: a loss of 2.000 on 2000 rows")
    assert line.endswith("is largest for 'a'.")


def test_the_mean_fit_itself_is_called_so():
    found = comparison((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.01, 0.01))
    assert "is the mean fit itself" in verdict_of(found, "mean fit", True)[1]


# ------------------------------------------------------------------------------------- the code


def awkward(n=240, seed=0):
    """A frame with holes, words of several kinds and a group column."""
    table, y = data(n, seed)
    table["text"] = pd.array(np.where(table["b"] > 0, "long", "short"), dtype="string")
    table.loc[5, "text"] = pd.NA
    table.loc[7, "a"] = np.nan
    table["mixed"] = pd.Series([1, "one", None] * (n // 3), dtype=object)
    return table, y


@pytest.mark.parametrize(
    "name, weighted",
    [
        ("robust fit", False),
        *(
            pytest.param(name, weighted, marks=pytest.mark.slow)
            for name in ("mean fit", "mean fit + found groups", "reweighted", "boosted trees")
            for weighted in (False, True)
        ),
    ],
)
def test_the_code_makes_the_model(name, weighted, monkeypatch):
    import drago.advice.audit as module

    monkeypatch.setattr(module, "_recommended", lambda *given: name)
    grouped = {"uncertainty": drago.Grouped(drago.Simplex()), "shift_cost": 0.3, "l2_reg": 1e-3}
    chosen = module.Task.chosen

    def with_groups(self, *given, **settings):
        found = chosen(self, *given, **settings)
        found.best_params_ = {**grouped, "baseline": None}
        return found

    monkeypatch.setattr(module.Task, "chosen", with_groups)
    table, y = awkward()
    weight = np.arange(240) % 3 + 1.0 if weighted else None
    found = drago.audit(table, y, groups="kind", sample_weight=weight, time_budget=0, verbose=0)
    space = {"X": table, "y": y, "sample_weight": weight}
    exec(found.code, space)
    new = awkward(60, seed=1)[0].drop(columns="kind")
    np.testing.assert_allclose(found.model.predict(new), space["model"].predict(new), rtol=1e-6)


def test_rows_of_weight_0_are_not_there():
    table, y = data(200)
    X = table[["a", "b"]].to_numpy()
    far, more = np.vstack([X, np.full((5, 2), 1e6)]), np.append(y, np.zeros(5))
    kept = drago.audit(X, y, time_budget=0, verbose=0)
    some = drago.audit(
        far, more, sample_weight=np.repeat([1.0, 0.0], [200, 5]), time_budget=0, verbose=0
    )
    assert some.recommended == kept.recommended
    np.testing.assert_allclose(some.model.predict(X), kept.model.predict(X), rtol=1e-6)


def test_columns_with_numbers_as_names():
    table, y = data(200)
    table.columns = range(5)
    found = drago.audit(table, y, groups=3, time_budget=0, verbose=0)
    assert np.isfinite(found.model.predict(table.drop(columns=3))).all()
    exec(found.code, {"X": table, "y": y})


def test_an_audit_with_routing_enabled():
    import sklearn

    table, y = data(200)
    with sklearn.config_context(enable_metadata_routing=True):
        found = drago.audit(table[["a", "b"]], y, time_budget=0, verbose=0)
    assert np.isfinite(found.model.predict(table[["a", "b"]])).all()


@pytest.mark.parametrize("change, message", [
    (lambda X, y: (X, np.full(len(y), 2.5)), r"y is 2\.5 on all rows"),
    (lambda X, y: (X, np.where(np.arange(len(y)) < 3, 7, np.arange(len(y)) % 3)),
     "y holds 3 rows of the class .*7.*task='regression'"),
    (lambda X, y: (sparse.csr_matrix(X), y), r"sparse matrix .* X.toarray\(\)"),
    (lambda X, y: (X[:, 0], y), "two dimensions"),
])  # fmt: skip
def test_what_an_audit_refuses(change, message):
    table, y = data(100)
    X, y = change(table[["a", "b"]].to_numpy(), y)
    with pytest.raises(ValueError, match=message):
        drago.audit(X, y, verbose=0)


def test_frames_of_polars_are_to_be_turned_into_pandas():
    polars = pytest.importorskip("polars")
    with pytest.raises(ValueError, match=r"X.to_pandas\(\)"):
        drago.audit(polars.DataFrame({"a": [1.0, 2.0] * 20}), np.arange(40.0), verbose=0)


def test_a_typo_in_the_name_of_the_groups():
    table, y = data(60)
    for call in (drago.audit, drago.find_groups):
        with pytest.raises(ValueError, match=r"^groups must name columns of X, but .*'klinic'"):
            call(table, y, groups="klinic")


@pytest.mark.filterwarnings("ignore:what is attainable")
def test_models_of_what_is_no_table():
    """Sparse features: losses are compared, excesses are not known."""
    table, y = data(200)
    X, labels = sparse.csr_matrix(table[["a", "b"]]), np.where(y > 0, "up", "down")
    models = {"one": LogisticRegression().fit(X, labels)}
    with pytest.warns(UserWarning, match="left out of the comparison: X is a sparse"):
        found = drago.compare(models, X, labels, groups=table["kind"])
    assert np.isfinite(found.line("one")["worst_group_loss"])
    assert np.isnan(found.line("one")["worst_group_excess"])
    assert "excess" not in str(found).lower()
    given = drago.compare(models, X, labels, groups=table["kind"], baseline=np.zeros(200))
    assert given.line("one")["worst_group_excess"] == pytest.approx(
        given.line("one")["worst_group_loss"]
    )
    # Rows of one class alone.
    ups = np.flatnonzero(labels == "up")
    assert np.isfinite(drago.compare(models, X[ups], labels[ups]).line("one")["mean_loss"])


def test_a_model_in_place_of_rows_is_refused_in_words():
    message = (
        r"a model \(DROClassifier\) was given; audit chooses its own models: call audit\(X, y\)"
    )
    with pytest.raises(TypeError, match=message):
        drago.audit(drago.DROClassifier(), np.zeros((20, 2)), np.arange(20) % 2)
