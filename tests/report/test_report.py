"""Reports: of all kinds of data, safe, and without row data where that is asked for."""

import re

import numpy as np
import pytest
from sklearn import datasets
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import drago
from drago._html import number
from drago.report import facts as facts_room
from drago.report import folds, page, words
from pages import HOSTILE, case, check, heavy

pd = pytest.importorskip("pandas")


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("name", ["regression", "binary", "multiclass", "groups", "heavy tails"])
def test_a_report_of_every_kind_of_data(name, rows):
    model, X, y, groups = case(name)
    found = check(drago.html_report(model, X, y, groups=groups, rows=rows, title="Bericht Ü"))
    assert "Bericht Ü" in found.text
    heads = ["Mean model and robust model", "Trade-off", "Losses", "Who carries the weight",
             "The certificate", "Settings and versions"]  # fmt: skip
    heads += ["Groups"] if groups is not None else []
    heads += ["Calibration"] if drago.report.facts.is_classifier(model) else []
    for head in heads:
        assert head in found.text
    for piece in ("95% interval", "were fitted on four fifths", "fitted on, because its objective",
                  "can gain over a model without", drago.__version__, np.__version__):  # fmt: skip
        assert piece in found.text, piece
    if rows:
        assert "No model of this kind" in found.text
    log = "logarithmic" in found.text
    assert log or name not in ("heavy tails", "groups")


def test_the_refitted_models_are_those_of_cross_validation():
    """Also with a baseline, which must not know the rows that models are judged on."""
    X, y = datasets.load_wine(return_X_y=True, as_frame=True)
    tree = DecisionTreeClassifier(max_depth=3, random_state=0)
    made = [
        make_pipeline(StandardScaler(), drago.DROClassifier(level, baseline=baseline))
        for level, baseline in [(drago.CVaR(1.0), None), (drago.CVaR(0.3), tree)]
    ]
    found = folds.refit(facts_room.read(made[1].fit(X, y), X, y, None, None))
    cv = StratifiedKFold(5, shuffle=True, random_state=0)
    wanted = []
    for each in made:
        shares = cross_val_predict(each, X, y, cv=cv, method="predict_proba")
        wanted.append(-np.log(shares[np.arange(y.size), y]).mean())
    np.testing.assert_allclose(found.comparison.table["mean_loss"], wanted, rtol=0.01)
    np.testing.assert_allclose(found.losses.mean(axis=1), wanted, rtol=0.01)


# ------------------------------------------------------------------------- which rows they are


def test_training_rows_are_known_by_their_objective(tmp_path):
    X, y, groups = heavy()
    weight = np.random.default_rng(1).uniform(size=len(y))
    model = drago.DRORegressor("worst_group").fit(X, y, groups=groups, sample_weight=weight)

    def origin(*given):
        return facts_room.read(model, *given).origin

    assert origin(X, y, groups, weight) == "training"
    assert origin(X, y, groups, None) == "unclear"
    assert origin(X[:300], y[:300], groups[:300], weight[:300]) == "held out"
    drago.save(model, tmp_path / "model.drago")
    model = drago.load(tmp_path / "model.drago")
    assert origin(X, y, groups, weight) == "training"


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["excess_tail", "mild", "kl_ball"])
def test_training_rows_with_other_settings(kind, dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2)).astype(dtype)
    y = rng.uniform(size=150) < 1 / (1 + np.exp(-X[:, 0]))
    model = drago.DROClassifier(kind, class_weight="balanced").fit(X, y)
    found = facts_room.read(model, X, y, None, None)
    assert found.origin == "training"
    assert (found.baseline is not None) == (kind == "excess_tail")
    other = facts_room.read(model, X[::-1][:149], y[::-1][:149], None, None)
    assert other.origin == "held out"


# ------------------------------------------------------------------------------- row data


