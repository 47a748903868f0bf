"""Arrays of wrong lengths and shapes at every public door: an error, never a number.

Kernels do not look where an array ends. `TABLE` has a call for each public function and method
that takes arrays, with the arrays that it wants; each of them is replaced in turn. What takes none
is in `NO_ARRAYS`, and a public name that is in neither fails a test.
"""

import inspect

import numpy as np
import pytest

import drago
import drago.datasets
import drago.plotting
import drago.scorers

torch = pytest.importorskip("torch")
matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
pyplot = pytest.importorskip("matplotlib.pyplot")

import drago.torch_engine  # noqa: E402
from drago.torch_engine import AutogradProblem, RobustLoss, TensorOracle  # noqa: E402

N, D, K = 12, 3, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D))
Y = X @ [1.0, -2.0, 0.5] + RNG.normal(size=N)
LABELS = np.arange(N) % 2.0
CLASSES = np.arange(N) % K
GROUPS = np.arange(N) % 3
P = np.full(N, 1.0 / N)
Q = np.arange(1.0, N + 1) / np.arange(1.0, N + 1).sum()
RAW, LOGITS = RNG.normal(size=(N, 1)), RNG.normal(size=(N, K))
WEIGHT = RNG.uniform(0.5, 2.0, N)
COEF = RNG.normal(size=D)
C = {"c": 0.1}

PROBLEM = drago.DROProblem(X, Y, uncertainty=drago.CVaR(0.5), shift_cost=0.1)
SOME = drago.DROProblem(X, Y, sample_weight=np.arange(N) > 1, shift_cost=0.1)
TENSORS = drago.DROProblem(torch.tensor(X), torch.tensor(Y), shift_cost=0.1)
DATA = (torch.tensor(X), torch.tensor(Y))


def squared(prediction, target):
    if target.ndim != 1:
        raise ValueError("which rows are which is for the loss to say")
    return 0.5 * (prediction[:, 0] - target) ** 2


def linear(coef, X):
    if X.ndim != 2:
        raise ValueError("which features are which is for the model to say")
    return X @ coef


def autograd(**settings):
    data = settings.pop("X", DATA[0]), settings.pop("y", DATA[1])
    coef = settings.pop("coef", torch.zeros(D, 1, dtype=torch.float64))
    return AutogradProblem(linear, data, squared, parameters=coef, convex=True, **settings)


AUTOGRAD = autograd(shift_cost=0.1)


@pytest.fixture(scope="module", autouse=True)
def _no_figures_left():
    yield
    pyplot.close("all")


def call(function, settings=None, /, **arrays):
    """An entry of the table: what is called, the arrays that it wants, and what else."""
    return function, arrays, settings or {}


def method(owner, name, settings=None, /, **arrays):
    """The same for a method; `owner` makes what it belongs to."""
    return call(lambda **given: getattr(owner(), name)(**given), settings, **arrays)


class Fitted:
    """Models, fitted when they are first asked for."""

    def __init__(self):
        self._made = {}

    def __getattr__(self, name):
        if name not in self._made:
            y = {"Regressor": Y, "Classifier": LABELS}[name.removesuffix("CV")]
            self._made[name] = getattr(drago, f"DRO{name}")(**levels(name)).fit(X, y)
        return self._made[name]


def levels(name):
    own = {"cv": 2, "l2_regs": 0.1, "candidates": drago.CVaR(0.5), "baseline": None}
    return own if name.endswith("CV") else {}


FITTED = Fitted()


def of_loss(loss, y, raw):
    """The public methods of a loss."""
    out = {
        "evaluate": method(lambda: loss, "evaluate", y=y, raw=raw),
        "evaluate_into": method(
            lambda: loss, "evaluate_into", y=y, raw=raw, losses=P.copy(), dlosses=raw.copy()
        ),
        "balance": method(lambda: loss, "balance", y=y, raw=raw, q=Q),
        "check_target": method(lambda: loss, "check_target", {"n": N}, y=y),
    }
    if hasattr(loss, "second"):
        out["second"] = method(lambda: loss, "second", y=y, raw=raw)
    return out


