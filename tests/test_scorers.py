"""Scorers: what they compute, for any estimator, and how they get what they need."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import drago
from drago import tail_loss_scorer, worst_group_scorer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 3))
RAW = X @ [1.0, -1.0, 0.5] + RNG.normal(size=90)
LABELS = np.array(["low", "middle", "high"])[np.digitize(RAW, [-0.7, 0.7])]
GROUPS = RNG.integers(0, 4, 90)


def worst(losses, share):
    """The mean of the worst rows, the last one in part."""
    losses = np.sort(losses)[::-1]
    count = share * losses.size
    whole = int(count)
    total = losses[:whole].sum() + (count - whole) * (losses[whole] if count > whole else 0.0)
    return total / count


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.033, 1e-3])
def test_tail_of_a_regression(share):
    model = Ridge().fit(X, RAW)
    losses = 0.5 * (model.predict(X) - RAW) ** 2
    assert tail_loss_scorer(share)(model, X, RAW) == pytest.approx(-worst(losses, share))


@pytest.mark.parametrize("model", [LogisticRegression(), drago.DROClassifier()])
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_tail_of_a_classification(model, share):
    model = make_pipeline(StandardScaler(), model).fit(X, LABELS)
    proba = model.predict_proba(X)
    losses = -np.log([proba[i, list(model.classes_).index(k)] for i, k in enumerate(LABELS)])
    assert tail_loss_scorer(share)(model, X, LABELS) == pytest.approx(-worst(losses, share))


def test_the_losses_of_drago_are_its_own():
    model = drago.DRORegressor(loss="huber").fit(X, RAW)
    own = -model.losses(X, RAW).mean()
    assert tail_loss_scorer(1.0, loss="huber")(model, X, RAW) == pytest.approx(own)
    model = drago.DROClassifier().fit(X, LABELS)
    own = -model.losses(X, LABELS).mean()
    assert tail_loss_scorer(1.0)(model, X, LABELS) == pytest.approx(own)


def test_weights_are_copies():
    model = drago.DROClassifier().fit(X, LABELS)
    weight = RNG.integers(0, 4, 90)
    rows = np.repeat(np.arange(90), weight)
    for scorer in (tail_loss_scorer(0.2), worst_group_scorer("class")):
        weighted = scorer(model, X, LABELS, sample_weight=weight)
        assert weighted == pytest.approx(scorer(model, X[rows], LABELS[rows]))


@pytest.mark.parametrize("loss", ["auto", "zero_one"])
def test_the_worst_group(loss):
    model = LogisticRegression().fit(X, LABELS)
    if loss == "auto":
        losses = -model.predict_log_proba(X)[np.arange(90), np.searchsorted(model.classes_, LABELS)]
    else:
        losses = (model.predict(X) != LABELS).astype(float)
    by_group = -max(losses[g == GROUPS].mean() for g in range(4))
    by_class = -max(losses[c == LABELS].mean() for c in model.classes_)
    assert worst_group_scorer(loss=loss)(model, X, LABELS, groups=GROUPS) == pytest.approx(by_group)
    assert worst_group_scorer("class", loss=loss)(model, X, LABELS) == pytest.approx(by_class)

    def first_sign(X, y):
        return X[:, 0] > 0

    signs = -max(losses[(X[:, 0] > 0) == s].mean() for s in (True, False))
    assert worst_group_scorer(first_sign, loss=loss)(model, X, LABELS) == pytest.approx(signs)


def test_a_column_of_a_frame_names_the_groups():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(group=GROUPS)
    model = Ridge().fit(frame, RAW)
    losses = 0.5 * (model.predict(frame) - RAW) ** 2
    expected = -max(losses[g == GROUPS].mean() for g in range(4))
    assert worst_group_scorer("group")(model, frame, RAW) == pytest.approx(expected)
    scores = cross_val_score(Ridge(), frame, RAW, scoring=worst_group_scorer("group"))
    assert (scores < 0).all()


def test_in_a_grid_search():
    levels = {"uncertainty__tail_fraction": [1.0, 0.3, 0.1]}
    search = GridSearchCV(drago.DROClassifier("cvar"), levels, scoring=tail_loss_scorer(0.1)).fit(
        X, LABELS
    )
    assert search.best_params_["uncertainty__tail_fraction"] in (1.0, 0.3, 0.1)
    assert (search.cv_results_["mean_test_score"] < 0).all()


def test_groups_are_routed():
    with sklearn.config_context(enable_metadata_routing=True):
        model = drago.DRORegressor(drago.Grouped(drago.CVaR(0.5))).set_fit_request(groups=True)
        search = GridSearchCV(
            model, {"l2_reg": [0.1, 1.0]}, scoring=worst_group_scorer(), cv=GroupKFold(2)
        ).fit(X, RAW, groups=GROUPS)
        fits = [model.set_params(l2_reg=reg) for reg in (0.1,)]
        folds = list(GroupKFold(2).split(X, RAW, GROUPS))
        expected = []
        for fit, judge in folds:
            fitted = sklearn.clone(fits[0]).fit(X[fit], RAW[fit], groups=GROUPS[fit])
            expected.append(
                worst_group_scorer()(fitted, X[judge], RAW[judge], groups=GROUPS[judge])
            )
        assert search.cv_results_["mean_test_score"][0] == pytest.approx(np.mean(expected))
        # Weights reach the scorer only when it was told to ask for them.
        weight = RNG.integers(1, 5, 90).astype(float)
        plain = drago.DRORegressor().set_fit_request(sample_weight=True)
        scored = [
            GridSearchCV(
                plain,
                {"l2_reg": [0.1]},
                scoring=tail_loss_scorer(0.2).set_score_request(sample_weight=asked),
                cv=3,
            )
            .fit(X, RAW, sample_weight=weight)
            .cv_results_["mean_test_score"][0]
            for asked in (True, False)
        ]
        assert scored[0] != scored[1]


def test_without_routing_the_missing_groups_are_said():
    with pytest.raises(ValueError, match="needs the group of each row"):
        worst_group_scorer()(Ridge().fit(X, RAW), X, RAW)
    with pytest.raises(ValueError, match="needs an X with a column of that name"):
        worst_group_scorer("site")(Ridge().fit(X, RAW), X, RAW)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="tail_fraction must be"):
        tail_loss_scorer(0.0)
    with pytest.raises(ValueError, match="loss must be one of"):
        tail_loss_scorer(loss="mae")
    model = LogisticRegression().fit(X, LABELS)
    with pytest.raises(ValueError, match="'other', which the classifier was not fitted on"):
        tail_loss_scorer()(model, X[:1], ["other"])
    with pytest.raises(ValueError, match="'auto' or 'zero_one' for a classifier"):
        tail_loss_scorer(loss="huber")(model, X, LABELS)


def test_probabilities_of_zero_stay_finite():
    class Sure(DummyClassifier):
        predict_log_proba = None

        def __getattribute__(self, name):
            if name == "predict_log_proba":
                raise AttributeError(name)
            return super().__getattribute__(name)

    model = Sure(strategy="most_frequent").fit(X, LABELS)
    assert np.isfinite(tail_loss_scorer(0.1)(model, X, LABELS))


def test_trees_that_are_sure_stay_finite():
    from sklearn.tree import DecisionTreeClassifier

    model = DecisionTreeClassifier(random_state=0).fit(X[::2], LABELS[::2])
    assert -800 < tail_loss_scorer(0.1)(model, X, LABELS) < -100


def test_groups_that_are_ambiguous_are_refused():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["a", "b", "class"])
    model = LogisticRegression().fit(frame, LABELS)
    with pytest.raises(ValueError, match="a column 'class' too"):
        worst_group_scorer("class")(model, frame, LABELS)
    with pytest.raises(ValueError, match="labels of a classification"):
        worst_group_scorer("class")(Ridge().fit(X, RAW), X, RAW)
    with pytest.raises(ValueError, match=r"X has \['a', 'b', 'class'\]"):
        worst_group_scorer("site")(model, frame, LABELS)


def test_classifiers_without_probabilities_by_their_errors():
    for model in (RidgeClassifier().fit(X, LABELS), LinearSVC().fit(X, LABELS)):
        expected = (model.predict(X) != LABELS).mean()
        assert tail_loss_scorer(1.0, loss="zero_one")(model, X, LABELS) == pytest.approx(-expected)
        with pytest.raises(ValueError, match="loss='zero_one'"):
            tail_loss_scorer(1.0)(model, X, LABELS)


def test_they_can_be_sent_to_other_processes():
    for scorer in (tail_loss_scorer(0.2), worst_group_scorer("class", loss="zero_one")):
        again = pickle.loads(pickle.dumps(scorer))
        assert repr(again) == repr(scorer)
        model = LogisticRegression().fit(X, LABELS)
        assert again(model, X, LABELS) == scorer(model, X, LABELS)