def test_without_row_data_no_row_can_be_read():
    X, y, groups = heavy()
    rng = np.random.default_rng(2)
    X.index = [f"person-{k}" for k in rng.permutation(len(X))]
    groups = np.where(np.arange(len(X)) < 4, "rare", groups)
    model = drago.DRORegressor(drago.CVaR(0.1)).fit(X, y)
    losses = model.losses(X, y)
    largest = {number(loss) for loss in np.sort(losses)[-9:] if "." in number(loss)}
    with_rows = check(drago.html_report(model, X, y, groups=groups))
    assert "person-" in with_rows.text and "rare" in with_rows.text
    assert largest & set(with_rows.numbers())
    without = check(drago.html_report(model, X, y, groups=groups, rows=False))
    assert "person-" not in without.raw and "rare" not in without.raw
    assert not largest & set(without.numbers())
    assert "Row data was left out" in without.text
    # No curve has so many points that rows could be told apart.
    for path in re.findall(r'class="line c\d"[^>]* d="([^"]+)"', without.raw):
        assert path.count("L") <= len(y) / 10


def test_of_too_few_rows_nothing_is_said():
    X, y, _ = heavy()
    model = drago.DRORegressor().fit(X, y)
    found = drago.html_report(model, X[:9], y[:9], rows=False)
    assert "no figures of them" in found and "<svg" not in found and "<table" not in found
    assert "<svg" in drago.html_report(model, X[:9], y[:9])


def test_groups_of_single_rows_are_no_groups_without_row_data():
    X, y, _ = heavy(200)
    model = drago.DRORegressor(drago.CVaR(0.3)).fit(X, y)
    each = np.array([f"one-{k}" for k in range(200)])
    found = check(drago.html_report(model, X, y, groups=each, rows=False))
    assert "one-" not in found.raw and "No group is shown, to protect" in found.text
    assert "worst group" not in found.text
    some = np.where(np.arange(200) < 150, "many", each)
    found = check(drago.html_report(model, X, y, groups=some, rows=False))
    assert "one-" not in found.raw and "50 groups are shown as one" in found.text


@pytest.mark.parametrize("uncertainty", ["mild", "worst_group"])
@pytest.mark.parametrize("sizes", [(3, 60, 100), (3, 4, 60, 100), (6, 7, 60, 100)])
def test_a_small_group_cannot_be_computed_from_the_others(uncertainty, sizes):
    """What all rows lose, less what the groups that are shown lose, is of ten rows at least."""
    names = np.array([f"g{k}" for k in range(len(sizes))])
    groups = np.repeat(names, sizes)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(groups.size, 2))
    y = X[:, 0] + rng.normal(size=groups.size) + 9.0 * (groups == "g0")
    model = drago.DRORegressor(uncertainty).fit(X, y, groups=groups)
    raw = drago.html_report(model, X, y, groups=groups, rows=False)
    losses = model.losses(X, y)
    section = raw[raw.index('id="groups"') : raw.index('id="trade-off"')]
    shown = [name for name in names if f">{name}<" in section]
    assert shown
    inside = np.isin(groups, shown)
    assert (~inside).sum() >= 10
    hidden = losses.sum() - losses[inside].sum()
    assert abs(hidden / (~inside).sum() - losses[groups == "g0"].mean()) > 0.1
    small = [number(losses[groups == name].mean()) for name in names if name not in shown]
    assert not set(small) & set(check(raw).numbers())
    # The worst-case weights would be those of the small group, and their loss the one it has.
    assert (
        facts_room.without_small_groups(
            facts_room.read(model, X, y, groups, None), 10
        ).worst.effective_sample_size
        > 9
    )


# ------------------------------------------------------------------------------- hard cases


def test_names_may_hold_anything():
    rng = np.random.default_rng(0)
    n = 60 * len(HOSTILE)
    X = pd.DataFrame(rng.normal(size=(n, 2)), columns=HOSTILE[:2])
    groups = np.array(HOSTILE, dtype=object)[np.arange(n) % len(HOSTILE)]
    X.index = pd.Index([f"{name}{k}" for k, name in enumerate(groups)], dtype=object)
    y = np.where(rng.uniform(size=n) < 0.5, HOSTILE[0], HOSTILE[7])
    model = drago.DROClassifier().fit(X, y)
    found = check(drago.html_report(model, X, y, groups=groups, title=HOSTILE[1]))
    assert "名前" in found.text and HOSTILE[0] in found.text


