"""Found groups: what the rules say, who is judged by what, and whether it can be believed."""

import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor

import drago
from drago import GroupFinder, find_groups
from drago.estimators.baseline import out_of_fold_losses
from drago.estimators.columns import Columns
from drago.estimators.rules import _cut, numbers_of, rules_of, written
from drago.terms.losses import Multinomial

ZERO = DummyRegressor(strategy="constant", constant=0.0)  # half the square of y is its loss
CLASSES = ["1st", "2nd", "3rd"]


def numbers(n=400, d=3, seed=0):
    """A linear law, but for a corner of the rows."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, d))
    y = X[:, 1] + 4.0 * (X[:, 0] > 0.5) * X[:, 1] ** 2 + 0.1 * rng.normal(size=n)
    return X, y


def ship(n=400, seed=0, gaps=True):
    """A frame as it comes from a file, and whether they were saved."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(0, 80, n).round(1),
            "class": pd.Categorical(rng.choice(CLASSES, n)),
            "port": rng.choice(["Bath", "Cork", "Deal"], n),
            "alone": rng.random(n) < 0.6,
            "siblings": rng.integers(0, 5, n),
            "crew": np.zeros(n),
        },
        index=[f"passenger {i}" for i in range(n)],
    )
    if gaps:
        frame.loc[rng.random(n) < 0.1, "age"] = np.nan
        frame.loc[rng.random(n) < 0.1, "port"] = None
        frame.loc[rng.random(n) < 0.1, "class"] = np.nan
    child = (frame["age"] < 15) & (frame["class"] != "3rd")
    odds = np.where(child, 3.0, -1.0 + frame["alone"])
    return frame, np.where(rng.random(n) < 1 / (1 + np.exp(-odds)), "yes", "no")


def minority(seed, n=5000):
    """A twentieth of the rows lies apart along one feature, and the other features work in reverse.

    Some labels are wrong.
    """
    common = np.array([0.2, 0.36, 0.59, 0.01, 0.62, -0.18, -0.77, 2.09])
    reverse = np.concatenate([common[:1], -common[1:]])
    rng = np.random.default_rng(seed)
    few = rng.random(n) < 0.05
    X = rng.standard_normal((n, 8))
    X[few, 0] += 3.0
    odds = np.where(few, X @ reverse - 0.6, X @ common)
    y = rng.random(n) < 1.0 / (1.0 + np.exp(-odds))
    return X, y ^ (rng.random(n) < 0.05), few


# ------------------------------------------------------------------------- whether it is true


def test_a_minority_under_another_law_is_found():
    """The best rule on one feature reaches a Jaccard index of 0.63."""
    found, clear = [], 0
    for seed in range(5):
        X, y, few = minority(seed)
        groups = find_groups(X, y, random_state=seed)
        rows = groups.judged_on
        worst = groups.labels(X[rows]) == 0
        found.append((worst & few[rows]).sum() / (worst | few[rows]).sum())
        assert groups.rules[0].startswith("x0 > ")
        clear += bool(groups.stands_out[0])
    print("Jaccard indices", np.round(found, 2), "mean", np.mean(found))
    assert np.mean(found) >= 0.5 and clear >= 4


def coverage(runs, labels, **settings):
    """Runs on shuffled targets where the worst interval covers 0, and where a group stands out."""
    covered, alarms = 0, 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((600, 4))
        y = rng.permutation(X @ [1.0, 1.0, 0.0, 0.0] + rng.standard_normal(600))
        y = y > 0.5 if labels else y
        found = find_groups(X, y, random_state=seed, **settings)
        table = found.table
        covered += bool(table["above_low"][0] <= 0.0 <= table["above_high"][0])
        alarms += bool(found.stands_out.any())
    return covered, alarms


@pytest.mark.slow
@pytest.mark.parametrize("labels", [False, True])
def test_nobody_is_worse_off_where_there_is_nothing_to_find(labels):
    baseline = (
        make_pipeline(StandardScaler(), LogisticRegression(C=0.01))
        if labels
        else DecisionTreeRegressor(max_leaf_nodes=8, random_state=0)
    )
    covered, alarms = coverage(100, labels, baseline=baseline)
    assert covered >= 90 and alarms <= 5