def of_set(uncertainty, groups=None):
    """The public methods of a set, and those of its oracle."""
    more = {} if groups is None else {"groups": groups}

    def oracle():
        return uncertainty.oracle(P, groups=groups)

    out = {
        "max_ratios": method(lambda: uncertainty, "max_ratios", p=P, **more),
        "q_max": method(lambda: uncertainty, "q_max", p=P, **more),
        "kappa_q": method(lambda: uncertainty, "kappa_q", p=P, **more),
        "violation": method(lambda: uncertainty, "violation", q=Q, p=P, **more),
        "oracle": method(lambda: uncertainty, "oracle", p=P, **more),
        "oracle.weights": method(oracle, "weights", C, u=Y),
        "oracle.step": method(oracle, "step", {"nu": 0.1, "s": 1.0}, v=Y, mirror=Q),
        "oracle.response": method(oracle, "response", C, u=Y, q=Q),
        "oracle.solve_into": method(oracle, "solve_into", C, u=Y, q=P.copy(), mirror=P.copy()),
    }
    if groups is None:
        settings = {**C, "divergence": "auto"}
        out["worst_case"] = method(lambda: uncertainty, "worst_case", settings, u=Y, p=P)
    return out


def of_divergence(divergence):
    return {name: method(lambda: divergence, name, q=Q, p=P) for name in ("value", "mirror")}


def of_estimator(name, y):
    model, kind = lambda: getattr(FITTED, name), getattr(drago, f"DRO{name}")
    tried = "candidates" if name.endswith("CV") else "uncertainty"
    settings = {**levels(name), tried: drago.Grouped(drago.CVaR(0.5))}
    out = {
        "fit": call(
            lambda **given: kind(**settings).fit(**given),
            X=X,
            y=y,
            sample_weight=WEIGHT,
            groups=GROUPS,
        ),
        "losses": method(model, "losses", X=X, y=y),
        "worst_case_report": method(
            model,
            "worst_case_report",
            X=X,
            y=y,
            groups=GROUPS,
            sample_weight=WEIGHT,
            baseline=WEIGHT,
        ),
        "score": method(model, "score", X=X, y=y, sample_weight=WEIGHT),
        "predict": call(lambda columns: model().predict(columns), columns=X),
    }
    if "Classifier" in name:
        for other in ("predict_proba", "predict_log_proba", "decision_function"):
            out[other] = call(lambda columns, m=other: getattr(model(), m)(columns), columns=X)
    return out


def of_problem(problem, rows):
    """The public functions of coefficients; `rows` makes vectors of the problem's own kind."""
    return {
        "losses": method(lambda: problem, "losses", coef=COEF),
        "objective": method(lambda: problem, "objective", coef=COEF),
        "to_internal": method(lambda: problem, "to_internal", coef=COEF),
        "worst_case_weights": method(lambda: problem, "worst_case_weights", losses=rows(Y)),
        "on_all_rows": method(lambda: problem, "on_all_rows", weights=rows(Q)),
    }


def scored(scorer, model, y, **arrays):
    return call(lambda **given: scorer(getattr(FITTED, model), **given), X=X, y=y, **arrays)


def displayed(display, **arrays):
    return call(lambda **given: display(**given).plot(), **arrays)


def of_model(display, **arrays):
    """The class method `from_estimator`."""
    return call(
        lambda **given: display.from_estimator(FITTED.Regressor, **given),
        X=X,
        y=Y,
        sample_weight=WEIGHT,
        **arrays,
    )


plots, T = drago.plotting, torch.tensor