def test_missing_values_categories_and_a_constant_column():
    rng = np.random.default_rng(0)
    n = 300
    X = pd.DataFrame(
        {
            "größe": np.where(rng.uniform(size=n) < 0.1, np.nan, rng.normal(size=n)),
            "stadt": rng.choice(["Köln", "Łódź", None], size=n),
            "fest": 1.0,
        }
    )
    y = np.nan_to_num(X["größe"]) + rng.standard_t(2, size=n)
    prepare = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["größe", "fest"]),
        (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["stadt"]),
    )
    model = make_pipeline(prepare, drago.DRORegressor("worst_group"))
    model.fit(X, y, droregressor__groups=X["stadt"].fillna("?"))
    found = check(drago.html_report(model, X, y, groups="stadt"))
    for label in ("Köln", "Łódź", facts_room.MISSING):
        assert label in found.text
    assert "These are the rows that the model was fitted on" in found.text


@pytest.mark.parametrize("classifies", [False, True])
def test_one_row(classifies):
    X, y, groups = heavy()
    y = np.where(y > 0, "ja", "nein") if classifies else y
    model = (drago.DROClassifier if classifies else drago.DRORegressor)().fit(X, y)
    found = check(drago.html_report(model, X[:1], y[:1], groups=groups[:1]))
    assert "no mean model was fitted" in found.text


def test_what_cannot_be_compared_is_said():
    X, y, _ = heavy(60)
    mean = drago.DRORegressor(drago.CVaR(1.0)).fit(X, y)
    assert "is a mean model itself" in check(drago.html_report(mean, X, y)).text
    labels = np.array(["a", "b"])[np.arange(60) % 2].astype(object)
    labels[0] = "c"
    rare = drago.DROClassifier().fit(X, labels.astype(str))
    assert (
        "The class 'c' has fewer than 2"
        in check(drago.html_report(rare, X, labels.astype(str))).text
    )
    own = drago.DRORegressor().fit(X, y, baseline=np.abs(y))
    found = check(drago.html_report(own, X[:40], y[:40])).text
    assert "a baseline of its own" in found and "those of the plain losses" in found


def test_weights_and_sparse_features():
    from scipy import sparse

    X, y, _ = heavy(120)
    weight = np.arange(120) % 3
    model = drago.DRORegressor().fit(sparse.csr_array(X), y, sample_weight=weight)
    found = drago.html_report(model, sparse.csr_array(X), y, sample_weight=weight)
    assert "These are the rows that the model was fitted on" in check(found).text
    there = weight > 0
    kept = drago.html_report(
        model, sparse.csr_array(X[there]), y[there], sample_weight=weight[there]
    )
    assert re.findall("<dd>(.*?)</dd>", found)[:4] == re.findall("<dd>(.*?)</dd>", kept)[:4]


def test_a_source_in_place_of_rows():
    X, y, groups = heavy()
    source = drago.from_arrays(X.to_numpy(), y, groups=groups)
    model = drago.DRORegressor("worst_group").fit(source)
    found = check(drago.html_report(model, source))
    assert "Groups" in found.text and "These are the rows that the model was fitted" in found.text
    with pytest.raises(ValueError, match="y was given beside"):
        drago.html_report(model, source, y)
    with pytest.raises(TypeError, match="a pipeline takes no source"):
        drago.html_report(make_pipeline(StandardScaler(), drago.DRORegressor()).fit(X, y), source)


@pytest.mark.slow
def test_many_rows_and_groups_stay_small():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25_000, 2))
    y = X[:, 0] + rng.standard_t(2, size=25_000)
    model = drago.DRORegressor(drago.CVaR(0.1)).fit(X, y)
    text = drago.html_report(model, X, y, groups=rng.integers(0, 400, 25_000))
    assert len(text) < 200_000
    assert "380 more groups" in check(text).text and "drawn from 25000" in text


def test_what_is_refused():
    X, y, _ = heavy(30)
    model = drago.DRORegressor().fit(X, y)
    with pytest.raises(TypeError, match="DRORegressor or a DROClassifier"):
        drago.html_report(StandardScaler().fit(X), X, y)
    with pytest.raises(TypeError, match="rows must be True or False"):
        drago.html_report(model, X, y, rows="no")
    with pytest.raises(TypeError, match="audit must be what"):
        drago.html_report(model, X, y, audit={})
    with pytest.raises(TypeError, match="audit must be what"):
        drago.report.audit_report(model)
    with pytest.raises(ValueError, match="is none of"):
        drago.html_report(model, X, y, groups="nobody")
    with pytest.raises(ValueError, match="one entry for each"):
        drago.html_report(model, X, y[:3])