@pytest.mark.slow
@pytest.mark.parametrize("labels", [False, True])
def test_nor_with_boosted_trees(labels):
    covered, alarms = coverage(20, labels)
    assert covered >= 18 and alarms <= 1


def test_the_intervals_are_students():
    X, y = numbers()
    found = find_groups(X, y, ZERO, baseline=None, max_groups=5)
    rows, table = found.judged_on, found.table
    losses, number, many = 0.5 * y[rows] ** 2, found.labels(X[rows]), found.n_groups
    assert many == 5
    level = 1.0 - 0.05 / many
    for k in range(many):
        mine, rest = losses[number == k], losses[number != k]
        assert table["rows"][k] == mine.size
        assert table["share"][k] == pytest.approx(mine.size / rows.size)
        for name in ("loss", "excess"):  # without a baseline they are the same
            ends = stats.ttest_1samp(mine, 0.0).confidence_interval(level)
            assert_allclose([table[f"{name}_low"][k], table[f"{name}_high"][k]], ends)
            assert table[name][k] == pytest.approx(mine.mean())
        assert table["above"][k] == pytest.approx(mine.mean() - losses.mean())
        ends = stats.ttest_ind(mine, rest, equal_var=False).confidence_interval(level)
        factor = 1.0 - mine.size / rows.size
        assert_allclose(
            [table["above_low"][k], table["above_high"][k]], factor * np.array(ends), rtol=1e-9
        )
    assert found.overall["loss"] == found.overall["excess"] == pytest.approx(losses.mean())
    assert_array_equal(found.stands_out, table["above_low"] > 0)  # losses are above 0 anyway


def test_rules_know_nothing_of_the_rows_judged():
    X, y = numbers()
    found = find_groups(X, y, ZERO, baseline=None)
    assert found.n_groups > 3
    rows = found.judged_on
    assert np.all(np.diff(found.table["found"]) <= 0)  # the order is the search's
    other = y.copy()
    other[rows] = np.random.default_rng(1).normal(size=rows.size)
    again = find_groups(X, other, ZERO, baseline=None)
    assert again.rules == found.rules
    assert_array_equal(again.table["found"], found.table["found"])
    assert not np.array_equal(again.table["loss"], found.table["loss"])
    rest = np.setdiff1d(np.arange(y.size), rows)
    assert rest.size == found.n_found_on and rows.size == found.n_judged_on
    other = y.copy()
    other[rest] = np.random.default_rng(1).normal(size=rest.size)
    assert find_groups(X, other, ZERO, baseline=None).rules != found.rules


class Strict(RegressorMixin, BaseEstimator):
    """Refuses to judge rows that it was fitted on, which it knows by their first feature."""

    def fit(self, X, y):
        self.seen_ = set(X[:, 0].tolist())
        self.mean_ = y.mean()
        return self

    def predict(self, X):
        assert not self.seen_ & set(X[:, 0].tolist())
        return np.full(X.shape[0], self.mean_)


def test_models_are_judged_on_rows_that_they_have_not_seen():
    X, y = numbers()
    found = find_groups(X, y, Strict(), baseline=Strict())
    assert found.n_groups == 1 and found.overall["excess"] == 0.0
    assert "baseline is the model itself" in str(found)
    # A model that knows every row by heart has no loss on those that it was fitted on.
    noise = np.random.default_rng(0).normal(size=y.size)
    by_heart = find_groups(X, noise, KNeighborsRegressor(1), baseline=None)
    assert by_heart.overall["loss"] > 0.8  # twice that of the mean, which is 1/2


def test_a_fitted_model_is_cloned_and_left_alone():
    X, y = numbers()
    model = Ridge().fit(X[:50], 7.0 - y[:50])
    before = model.coef_.copy()
    found = find_groups(X, y, model)
    assert_array_equal(model.coef_, before)
    assert_array_equal(found.table["loss"], find_groups(X, y, Ridge()).table["loss"])