TABLE = {
    "Squared": of_loss(drago.Squared(), Y, RAW),
    "Huber": of_loss(drago.Huber(0.5), Y, RAW),
    "Logistic": of_loss(drago.Logistic(), LABELS, RAW),
    "Multinomial": of_loss(drago.Multinomial(), CLASSES, LOGITS),
    "Chi2": of_divergence(drago.Chi2()),
    "KL": of_divergence(drago.KL()),
    "CVaR": of_set(drago.CVaR(0.4)),
    "Simplex": of_set(drago.Simplex()),
    "Extremile": of_set(drago.Extremile(2.0)),
    "ESRM": of_set(drago.ESRM(2.0)),
    "Spectrum": of_set(drago.Spectrum(integral=np.square)),
    "Chi2Ball": of_set(drago.Chi2Ball(0.5)),
    "KLBall": of_set(drago.KLBall(0.5)),
    "Grouped": of_set(drago.Grouped(drago.CVaR(0.5)), GROUPS),
    "Box": {
        "": call(
            lambda **given: drago.DROProblem(X, Y, constraint=drago.Box(**given)),
            low=np.zeros(D),
            high=np.ones(D),
        ),
    },
    "DROProblem": {
        "": call(drago.DROProblem, X=X, y=Y, sample_weight=WEIGHT, groups=GROUPS, baseline=WEIGHT),
        **of_problem(PROBLEM, np.array),
        "on_all_rows, some": method(lambda: SOME, "on_all_rows", weights=Q[2:]),
    },
    "from_arrays": {
        "": call(
            lambda **given: drago.DROProblem(drago.from_arrays(**given)),
            X=X,
            y=Y,
            sample_weight=WEIGHT,
            groups=GROUPS,
            baseline=WEIGHT,
        ),
    },
    "certify": {
        "": call(lambda **given: drago.certify(PROBLEM, **given), coef=COEF, dual_weights=P),
    },
    "solve": {
        "warm_start": call(lambda coef: drago.solve(PROBLEM, warm_start=coef), coef=COEF),
    },
    "audit": {
        "": call(
            lambda **given: drago.audit(time_budget=0.0, verbose=0, **given),
            X=np.vstack([X] * 5),
            y=np.tile(Y, 5),
            groups=np.tile(GROUPS, 5),
            sample_weight=np.tile(WEIGHT, 5),
        ),
    },
    "compare": {
        "": call(
            lambda **given: drago.compare({"one": FITTED.Regressor}, **given),
            X=X,
            y=Y,
            groups=GROUPS,
            sample_weight=WEIGHT,
            baseline=WEIGHT,
        ),
    },
    "html_report": {
        "": call(
            lambda **given: drago.html_report(FITTED.Regressor, **given),
            X=X,
            y=Y,
            groups=GROUPS,
            sample_weight=WEIGHT,
        ),
    },
    "robust_path": {
        "": call(drago.robust_path, X=X, y=Y, sample_weight=WEIGHT, groups=GROUPS),
    },
    "find_groups": {
        "": call(drago.find_groups, X=X, y=Y, sample_weight=WEIGHT, groups=GROUPS),
    },
    "FoundGroups": {
        "labels": call(lambda columns: drago.find_groups(X, Y).labels(columns), columns=X),
    },
    "GroupFinder": {
        "fit": call(
            lambda **given: drago.GroupFinder().fit(**given), X=X, y=Y, sample_weight=WEIGHT
        ),
        "transform": call(
            lambda columns: drago.GroupFinder().fit(X, Y).transform(columns), columns=X
        ),
    },
    "DRORegressor": of_estimator("Regressor", Y),
    "DROClassifier": of_estimator("Classifier", LABELS),
    "DRORegressorCV": of_estimator("RegressorCV", Y),
    "DROClassifierCV": of_estimator("ClassifierCV", LABELS),
    "tail_loss_scorer": {
        "regressor": scored(drago.tail_loss_scorer(0.1), "Regressor", Y, sample_weight=WEIGHT),
        "classifier": scored(
            drago.tail_loss_scorer(0.1), "Classifier", LABELS, sample_weight=WEIGHT
        ),
        "zero_one": scored(drago.tail_loss_scorer(loss="zero_one"), "Classifier", LABELS),
    },
    "worst_group_scorer": {
        "": scored(drago.worst_group_scorer(), "Regressor", Y, groups=GROUPS),
        "class": scored(drago.worst_group_scorer("class"), "Classifier", LABELS),
    },
    "scorers.row_losses": {
        "": call(lambda **given: drago.scorers.row_losses(FITTED.Regressor, **given), X=X, y=Y)
    },
    "scorers.tail_mean": {"": call(drago.scorers.tail_mean, {"tail_fraction": 0.5}, losses=Y, p=P)},
    "scorers.worst_group_mean": {
        "": call(drago.scorers.worst_group_mean, losses=Y, p=P, groups=GROUPS)
    },
    "plotting.SortedLossDisplay": {
        "": displayed(plots.SortedLossDisplay, share=Q, losses=Y),
        "from_predictions": call(
            plots.SortedLossDisplay.from_predictions, losses=Y, sample_weight=WEIGHT
        ),
        "from_estimator": of_model(plots.SortedLossDisplay),
    },
    "plotting.TailRiskDisplay": {
        "": displayed(plots.TailRiskDisplay, levels=Q, risks=Y),
        "from_predictions": call(
            plots.TailRiskDisplay.from_predictions, losses=Y, sample_weight=WEIGHT
        ),
        "from_estimator": of_model(plots.TailRiskDisplay),
    },
    "plotting.WeightsDisplay": {
        "": displayed(plots.WeightsDisplay, losses=Y, times=Q),
        "from_predictions": call(
            plots.WeightsDisplay.from_predictions, losses=Y, weights=Q, sample_weight=WEIGHT
        ),
        "from_estimator": of_model(plots.WeightsDisplay, groups=GROUPS),
    },
    "plotting.ConvergenceDisplay": {
        "": displayed(plots.ConvergenceDisplay, passes=Q, seconds=Y, rel_gap=P),
    },
    "plotting.TradeOffDisplay": {
        "": call(
            lambda **given: plots.TradeOffDisplay(names=["a", "b"], **given).plot(),
            mean=np.array([1.0, 2.0]),
            worst=np.array([2.0, 1.0]),
        ),
        "from_path": call(
            lambda **given: plots.TradeOffDisplay.from_path(
                drago.robust_path(X, Y, tail_fractions=[1.0, 0.5]), **given
            ),
            X=X,
            y=Y,
            groups=GROUPS,
        ),
    },
    "plotting.FoundGroupsDisplay": {
        "": call(
            lambda **given: plots.FoundGroupsDisplay(rules=["a", "b"], **given).plot(),
            above=Y[:2],
            low=Y[:2] - 1,
            high=Y[:2] + 1,
            stands_out=Y[:2] > 0,
        ),
    },
    "plotting.SimplexDisplay": {
        "from_losses": call(
            plots.SimplexDisplay.from_losses, losses=np.array([1.0, 2.0, 4.0]), p=np.full(3, 1 / 3)
        ),
    },
    "torch_engine.RobustLoss": {
        name: method(
            lambda: RobustLoss(drago.Grouped("cvar")),
            name,
            losses=T(Y),
            sample_weight=T(WEIGHT),
            groups=T(GROUPS),
        )
        for name in ("forward", "weights")
    },
    "torch_engine.robust_loss": {
        "": call(drago.torch_engine.robust_loss, losses=T(Y), sample_weight=T(WEIGHT)),
    },
    "torch_engine.TensorOracle": {
        "weights": method(lambda: TensorOracle("cvar"), "weights", C, u=T(Y), p=T(P)),
        "weights of groups": method(
            lambda: TensorOracle(drago.Grouped("cvar")),
            "weights",
            C,
            u=T(Y),
            p=T(P),
            groups=T(GROUPS),
        ),
        "distance": method(lambda: TensorOracle("cvar"), "distance", q=T(Q), p=T(P)),
    },
    "torch_engine.AutogradProblem": {
        "": call(autograd, X=DATA[0], y=DATA[1], sample_weight=WEIGHT, groups=GROUPS),
        **of_problem(AUTOGRAD, T),
        **{
            name: method(lambda: AUTOGRAD, name, coef=COEF)
            for name in ("parameters", "sample_gradients", "stationarity")
        },
    },
    "DROProblem of tensors": {
        "": call(
            drago.DROProblem,
            X=T(X),
            y=T(Y),
            sample_weight=T(WEIGHT),
            groups=T(GROUPS),
            baseline=T(WEIGHT),
        ),
        **of_problem(TENSORS, T),
    },
}
CASES = [
    pytest.param(*entry, id=f"{owner}-{what}")
    for owner, calls in TABLE.items()
    for what, entry in calls.items()
]