# ---------------------------------------------------------------------------------- audits


@pytest.fixture(scope="module")
def audited():
    X, y, groups = heavy(150)
    X = X.assign(**{"<b>": groups})
    return drago.audit(X, y, groups="<b>", time_budget=0, verbose=0), X, y


@pytest.mark.parametrize("rows", [True, False])
def test_a_report_of_an_audit(audited, rows):
    found = check(drago.report.audit_report(audited[0], rows=rows))
    pieces = ["(recommended)", "stopped early", "make_pipeline", "Groups", "Trade-off"]
    for piece in (*pieces, *audited[0].comparison.models):
        assert piece in found.text
    # It names a group, and the other one has fewer rows than may be told of.
    assert (audited[0].verdict[0] in found.text) == rows


def test_a_report_of_a_model_with_an_audit(audited):
    audit, X, y = audited
    model = drago.DRORegressor(group_columns="<b>").fit(X, y)
    found = check(drago.html_report(model, X, y, audit=audit))
    assert "boosted trees" in found.text and "this model, on these rows" in found.text
    assert "four fifths" not in found.text


# ---------------------------------------------------------------------------- words, colours


@pytest.mark.parametrize(
    "uncertainty, said",
    [
        (drago.CVaR(1.0), "the mean loss of all rows"),
        (drago.CVaR(0.1), "the mean loss of the worst 10% of the rows"),
        (drago.Simplex(), "the loss of the worst row"),
        (drago.Grouped(drago.Simplex()), "the loss of the worst group"),
        (drago.ESRM(0.4), "the worst one 1.2 times, the best one 0.81 times"),
        (drago.Extremile(3.0), "up to 3 times"),
        (drago.Chi2Ball(0.5), "a chi-squared distance of 0.5"),
        (drago.KLBall(0.5), "a Kullback-Leibler distance of 0.5"),
        (drago.Spectrum(integral=lambda u: u**2), "reweightings of Spectrum"),
    ],
)
def test_sets_in_words(uncertainty, said):
    assert said in words.set_in_words(uncertainty)


def test_the_verdict_follows_the_interval():
    X, y, _ = heavy()
    facts = facts_room.read(drago.DRORegressor().fit(X, y), X, y, None, None)
    found = folds.refit(facts)

    def said(low, high):
        found.comparison.table["tail_excess_low"][1] = low
        found.comparison.table["tail_excess_high"][1] = high
        return words.verdict(facts, found)

    base = found.comparison.table["mean_loss"][0]
    assert said(-2.0, -1.0).startswith(
        "Refitted on parts of these rows, robustness helps the worst tenth"
    )
    assert "robustness does harm" in said(1.0, 2.0)
    assert "cannot tell" in said(-base, base)
    assert "nothing that these rows could show" in said(-0.01 * base, 0.01 * base)
    assert "the same here" in said(0.0, 0.0)


@pytest.mark.parametrize("value, shown", [
    (1234567, "1\u202f234\u202f567"), (12345.678, "12\u202f346"), (0.00123456, "0.001235"),
    (-2.5, "−2.5"), (1e-9, "1e−09"), (float("nan"), "–"), (0.0, "0"), (1e12, "1e+12"),
    (float("inf"), "∞"), (True, "True"), ("<", "&lt;"),
])  # fmt: skip
def test_numbers_as_they_are_shown(value, shown):
    assert number(value) == shown


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_stand_out(scheme):
    """WCAG: 4.5 for text, 3 for what is drawn."""
    colours = {name: (light, dark)[scheme == "dark"] for name, light, dark in page.COLOURS}
    for name, colour in colours.items():
        if name in ("ground", "panel", "edge"):
            continue
        for ground in ("ground", "panel"):
            a, b = sorted([luminance(colour), luminance(colours[ground])])
            assert (b + 0.05) / (a + 0.05) >= (4.5 if name[0] != "c" else 3.0), (name, ground)