def test_what_both_cannot_predict_is_no_excess():
    """Noise in one corner, another law in the other: the loss finds the one, the excess both not.

    By the loss alone the worst group is that of the noise.
    """
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(3000, 2))
    noise, law = X[:, 0] > 0.7, X[:, 0] < -0.7
    y = X[:, 1] * np.where(law, -3.0, 1.0) + np.where(noise, 3.0, 0.1) * rng.normal(size=3000)
    by_loss = find_groups(X, y, baseline=None, max_groups=4)
    by_excess = find_groups(X, y, max_groups=4)
    assert noise[by_loss.labels(X) == 0].mean() > 0.9
    assert law[by_excess.labels(X) == 0].mean() > 0.9 and by_excess.stands_out[0]
    assert not by_loss.is_excess and by_excess.is_excess
    assert "attainable" in str(by_excess) and "attainable" not in str(by_loss)


def test_where_a_bad_baseline_is_less_bad_nobody_is_worse_off():
    X, _ = numbers(2000)
    y = np.random.default_rng(1).normal(size=2000)
    found = find_groups(X, y, baseline=Wrong())
    assert found.overall["excess"] < 0 and (found.table["above_low"] > 0).any()
    assert not found.stands_out.any() and "baseline predicts worse than the model" in str(found)


class Wrong(RegressorMixin, BaseEstimator):
    """Far off where the first feature is positive."""

    def fit(self, X, y):
        self.mean_ = y.mean()
        return self

    def predict(self, X):
        return self.mean_ + 3.0 * (X[:, 0] > 0)


# ------------------------------------------------------------------------------------ rules


NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"


def is_true(rule, frame):
    """Which rows of a frame a rule is true for, by its words alone."""
    out = np.ones(len(frame), dtype=bool)
    if rule == "all rows":
        return out
    for words in rule.split(" and "):
        part, or_missing = words, False
        if match := re.fullmatch(r"\((.*) or missing\)", part):
            part, or_missing = match[1], True
        if match := re.fullmatch(rf"({NUMBER}) < (\w+) <= ({NUMBER})", part):
            x = frame[match[2]].astype(float)
            holds = (x > float(match[1])) & (x <= float(match[3]))
        elif match := re.fullmatch(rf"(\w+) (<=|>) ({NUMBER})", part):
            x = frame[match[1]].astype(float)
            holds = x <= float(match[3]) if match[2] == "<=" else x > float(match[3])
        elif match := re.fullmatch(r"(\w+) is (missing|known)", part):
            x = frame[match[1]]
            holds = x.isna() == (match[2] == "missing")
        elif match := re.fullmatch(r"(\w+) not in \((.*)\)", part):
            x = frame[match[1]].astype(object).where(frame[match[1]].notna(), "missing")
            holds = ~x.astype(str).isin(match[2].split(", "))
        else:
            name, sign, word = re.fullmatch(r"(\w+) (=|!=) (\w+)", part).groups()
            x = frame[name].astype(object)
            holds = (x.astype(str) == word) == (sign == "=")
        out &= holds.to_numpy() | (or_missing & x.isna().to_numpy())
    return out


@pytest.mark.parametrize("seed", range(6))
def test_labels_are_what_the_rules_say(seed):
    frame, _ = ship(500, seed, gaps=seed % 3 > 0)
    rng = np.random.default_rng(seed)
    age = frame["age"].fillna(60.0 + 20.0 * (seed % 2))
    y = np.where(frame["class"].isin(["2nd"]), 0.1, 0.02) * age + frame["siblings"] % 3
    y = y + 2.0 * (frame["port"] == "Cork") * frame["alone"] + 3.0 * frame["port"].isna()
    y = y.to_numpy(dtype=float) + 0.1 * rng.normal(size=500)
    found = find_groups(frame, y, ZERO, baseline=None, max_groups=20, min_size=5, random_state=seed)
    assert found.n_groups == 20
    for rows in (frame, ship(300, seed + 100, gaps=seed % 3 > 0)[0]):
        said = np.column_stack([is_true(rule, rows) for rule in found.rules])
        assert (said.sum(axis=1) == 1).all()
        assert_array_equal(found.labels(rows), said.argmax(axis=1))


def test_rules_of_every_kind_are_written():
    kinds = set()
    for seed in range(6):
        frame, _ = ship(500, seed)
        y = 3.0 * frame["age"].isna() + 2.0 * frame["port"].isna() + 0.05 * frame["age"].fillna(0)
        y = y + 4.0 * (frame["port"] == "Cork") + frame["alone"] * (frame["class"] == "3rd")
        y = y.to_numpy(dtype=float)
        rules = find_groups(frame, y, ZERO, baseline=None, max_groups=30, min_size=4).rules
        text = " and ".join(rules)
        patterns = ("is missing", " = True", " = False", "class != ", "port = Cork", "< age <=",
                    "age >", "not in (")  # fmt: skip
        kinds |= {pattern for pattern in patterns if pattern in text}
        assert "crew" not in text
    assert kinds == set(patterns)