def spoilt(array, name):
    """The array in wrong shapes: one entry, one less, one more, none, a dimension too many."""
    whole = array.numpy() if isinstance(array, torch.Tensor) else array
    if name == "columns":  # any number of rows will do
        whole = whole.T
    doubled = np.stack([whole, whole])
    out = {
        "one": whole[:1],
        "shorter": whole[:-1],
        "longer": np.concatenate([whole, whole[:1]]),
        "empty": whole[:0],
        "two of it": doubled,
        "columns of it": np.moveaxis(doubled, 0, -1),
    }
    if name in ("low", "high"):
        del out["one"]  # one bound for all coefficients
    if name == "mirror":
        del out["empty"]  # not wanted
    if name == "columns":
        out = {how: values.T for how, values in out.items()}
    wrap = torch.tensor if isinstance(array, torch.Tensor) else np.array
    return {how: wrap(values) for how, values in out.items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("function", "arrays", "settings"), CASES)
def test_arrays_of_wrong_shapes_are_refused(function, arrays, settings, request):
    function(**arrays, **settings)
    # To these, several columns of groups are their combinations.
    crosses = "Regressor" in request.node.name or "Classifier" in request.node.name
    crosses = crosses or "WeightsDisplay-from_estimator" in request.node.name
    crosses = crosses or any(
        f"[{name}-" in request.node.name
        for name in ("audit", "compare", "find_groups", "html_report")
    )
    for name in arrays:
        for how, wrong in spoilt(arrays[name], name).items():
            if crosses and (name, how) == ("groups", "columns of it"):
                continue
            try:
                found = function(**{**arrays, name: wrong}, **settings)
            except (ValueError, TypeError) as error:
                assert str(error), (name, how)
            else:
                pytest.fail(f"{name}, {how}: {found!r}")


