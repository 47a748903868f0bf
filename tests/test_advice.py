"""`compare` and `audit`: models side by side, paired intervals, and a verdict."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import drago
from drago.advice.audit import _recommended
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


def test_the_table_by_hand():
    rng = np.random.default_rng(0)
    n = 200
    losses, weight = rng.exponential(size=(2, n)), rng.integers(1, 4, n).astype(float)
    baseline, groups = rng.exponential(size=n), rng.choice(["x", "y", "z"], n)
    found, parts = rng.integers(0, 3, n), rng.integers(0, 2, n)
    judged = Judged(losses, weight, baseline, groups, found, parts, np.array([0.1, 0.2]))
    table = side_by_side(["one", "two"], "one", judged)
    p = weight / weight.sum()
    for k in range(2):
        line = table.line(["one", "two"][k])
        excess = losses[k] - baseline

        def mean(values, rows):
            return np.average(values[rows], weights=weight[rows])

        assert line["mean_loss"] == pytest.approx(p @ losses[k])
        worst = max(mean(losses[k], groups == g) for g in "xyz")
        assert line["worst_group_loss"] == pytest.approx(worst)
        worst = max(mean(excess, groups == g) for g in "xyz")
        assert line["worst_group_excess"] == pytest.approx(worst)
        by_part = [
            p[parts == part].sum()
            * max(mean(excess, (parts == part) & (found == g)) for g in range(3))
            for part in (0, 1)
        ]
        assert line["found_group_excess"] == pytest.approx(sum(by_part))
        assert line["tail_excess"] == pytest.approx(tail_mean(excess, p, 0.1))
        for name in METRICS:
            assert line[f"{name}_change"] == pytest.approx(line[name] - table.line("one")[name])
    one = table.line("one")
    assert all(one[f"{name}_{end}"] == 0 for name in METRICS for end in ("low", "high"))
    frame = table.groups_to_frame()
    assert len(frame) == 6 and len(table.to_frame()) == 2
    line = frame[(frame["group"] == "y") & (frame["model"] == "two")].iloc[0]
    away = (losses[1] - losses[0])[groups == "y"]
    assert line["change"] == pytest.approx(np.average(away, weights=weight[groups == "y"]))
    assert line["low"] < line["change"] < line["high"]


def test_rows_judged_twice_are_drawn_together():
    """Two equal judgements of each row say what one says, intervals included."""
    rng = np.random.default_rng(1)
    n = 120
    losses, weight = rng.exponential(size=(2, n)), rng.integers(1, 4, n).astype(float)
    baseline, groups = rng.exponential(size=n), rng.choice(["x", "y"], n)
    found, parts, calibration = rng.integers(0, 2, n), np.zeros(n), np.full(2, np.nan)
    once = Judged(losses, weight, baseline, groups, found, parts, calibration)
    both = np.tile(np.arange(n), 2)
    twice = Judged(
        losses[:, both], weight[both] / 2, baseline[both], groups[both], found[both], parts[both],
        calibration, both,
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
            losses, np.ones(150), np.zeros(150), None, None, np.zeros(150), np.full(2, np.nan)
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
    assert "worst group" in text and "paired 95%" in text and "trees" in text
    unit = 0.01 * found.line("logistic")["mean_loss"]
    robust = next(line for line in text.splitlines() if line.startswith("robust"))
    assert f"{found.line('robust')['mean_loss_change'] / unit:+.1f} ±" in robust
    assert max(map(len, text.splitlines())) <= 130
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
    with pytest.raises(ValueError, match="some are either"):
        drago.compare(models, X, y)


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
    assert "features of their own for each group" in audited.verdict[1]
    assert audited.verdict[0].startswith(("Robustness", "These rows"))
    text = str(audited)
    assert "model = make_pipeline(prepare," in text and audited.recommended in text
    assert audited.notes == []


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
    assert "Judged on 1 of 5 folds" in found.notes[0]
    assert set(found.model.predict(table[["a", "b", "c"]].to_numpy())) <= {"up", "down"}
    assert capsys.readouterr().out.startswith("audit: pass 1, fold 1 of 5")


@pytest.mark.slow
def test_shuffled_labels_claim_nothing():
    """Where the target is shuffled, nothing helps, and the verdict says so.

    Four methods have intervals of 95%: of six audits, some may claim by chance, but few, and they
    still recommend a model that is no worse than the mean fit by more than the cap.
    """
    quiet = 0
    for seed in range(6):
        table, y = data(400, seed=seed)
        y = np.random.default_rng(seed).permutation(y)
        found = drago.audit(
            table, y, groups="kind", n_repeats=1, time_budget=600, random_state=seed, verbose=0
        )
        quiet += not found.verdict[0].startswith("Robustness helps") and found.verdict[
            1
        ].startswith("Nothing that was tried")
        line = found.comparison.line(found.recommended)
        assert line["mean_loss_change"] <= 0.01 * found.comparison.line("mean fit")["mean_loss"]
    assert quiet >= 4


def test_repeated_folds_judge_every_row_again():
    table, y = data(150)
    found = drago.audit(
        table[["a", "b"]], y, groups=table["kind"], n_repeats=2, time_budget=600, verbose=0
    )
    assert found.notes == ["Judged on 10 folds, 5 a pass over the rows."]
    assert found.comparison.n_rows == 150 and found.comparison.losses.shape == (6, 300)
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
    judged = Judged(np.array(rows), ones, zeros, groups, zeros, zeros, np.full(4, np.nan))
    return side_by_side(names, "mean fit", judged)


@pytest.mark.parametrize("gains, prices, errors, expected", [
    ((0.1, 0.3, 0.2), (0.0, 0.0, 0.0), (0.01, 0.01, 0.01), "boosted trees"),
    ((0.3, 0.3, 0.2), (0.0, 0.0, 0.0), (0.01, 0.01, 0.01), "robust fit"),
    ((0.3, 0.3, 0.2), (0.1, 0.0, 0.1), (0.01, 0.01, 0.01), "mean fit"),
    ((0.3, 0.3, 0.0), (0.0, 0.0, 0.0), (1.0, 0.01, 0.01), "mean fit"),
])  # fmt: skip
def test_what_is_recommended(gains, prices, errors, expected):
    """The least excess under the cap, beyond a standard error; never what needs the groups."""
    assert _recommended(comparison(gains, prices, errors), True) == expected


@pytest.mark.parametrize("gain, error, words", [
    (0.3, 0.01, "Robustness helps"),
    (-0.3, 0.01, "Robustness does harm"),
    (0.0, 0.01, "Robustness buys nothing"),
    (0.0, 1.0, "cannot tell"),
])  # fmt: skip
def test_the_verdict(gain, error, words):
    found = comparison((gain, 0.0, 0.0), (0.0, 0.0, 0.0), (error, 0.01, 0.01))
    lines = verdict_of(found, "mean fit", True)
    assert words in lines[0]
    assert lines[1].startswith("Nothing that was tried") and lines[2] == "Use the mean fit."