@pytest.mark.parametrize("name", ["age", "port", "class"])
def test_what_is_missing_may_be_the_rule(name):
    frame, _ = ship(600)
    y = 5.0 * frame[name].isna().to_numpy()
    found = find_groups(frame, y, ZERO, baseline=None, max_groups=2, min_size=10)
    assert found.rules == [f"{name} is missing", f"{name} is known"]
    assert_array_equal(found.labels(frame) == 0, frame[name].isna())


@pytest.mark.parametrize("dtype", [int, object])
def test_numbers_of_any_dtype_may_be_classes(dtype):
    X, _ = numbers(200)
    y = np.array([0, 1] * 100).astype(dtype)
    assert find_groups(X, y).table["loss"][0] == pytest.approx(np.log(2.0), abs=0.1)


def test_missing_numbers_where_none_were_are_put_somewhere():
    X, y = numbers(600)
    finder = GroupFinder(max_groups=4).fit(X, y)
    holes = X.copy()
    holes[:50, 0] = np.nan
    assert np.isfinite(finder.transform(holes)).all()
    assert finder.transform(holes)[50:].tolist() == finder.transform(X)[50:].tolist()


def test_missing_numbers_go_where_they_fit():
    frame, _ = ship(600)
    old = frame["age"].isna() | (frame["age"] > 40)
    y = 2.0 * old.to_numpy() + 0.1 * np.random.default_rng(0).normal(size=600)
    found = find_groups(frame, y, ZERO, baseline=None, max_groups=2)
    assert re.fullmatch(r"\(age > \d+(\.\d)? or missing\)", found.rules[0])
    assert re.fullmatch(r"age <= \d+(\.\d)?", found.rules[1])


def test_a_tree_on_the_features_themselves_splits_alike():
    rng = np.random.default_rng(0)
    X = rng.integers(-20, 20, size=(300, 4)) / 4.0
    y = rng.integers(0, 9, size=300) + np.round(X[:, 0] * X[:, 1])
    columns, values = Columns.of(X)
    settings = {"max_groups": 9, "min_size": 10}
    number = numbers_of(rules_of(columns, values, y, np.ones(300), **settings, seed=3), values)
    tree = DecisionTreeRegressor(max_leaf_nodes=9, min_samples_leaf=10, random_state=3).fit(X, y)
    pairs = set(zip(number.tolist(), tree.apply(X).tolist()))
    assert len(pairs) == 9


@pytest.mark.parametrize(("low", "high", "cut"), [
    (8, 9, 8), (9, 10, 9), (14.6, 14.75, 14.7), (0.123401, 0.123409, 0.123405), (-1, 1, 0),
    (-9, -8, -8.5), (99.0, 101.0, 100), (1.5e-9, 2.5e-9, 2e-9), (-1.7e308, 1.7e308, 0),
    (1.0, np.nextafter(1.0, 2.0), 1.0),
])  # fmt: skip
def test_numbers_have_few_digits(low, high, cut):
    found = _cut(np.array([low, high], dtype=float), 0.5)
    assert low <= found < high
    if (low, high) != (-9, -8):  # halves are rounded to even
        assert found == cut


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False))
def test_a_cut_lies_between_and_reads_as_it_is(low, high):
    if not low < high < np.inf:
        return
    cut = _cut(np.array([low, high]), 0.5)
    assert low <= cut < high
    assert float(written(cut)) == cut
    middle = 0.5 * low + 0.5 * high
    if low <= float(f"{middle:.4g}") < high:
        assert float(f"{cut:.4g}") == cut


def test_features_of_any_size():
    X, y = numbers()
    X[:, 0] *= 1e30  # a tree of scikit-learn's own would see them as float32
    X[:, 1] = 1.0 + 1e-12 * X[:, 1]
    found = find_groups(X, y, ZERO, baseline=None)
    assert found.n_groups == 8 and len(np.unique(found.labels(X))) == 8
    least = [(found.labels(np.delete(X, found.judged_on, axis=0)) == k).sum() for k in range(8)]
    assert min(least) >= found.min_size