# ------------------------------------------------------------------------ the table is complete

# Public names that take no arrays: settings and solvers, what only holds what it is given, errors.
NO_ARRAYS = {
    *("Certificate", "CheckpointError", "L2Ball", "NonNegative", "RobustPath", "WorstCaseReport"),
    *("CollapseWarning", "cross_groups"),  # columns of any number and length
    *("Audit", "Comparison"),
    *("Source", "SourceChangedError", "CacheError", "ClusterError"),
    *("read_parquet", "from_arrow", "from_batches"),  # columns by name, or a user's own reader
    "from_dask",  # collections of Dask's, whose lengths are known when they are computed
    *("ModelFileError", "SolverResult", "Status", "load", "save", "tune"),
    *("Drago", "LBFGS", "Newton", "SGD", "LSVRG", "Prospect", "GradientDescent", "AGOG"),
    *(f"datasets.{name}" for name in drago.datasets.__all__),
    "scorers.Scorer",  # its instances are the two scorers
}
# Methods that take none, or coefficients that constraints of any shape are for.
NO_ROWS = {
    *("get_params", "set_params", "lock", "match", "auto_cost"),  # sets
    *("project", "support", "bounds", "absorb", "contains"),  # constraints
    *("n_outputs", "probabilities", "masses", "tail"),  # one array of any length: see below
    *("set_fit_request", "set_score_request", "get_metadata_routing", "set_callbacks"),
    *("to_frame", "get_feature_names_out"),  # found groups
    *("predict_to", "to_sklearn"),  # a source; nothing
    *("plot", "from_result"),  # displays
    # A problem's, for solvers: vectors come from its store.
    *("smoothing", "to_public", "evaluate", "visit", "take", "moved", "dual_oracle"),
    *("distance", "violation", "primal", "gradient", "size_of"),
    *("balance_sums", "balance_with"),  # what `balance` is made of
    *("flatten", "load_into", "tables_for", "slope_norm"),
    *("searched", "exact_weights", "extra_repr"),
}