# ------------------------------------------------------------------------- what can be given


def test_a_frame_of_all_kinds():
    frame, saved = ship(800)
    found = find_groups(frame, saved, max_groups=4)
    assert found.feature_names == list(frame.columns)
    assert set(found.labels(frame)) == set(range(found.n_groups))
    assert_array_equal(found.labels(frame.iloc[::-1]), found.labels(frame)[::-1])
    other = frame.head(5).assign(port="Oslo", **{"class": "4th"})  # never seen
    new = found.labels(other)
    for k, rule in enumerate(found.rules):
        assert_array_equal(new == k, is_true(rule, other))
    table = found.to_frame()
    assert list(table["rule"]) == found.rules and len(table) == found.n_groups
    assert table["rows"].sum() == found.n_judged_on


def test_unseen_words_are_other_words():
    frame, _ = ship(400, gaps=False)
    y = 2.0 * (frame["port"] == "Cork").to_numpy()
    found = find_groups(frame, y, ZERO, baseline=None, max_groups=2)
    assert found.rules == ["port = Cork", "port != Cork"]
    assert_array_equal(found.labels(frame.head(3).assign(port=["Cork", "Oslo", None])), [0, 1, 1])


def test_columns_of_nullable_and_mixed_kinds():
    pd = pytest.importorskip("pandas")
    frame, saved = ship(300)
    mixed = frame.assign(
        siblings=frame["siblings"].astype("Int64").mask(frame["siblings"] == 2),
        alone=frame["alone"].astype("boolean").mask(frame["siblings"] == 1),
        port=frame["port"].astype("string"),
        deck=np.where(frame["age"] > 40, 1, 2),
        fare=np.array([None, 1, 2.5] * 100, dtype=object),
    )
    mixed["deck"] = mixed["deck"].astype("category")
    found = find_groups(mixed, saved, max_groups=3)
    kinds = {column.name: column.kind for column in found._columns.all}
    assert kinds == {
        "age": "number", "class": "words", "port": "words", "alone": "words", "siblings": "number",
        "crew": "number", "deck": "words", "fare": "number",
    }  # fmt: skip
    y = 5.0 * (mixed["deck"] == 1).to_numpy(dtype=float)
    found = find_groups(mixed, y, ZERO, baseline=None, max_groups=2)
    assert found.rules in (["deck = 1", "deck != 1"], ["deck != 2", "deck = 2"])
    plain = mixed.astype({"deck": float})  # 1.0 is the category 1
    assert_array_equal(found.labels(plain), found.labels(mixed))
    assert find_groups(mixed.assign(empty=pd.NA), saved).n_groups >= 1


def test_pipelines_are_given_the_frame():
    frame, saved = ship(400)
    words = OneHotEncoder(handle_unknown="ignore")
    columns = make_column_transformer((words, ["class", "port", "alone"]), remainder="drop")
    model = make_pipeline(columns, LogisticRegression(class_weight={"yes": 2.0, "no": 1.0}))
    found = find_groups(frame, saved, model, baseline=make_pipeline(columns, LogisticRegression()))
    assert np.isfinite(found.table["excess"]).all()
    plain = find_groups(frame, saved, make_pipeline(columns, LogisticRegression()), baseline=None)
    assert found.overall["loss"] > plain.overall["loss"]  # the weights cost something


@pytest.mark.parametrize("model", [None, LogisticRegression()])
def test_more_than_two_classes(model):
    X, y = numbers(500)
    labels = np.array(["low", "mid", "top"])[np.digitize(y, [-0.3, 0.4])]
    found = find_groups(X, labels, model)
    assert 0 < found.overall["loss"] < np.log(3)
    as_numbers = find_groups(X, np.digitize(y, [-0.3, 0.4]), model)  # in the same order
    assert_allclose(as_numbers.table["loss"], found.table["loss"])
    chance = find_groups(X, labels, DummyClassifier(strategy="uniform"), baseline=None)
    assert chance.overall["loss"] == pytest.approx(np.log(3))


def test_a_class_of_one_row():
    X, y = numbers(120)
    three = np.where(np.arange(120) == 7, "rare", np.where(y > 0, "a", "b"))
    for labels, model in ((three, None), (three, LogisticRegression()), (three == "rare", None)):
        found = find_groups(X, labels, model, baseline=None)
        assert np.isfinite(found.table["loss"]).all()


def test_classes_that_are_not_among_the_rows_of_a_fit_have_a_small_probability():
    X, _ = numbers(40)
    codes = np.array([0, 2] * 20)
    codes[5] = 1
    losses = out_of_fold_losses("linear", X, codes, Multinomial())
    assert losses[5] == pytest.approx(-np.log(1e-4), rel=0.01)
    assert losses[codes != 1].max() < 3.0


def test_the_task_is_told_by_the_model_or_by_the_target():
    X, y = numbers(200)
    whole = np.round(2 * y)
    assert np.unique(whole).size <= 20
    n = whole.size
    as_labels, as_values = find_groups(X, whole), find_groups(X, whole, task="regression")
    squares = find_groups(X, whole, LinearRegression())
    assert squares.overall["loss"] == pytest.approx(as_values.overall["loss"], rel=0.1)
    assert as_labels.overall["loss"] != pytest.approx(as_values.overall["loss"], rel=0.1)
    many = find_groups(X, np.arange(n) % 25, DummyRegressor(), baseline=None)
    assert find_groups(X, np.arange(n) % 25, baseline=None).overall["loss"] == pytest.approx(
        many.overall["loss"], rel=0.2
    )
    objects = find_groups(X, y.astype(object), LinearRegression())
    assert objects.rules == find_groups(X, y, LinearRegression()).rules


def test_weights_count():
    X, y = numbers(600)
    weight = np.random.default_rng(0).integers(0, 3, 600).astype(float)
    found = find_groups(X, y, sample_weight=weight)
    assert found.n_found_on + found.n_judged_on == (weight > 0).sum()
    other = np.where(weight == 0, 1e3, y)
    assert_array_equal(find_groups(X, other, sample_weight=weight).table["loss"],
                       found.table["loss"])  # fmt: skip
    assert find_groups(X, y, sample_weight=1e-200 * weight).rules == found.rules
    rows = found.judged_on
    mine = found.labels(X[rows]) == 0
    share = weight[rows][mine].sum() / weight[rows].sum()
    assert found.table["share"][0] == pytest.approx(share)
    losses, p = 0.5 * y[rows] ** 2, weight[rows] / weight[rows].sum()
    zero = find_groups(X, y, ZERO, baseline=None, sample_weight=weight)
    assert_array_equal(zero.judged_on, rows)
    assert zero.overall["loss"] == pytest.approx(p @ losses)
    above = zero.table["share"] @ zero.table["above"]
    assert above == pytest.approx(0.0, abs=1e-12 * zero.overall["loss"] + 1e-12)


def test_groups_are_in_both_halves():
    X, y = numbers(200)
    region = np.where(np.arange(200) % 20 == 0, "far", "near")
    for labels in (y, y > 0):
        found = find_groups(X, labels, groups=region, baseline=None)
        assert (region[found.judged_on] == "far").sum() == 5


def test_nothing_to_split_by():
    X, y = numbers(200)
    for rows in (np.ones((200, 2)), X):
        found = find_groups(rows, y, baseline=None, max_groups=1)
        assert found.rules == ["all rows"] and found.n_groups == 1
        assert found.table["above"][0] == found.table["above_high"][0] == 0.0
        assert not found.stands_out.any() and "No groups found" in str(found)
        assert_array_equal(found.labels(rows), np.zeros(200))
    constant = find_groups(np.ones((200, 2)), y)
    few = find_groups(X[:30], y[:30])  # fewer than two smallest groups
    assert constant.n_groups == few.n_groups == 1
    finder = GroupFinder().fit(np.ones((200, 2)), y)
    assert finder.transform(np.ones((3, 2))).shape == (3, 0)