def public():
    """Every public callable by its name."""
    modules = {
        "": (drago, drago.__all__),
        "plotting.": (drago.plotting, drago.plotting.__all__),
        "datasets.": (drago.datasets, drago.datasets.__all__),
        "torch_engine.": (drago.torch_engine, drago.torch_engine.__all__),
        "scorers.": (drago.scorers, vars(drago.scorers)),
    }
    for prefix, (module, names) in modules.items():
        for name in names:
            value = getattr(module, name)
            own = getattr(value, "__module__", "").startswith("drago")
            if callable(value) and own and not name.startswith("_"):
                here = prefix != "scorers." or value.__module__ == "drago.scorers"
                if here and not (prefix and getattr(drago, name, None) is value):
                    yield prefix + name, value


def test_every_public_callable_is_in_the_table():
    names = {name for name, _ in public()} | {"datasets.NAMES"}
    listed = {name for name in TABLE if " " not in name} | NO_ARRAYS | {"datasets.NAMES"}
    assert names - listed == set()
    assert listed - names == set()  # nor is anything there that is gone
    assert not {name for name in TABLE if name in NO_ARRAYS}


@pytest.mark.parametrize("name", [name for name in TABLE if " " not in name])
def test_every_public_method_is_in_the_table(name):
    value = dict(public())[name]
    if not inspect.isclass(value):
        return
    methods = {
        key
        for key, member in inspect.getmembers(value, callable)
        if not key.startswith("_") and getattr(member, "__module__", "").startswith("drago")
    }
    listed = {what.split(",")[0].split(" ")[0] for what in TABLE[name]}
    if name == "Grouped":
        listed.add("worst_case")  # asks for the groups, which it cannot be given
    if name == "plotting.ConvergenceDisplay":
        listed.add("from_estimator")  # a model alone
    assert methods - listed - NO_ROWS == set()


def test_single_arrays_of_wrong_dimension_are_refused():
    for wrong in (LOGITS[:, 0], LOGITS[None]):
        with pytest.raises(ValueError, match=r"\(n, n_outputs\)"):
            drago.Multinomial().probabilities(wrong)
    for uncertainty in (drago.Extremile(2.0), drago.ESRM(2.0), drago.Spectrum(integral=np.square)):
        for wrong in (P[:, None], P[:0]):
            with pytest.raises(ValueError, match="an entry per row"):
                uncertainty.masses(wrong)


@pytest.mark.parametrize("label", [-1, K])
def test_labels_that_are_no_outputs_are_refused(label):
    """A kernel would take -1 for the last one and read beyond it for K."""
    y = np.where(np.arange(N) == N - 1, label, CLASSES)
    with pytest.raises(ValueError, match=r"integers in \[0, n_outputs\)"):
        drago.Multinomial().evaluate(y, LOGITS)


def test_integers_and_strided_arrays_give_the_same():
    y, raw = LABELS.astype(np.int64), np.repeat(RAW, 2, axis=0)[::2]
    for loss in (drago.Squared(), drago.Huber(0.5), drago.Logistic()):
        for ours, theirs in zip(loss.evaluate(y, raw), loss.evaluate(LABELS, RAW)):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("loss", [drago.Squared(), drago.Multinomial()])
def test_what_is_no_array_of_numbers_is_a_type_error(loss):
    with pytest.raises(TypeError, match="takes arrays of numbers"):
        loss.evaluate(np.array(["a"] * N), RAW)
    with pytest.raises(TypeError, match="takes arrays of numbers"):
        loss.evaluate(Y.astype(object), RAW)
    if loss.name == "multinomial":
        with pytest.raises(TypeError, match="of integers"):
            loss.evaluate(LABELS, LOGITS)