def test_sizes():
    X, y = numbers(2000)
    found = find_groups(X, y, ZERO, baseline=None)
    assert found.min_size == 30 and find_groups(X[:200], y[:200], ZERO).min_size == 20
    rest = np.setdiff1d(np.arange(2000), found.judged_on)
    assert np.bincount(found.labels(X[rest])).min() >= 30
    assert find_groups(X, y, ZERO, baseline=None, min_size=400).n_groups == 2
    lonely = find_groups(X[:40], y[:40], ZERO, baseline=None, min_size=1, max_groups=20)
    one = lonely.table["rows"] <= 1  # no interval from one row
    assert one.any() and np.isinf(lonely.table["above_low"][one]).all()
    assert str(lonely) and not lonely.stands_out[one].any()


def test_it_prints_a_table():
    X, y = numbers(1000)
    found = find_groups(X, y)
    lines = str(found).splitlines()
    assert "found on 500 rows, judged on 500 others" in lines[0]
    assert f"95% for all {found.n_groups} groups together" in str(found)
    assert len(lines) <= 24 and max(map(len, lines)) <= 120
    assert found.stands_out[0] and "a larger excess than all rows" in lines[-1]
    for rule in found.rules:
        assert any(line.endswith(rule[:60]) or rule[:60] in line for line in lines)
    assert repr(found).startswith(f"FoundGroups({found.n_groups} groups, ")
    noise = find_groups(X, np.random.default_rng(0).normal(size=1000), baseline=None, max_groups=3)
    assert "No group stands out" in str(noise)


def test_without_pandas_there_is_no_frame(monkeypatch):
    X, y = numbers(100)
    found = find_groups(X, y)
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        found.to_frame()


@pytest.mark.parametrize(("settings", "message"), [
    ({"max_groups": 0}, "max_groups must be an integer >= 1"),
    ({"min_size": 0}, "min_size must be an integer >= 1"),
    ({"task": "ranking"}, "task must be one of 'auto', 'regression', 'classification'"),
    ({"model": "forest"}, "model must be None or an estimator, but 'forest'"),
    ({"model": Ridge}, "model must be None or an estimator"),
    ({"baseline": "best"}, "baseline must be 'auto', an estimator or None"),
    ({"baseline": LogisticRegression()}, "baseline must be a regressor here"),
    ({"model": Ridge(), "task": "classification"}, "model must be a classifier with predict_proba"),
    ({"model": SVC()}, "model must be a classifier with predict_proba"),
    ({"model": StandardScaler()}, "model must be a regressor here"),
    ({"random_state": -1}, "random_state must be an integer >= 0"),
    ({"sample_weight": np.arange(60) < 3}, "at least 4 rows must have a positive weight"),
    ({"y": None}, "requires y"),
    ({"y": np.ones((60, 2))}, r"y must be one target, shape \(60,\)"),
    ({"y": np.ones(59)}, "y must have one entry per row"),
    ({"y": np.full(60, "a")}, "at least two classes, but holds"),
    ({"y": np.array([None, "a", "b"] * 20, dtype=object)}, "20 missing labels"),
    ({"y": np.where(np.arange(60) == 5, np.nan, 1.5)}, "y contains 1 NaN"),
    ({"X": np.zeros((3, 2)), "y": np.ones(3)}, "minimum of 4"),
    ({"X": np.full((60, 2), np.inf)}, "infinity"),
    ({"X": Ridge()}, r"a model \(Ridge\) was given; call find_groups\(X, y, model\)"),
    ({"X": np.ma.masked_less(np.arange(120.0).reshape(60, 2), 3)}, "masked"),
])  # fmt: skip
def test_wrong_input_is_refused_in_words(settings, message):
    X, y = numbers(60)
    with pytest.raises((ValueError, TypeError), match=message):
        find_groups(**{"X": X, "y": y, **settings})


def test_wrong_frames_are_refused_in_words():
    pd = pytest.importorskip("pandas")
    frame, saved = ship(100, gaps=False)
    twice = pd.concat([frame, frame[["age"]]], axis=1)
    for wrong, message in (
        (twice, "several columns of the name 'age'"),
        (frame.assign(day=pd.Timestamp("1912-04-15")), "'day' has dtype datetime64"),
        (frame.assign(age=np.inf), "'age' contains infinite entries"),
        (frame.head(3), "at least 4 rows"),
        (frame[[]], "one feature"),
    ):
        with pytest.raises(ValueError, match=message):
            find_groups(wrong, saved[: len(wrong)])
    found = find_groups(frame, saved)
    for wrong, message in (
        (frame[frame.columns[::-1]], "column 0 is 'crew' where 'age' was"),
        (frame.drop(columns="crew"), "X has 5 features"),
        (frame.assign(age="old"), "'age' must hold numbers"),
        (np.zeros(6), "Reshape"),
    ):
        with pytest.raises(ValueError, match=message):
            found.labels(wrong)


# ---------------------------------------------------------------------------- as a transformer


def test_dummies_and_labels_are_those_of_the_groups():
    X, y = numbers(600)
    dummies = GroupFinder(max_groups=5).fit(X, y)
    labels = GroupFinder(max_groups=5, output="labels").fit(X, y)
    found = find_groups(X, y, max_groups=5)
    assert dummies.found_.rules == labels.found_.rules == found.rules
    number, columns = labels.transform(X), dummies.transform(X)
    assert_array_equal(number[:, 0], found.labels(X))
    assert number.shape == (600, 1) and number.dtype == np.int64
    assert columns.shape == (600, found.n_groups - 1) and columns.dtype == np.float64
    largest = int(np.argmax(found.table["rows"]))
    names = dummies.get_feature_names_out().tolist()
    assert names == [rule for k, rule in enumerate(found.rules) if k != largest]
    for name, column in zip(names, columns.T):
        assert_array_equal(column, found.labels(X) == found.rules.index(name))
    assert labels.get_feature_names_out().tolist() == ["group"]


def test_clones_pickles_and_parameters():
    X, y = numbers(300)
    finder = GroupFinder(4, model=Ridge(alpha=2.0), baseline=RandomForestRegressor(5)).fit(X, y)
    again = clone(finder).set_params(model__alpha=3.0)
    assert again.get_params()["model__alpha"] == 3.0 and not hasattr(again, "found_")
    back = pickle.loads(pickle.dumps(finder))
    assert_array_equal(back.transform(X), finder.transform(X))
    assert str(back.found_) == str(finder.found_)
    with pytest.raises(ValueError, match="output must be one of 'dummies', 'labels'"):
        GroupFinder(output="numbers").fit(X, y)


def test_next_to_the_features_in_pipelines():
    X, y = numbers(800)
    union = FeatureUnion([("all", FunctionTransformer()), ("groups", GroupFinder(max_groups=4))])
    model = make_pipeline(union, LinearRegression()).fit(X, y)
    assert model[-1].coef_.size == 3 + model[0].transformer_list[1][1].found_.n_groups - 1
    assert model.score(*numbers(800, seed=1)) > LinearRegression().fit(X, y).score(
        *numbers(800, seed=1)
    )
    search = GridSearchCV(model, {"featureunion__groups__max_groups": [1, 4]}, cv=3).fit(X, y)
    assert search.best_params_["featureunion__groups__max_groups"] == 4


def test_frames_in_pipelines():
    frame, saved = ship(400)
    words = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    features = ColumnTransformer([
        ("words", words, ["class", "port"]),
        ("groups", GroupFinder(max_groups=3, baseline=None), list(frame.columns)),
    ]).set_output(transform="pandas")  # fmt: skip
    out = features.fit_transform(frame, saved)
    finder = features.named_transformers_["groups"]
    rules = [f"groups__{rule}" for rule in finder.get_feature_names_out()]
    assert list(out.columns)[-len(rules) :] == rules and len(rules) == 2
    assert list(out.index) == list(frame.index)
    assert finder.feature_names_in_.tolist() == list(frame.columns)
    model = make_pipeline(features, drago.DROClassifier()).fit(frame, saved)
    assert set(model.predict(frame.assign(port="Oslo"))) <= {"yes", "no"}
    with pytest.raises(ValueError, match="feature names should match"):
        finder.transform(frame.rename(columns={"age": "years"}))
    words_alone = frame.to_numpy(dtype=object)
    with pytest.warns(UserWarning, match="valid feature names"):
        assert_array_equal(finder.transform(words_alone), finder.transform(frame))


def test_weights_reach_the_finder():
    X, y = numbers(300)
    weight = (np.arange(300) % 3).astype(float)
    finder = GroupFinder(baseline=None).fit(X, y, sample_weight=weight)
    assert finder.found_.rules == find_groups(X, y, baseline=None, sample_weight=weight).rules
    assert finder.found_.rules != GroupFinder(baseline=None).fit(X, y).found_.rules
