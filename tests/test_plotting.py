"""What the displays compute and draw."""

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.colors import to_hex
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import cases
import drago
from drago import (
    ESRM,
    Chi2Ball,
    CVaR,
    DROClassifier,
    DRORegressor,
    Extremile,
    Grouped,
    KLBall,
    Simplex,
    Spectrum,
)
from drago.plotting import (
    ConvergenceDisplay,
    FoundGroupsDisplay,
    SimplexDisplay,
    SortedLossDisplay,
    TailRiskDisplay,
    TradeOffDisplay,
    WeightsDisplay,
)
from drago.plotting._axes import COLOURS, power_of_ten
from drago.terms.uncertainty import UserSet

LOSSES = np.array([3.0, 1.0, 2.0, 6.0])
WEIGHT = np.array([1.0, 2.0, 1.0, 4.0])
OF_DATA = (SortedLossDisplay, TailRiskDisplay, WeightsDisplay)
SETS = (CVaR(0.5), Extremile(2), ESRM(2.0), Chi2Ball(0.2), KLBall(0.2), Simplex())
names = [uncertainty.label for uncertainty in SETS]


@pytest.fixture(autouse=True)
def _no_figures_left():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    return X, X @ [1.0, -1.0, 0.5] + rng.standard_t(3, 80)


@pytest.fixture(scope="module")
def model(data):
    return DRORegressor(CVaR(0.2), shift_cost=0.05, tol=1e-8).fit(*data)


def legend(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def tail_mean(losses, weight, level):
    """The mean of the worst share: one row after the other, until the share is used up."""
    left, total = level, 0.0
    for i in np.argsort(-losses):
        part = min(left, weight[i] / weight.sum())
        total, left = total + part * losses[i], left - part
    return total / level


# ------------------------------------------------------------------------- all of them


def test_matplotlib_is_imported_when_something_is_drawn():
    code = """
        import sys, drago
        assert "ConvergenceDisplay" in dir(drago.plotting)
        assert not {"matplotlib", "sklearn", "numba"} & set(sys.modules)
        sys.modules["matplotlib"] = sys.modules["matplotlib.pyplot"] = None
        try:
            drago.plotting.TailRiskDisplay.from_predictions([1.0, 2.0])
        except ImportError as error:
            print(error)
        """
    code = "\n".join(line[8:] for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("pip install drago[plot]")


@pytest.mark.parametrize("display", [ConvergenceDisplay, *OF_DATA])
def test_models_that_cannot_be_shown(display, data):
    extra = () if display is ConvergenceDisplay else data
    for unfitted in (DRORegressor(), make_pipeline(StandardScaler(), DRORegressor())):
        with pytest.raises(NotFittedError):
            display.from_estimator(unfitted, *extra)
    if display is ConvergenceDisplay:
        with pytest.raises(TypeError, match=r"DRORegressor or a DROClassifier.* Ridge\(\)"):
            display.from_estimator(Ridge().fit(*data))
    if display is WeightsDisplay:
        with pytest.raises(ValueError, match=r"uncertainty must be given for Ridge\(\)"):
            display.from_estimator(Ridge().fit(*data), *data)
    assert plt.get_fignums() == []


@pytest.mark.parametrize("display", [SortedLossDisplay, TailRiskDisplay])
def test_losses_of_any_model(display, data):
    X, y = data
    model = make_pipeline(StandardScaler(), Ridge()).fit(X, y)
    got = display.from_estimator(model, X, y)
    expected = display.from_predictions(0.5 * (y - model.predict(X)) ** 2)
    assert_allclose(got.line_.get_xydata(), expected.line_.get_xydata())
    assert got.name == "Ridge"


def test_weights_of_an_excess_are_those_of_the_fit(data):
    X, y = data
    model = DRORegressor("excess_tail").fit(X, y)
    got = WeightsDisplay.from_estimator(model, X, y, baseline=model.baseline_)
    assert_allclose(got.times, len(y) * model.dual_weights_, atol=1e-3)


def test_weights_of_any_model(data):
    X, y = data
    model, weight = Ridge().fit(X, y), np.arange(len(y)) % 3
    losses = 0.5 * (y - model.predict(X)) ** 2
    got = WeightsDisplay.from_estimator(
        model, X, y, uncertainty=CVaR(0.2), sample_weight=weight, ax=plt.subplots()[1]
    )
    there, p = weight > 0, weight[weight > 0] / weight.sum()
    q = np.zeros(len(y))
    q[there] = CVaR(0.2).worst_case(losses[there], 0.0, "chi2", p)
    expected = WeightsDisplay.from_predictions(losses, q, sample_weight=weight, cap=5.0)
    assert_allclose(got.times, expected.times)
    assert got.cap == expected.cap and got.name == "CVaR(0.2)"
    groups = np.arange(len(y)) % 4
    by_group = WeightsDisplay.from_estimator(
        model, X, y, uncertainty=drago.Grouped(CVaR(0.5)), groups=groups
    )
    assert np.unique(np.round(by_group.times, 9)).size <= 4


@pytest.mark.parametrize("display", OF_DATA)
def test_models_in_a_pipeline_and_in_a_search(display, data):
    X, y = data
    inner = DRORegressor(CVaR(0.2))
    scaled = StandardScaler().fit(X)
    expected = display.from_estimator(inner.fit(scaled.transform(X), y), scaled.transform(X), y)
    pipeline = make_pipeline(StandardScaler(), DRORegressor(CVaR(0.2)))
    search = GridSearchCV(pipeline, {"droregressor__l2_reg": [1e-3]}, cv=2)
    for model in (pipeline, search):
        got = display.from_estimator(model.fit(X, y), X, y)
        assert_allclose(got.line_.get_xydata(), expected.line_.get_xydata(), rtol=1e-6)
        assert got.name == "CVaR(0.2)"
    assert ConvergenceDisplay.from_estimator(search).tol == inner.tol


def test_the_set_of_a_model_chosen_by_cross_validation():
    """A tenth of the rows lies apart, so that serving it lowers the loss of the tail."""
    X = np.random.default_rng(0).normal(size=(200, 1))
    data = X, np.where(np.arange(200) % 10 == 0, 5.0, 0.0) + 0.1 * X[:, 0]
    level = {"uncertainty": drago.CVaR(0.25), "shift_cost": 0.0}
    settings = {"criterion": "tail", "criterion_tail": 0.25, "max_mean_loss": np.inf}
    chosen = drago.DRORegressorCV(level, cv=2, l2_regs=1e-3, baseline=None, **settings)
    chosen.fit(*data)
    display = WeightsDisplay.from_estimator(chosen, *data)
    assert (display.name, display.cap) == ("CVaR(0.25)", 4.0)
    assert display.times.max() == pytest.approx(4.0)


@pytest.mark.parametrize("display", [ConvergenceDisplay, *OF_DATA])
def test_axes_colours_and_styles(display, data, model):
    extra = () if display is ConvergenceDisplay else data
    figure, ax = plt.subplots()
    shown = [display.from_estimator(model, *extra, ax=ax, name=name) for name in "ab"]
    assert all(one.ax_ is ax and one.figure_ is figure for one in shown)
    assert [to_hex(one.line_.get_color()).upper() for one in shown] == list(COLOURS[:2])
    assert legend(shown[-1])[:2] == ["a", "b"]
    own = display.from_estimator(model, *extra, lw=7, c="black", name="own")
    assert own.ax_ is not ax and len(plt.get_fignums()) == 2
    assert own.line_.get_linewidth() == 7 and own.line_.get_color() == "black"
    assert tuple(own.figure_.get_size_inches()) == (4, 3)
    again = own.plot(ax=ax, name="again")
    assert again is own and own.ax_ is ax and "again" in legend(own)


@pytest.mark.parametrize("display", [SortedLossDisplay, TailRiskDisplay])
def test_losses_that_cannot_be_shown(display):
    with pytest.raises(ValueError, match="losses must have at least one entry"):
        display.from_predictions([])
    with pytest.raises(ValueError, match="losses contains 1 NaN or infinite entries"):
        display.from_predictions([1.0, np.nan])
    with pytest.raises(ValueError, match="sample_weight must have one entry per row"):
        display.from_predictions(LOSSES, sample_weight=[1.0])
    assert plt.get_fignums() == []


@pytest.mark.parametrize("display", [SortedLossDisplay, TailRiskDisplay])
def test_losses_are_the_models(display, data, model):
    X, y = data
    weight = np.arange(y.size) % 3.0
    got = display.from_estimator(model, X, y, sample_weight=weight)
    expected = display.from_predictions(model.losses(X, y), sample_weight=weight)
    assert_array_equal(got.line_.get_xydata(), expected.line_.get_xydata())
    assert got.name == "CVaR(0.2)" and expected.name is None


def test_a_weight_is_so_many_copies():
    weight = WEIGHT.astype(int)
    copies = np.repeat(LOSSES, weight)
    one = SortedLossDisplay.from_predictions(LOSSES, sample_weight=weight)
    each = SortedLossDisplay.from_predictions(copies)
    at = np.linspace(0.05, 0.95, 10)
    assert_array_equal(
        one.losses[np.searchsorted(one.share, at)], each.losses[np.searchsorted(each.share, at)]
    )
    risks = [
        TailRiskDisplay.from_predictions(losses, levels=at, sample_weight=w).risks
        for losses, w in ((LOSSES, weight), (copies, None))
    ]
    assert_allclose(*risks)
    dropped = SortedLossDisplay.from_predictions(LOSSES, sample_weight=[1, 0, 1, 0])
    assert_array_equal(dropped.losses, [2.0, 3.0])


def test_labels():
    assert names == [
        "CVaR(0.5)", "Extremile(2)", "ESRM(2)", "Chi2Ball(0.2)", "KLBall(0.2)", "Simplex",
    ]  # fmt: skip
    assert CVaR(1.0).label == "mean"
    assert Grouped(CVaR(0.25)).label == "Grouped(CVaR(0.25))"
    assert Grouped("simplex").label == "Grouped(Simplex)"
    assert Spectrum(integral=lambda u: u).label == "Spectrum"
    assert UserSet(Ridge()).label == "Ridge"


def test_numbers_in_labels():
    shown = [power_of_ten(value) for value in (1e-6, 1e-3, 2e-4, 0.01, 1.0)]
    assert shown == ["$10^{-6}$", "$10^{-3}$", "0.0002", "0.01", "1"]


# ------------------------------------------------------------------------- convergence


def test_convergence_shows_the_history(model):
    history = model.result_.history
    display = ConvergenceDisplay.from_estimator(model)
    assert_array_equal(display.line_.get_xdata(), history.n_passes)
    assert_array_equal(display.line_.get_ydata(), history.rel_gap)
    assert_array_equal(display.tol_line_.get_ydata(), [1e-8, 1e-8])
    assert display.ax_.get_yscale() == "log"
    assert display.ax_.get_xlabel() == "passes over the data"
    assert legend(display) == [model.result_.solver, "tolerance $10^{-8}$"]
    seconds = ConvergenceDisplay.from_estimator(model, x="time")
    assert_array_equal(seconds.line_.get_xdata(), history.time)
    assert seconds.ax_.get_xlabel() == "seconds"
    with pytest.raises(ValueError, match="x must be one of 'passes', 'time'"):
        ConvergenceDisplay.from_estimator(model, x="iterations")


def test_convergence_of_results(data, model):
    problem = drago.DROProblem(*data, uncertainty=CVaR(0.2), shift_cost=0.05)
    first = ConvergenceDisplay.from_result(drago.solve(problem, "lbfgs"))
    assert first.tol_line_ is None and legend(first) == ["lbfgs"]
    second = ConvergenceDisplay.from_result(
        drago.solve(problem, "drago"), tol=1e-4, name="other", ax=first.ax_
    )
    assert second.line_.get_marker() != first.line_.get_marker()
    third = ConvergenceDisplay.from_result(model.result_, tol=1e-4, ax=first.ax_)
    assert third.tol_line_ is None, "the same tolerance twice"
    # What belongs to no model comes last.
    assert legend(third) == ["lbfgs", "other", model.result_.solver, "tolerance $10^{-4}$"]
    exact = ConvergenceDisplay.from_result(model.result_, tol=0.0)
    assert exact.tol_line_ is None
    exact.figure_.canvas.draw()
    with pytest.raises(TypeError, match="result must be a SolverResult, but a DRORegressor"):
        ConvergenceDisplay.from_result(model)


def test_convergence_to_a_gap_of_zero_can_be_drawn():
    display = ConvergenceDisplay(passes=[1, 2, 3], seconds=[1, 2, 3], rel_gap=[0.1, 1e-4, 0.0])
    display.plot().figure_.canvas.draw()
    low, high = display.ax_.get_ylim()
    assert 1e-6 < low < 1e-4 and 0.1 < high < 1


# ------------------------------------------------------------------------- sorted losses


def test_sorted_losses():
    display = SortedLossDisplay.from_predictions(LOSSES, sample_weight=WEIGHT, tail_fraction=0.75)
    assert_array_equal(display.losses, [1.0, 2.0, 3.0, 6.0])
    assert_allclose(display.share, [0.25, 0.375, 0.5, 1.0])
    # Each row is a step as wide as its weight.
    assert_allclose(display.line_.get_xdata(), [0.0, 0.25, 0.375, 0.5, 1.0])
    assert_array_equal(display.line_.get_ydata(), [1.0, 1.0, 2.0, 3.0, 6.0])
    assert display.line_.get_drawstyle() == "steps-pre"
    assert display.ax_.get_xlim() == (0.0, 1.0)
    # Half at 6, an eighth at 3 and an eighth at 2.
    assert_allclose(display.tail_line_.get_xdata(), [0.25, 1.0])
    assert_allclose(display.tail_line_.get_ydata(), [(3 + 3 / 8 + 2 / 8) / 0.75] * 2)
    assert display.tail_.get_extents().width == pytest.approx(0.75 * display.ax_.bbox.width)
    assert legend(display) == ["worst 75% and its mean"]


def test_the_tail_is_the_models_own_and_shaded_once(data, model):
    mean = SortedLossDisplay.from_estimator(DRORegressor(CVaR(1.0)).fit(*data), *data)
    assert mean.tail_ is None and mean.tail_line_ is None and legend(mean) == ["mean"]
    robust = SortedLossDisplay.from_estimator(model, *data, ax=mean.ax_)
    assert robust.tail_fraction == 0.2 and robust.tail_ is not None
    assert legend(robust) == ["mean", "CVaR(0.2)", "worst 20% and its mean"]
    again = SortedLossDisplay.from_estimator(model, *data, ax=mean.ax_, name="again")
    assert again.tail_ is None and again.tail_line_ is not None
    report = model.worst_case_report(*data)
    assert_allclose(robust.tail_line_.get_ydata(), report.tail_loss)
    assert again.tail_line_.get_color() == again.line_.get_color() != robust.line_.get_color()
    other = SortedLossDisplay.from_estimator(model, *data, tail_fraction=0.5)
    assert other.tail_fraction == 0.5
    with pytest.raises(ValueError, match=r"tail_fraction must be a number in \(0, 1\]"):
        SortedLossDisplay.from_predictions(LOSSES, tail_fraction=0.0)


def test_no_legend_without_names():
    assert SortedLossDisplay.from_predictions(LOSSES).ax_.get_legend() is None


# ------------------------------------------------------------------------- tail risk


def test_tail_risk_is_the_mean_of_the_worst_share():
    rng = np.random.default_rng(1)
    losses, weight = rng.exponential(size=300), rng.uniform(size=300)
    display = TailRiskDisplay.from_predictions(losses, sample_weight=weight)
    assert_array_equal(display.line_.get_xdata(), display.levels)
    assert_array_equal(display.line_.get_ydata(), display.risks)
    assert display.levels[0] == 1.0 and display.levels[-1] == pytest.approx(0.01)
    assert (np.diff(display.risks) > 0).all()
    expected = [tail_mean(losses, weight, level) for level in display.levels]
    assert_allclose(display.risks, expected, rtol=1e-12)
    # The library's own oracle says the same.
    p = weight / weight.sum()
    at = display.levels[::50]
    oracle = [CVaR(level).worst_case(losses, 0.0, "chi2", p) @ losses for level in at]
    assert_allclose(display.risks[::50], oracle, rtol=1e-9)
    assert display.risks[0] == pytest.approx(p @ losses)


def test_tail_risk_axis_runs_from_all_rows_to_the_worst():
    few = TailRiskDisplay.from_predictions(LOSSES, name="few")
    assert few.levels[-1] == pytest.approx(0.25), "not beyond one row"
    assert few.risks[-1] == pytest.approx(LOSSES.max())
    assert few.ax_.get_xscale() == "log"
    assert few.ax_.get_xlim() == pytest.approx((1.0, 0.25))
    many = TailRiskDisplay.from_predictions(np.arange(500.0), name="many", ax=few.ax_)
    assert many.ax_.get_xlim() == pytest.approx((1.0, 0.01))
    many.figure_.canvas.draw()
    ticks = [text.get_text() for text in many.ax_.get_xticklabels()]
    assert {"100%", "50%", "20%", "10%", "5%", "2%", "1%"} <= set(ticks)
    alone = TailRiskDisplay.from_predictions([2.0])
    assert_allclose(alone.risks, 2.0)


def test_tail_risk_at_levels_of_ones_own():
    display = TailRiskDisplay.from_predictions(LOSSES, levels=[0.25, 1.0, 0.5])
    assert_array_equal(display.levels, [1.0, 0.5, 0.25])
    assert_allclose(display.risks, [3.0, 4.5, 6.0])
    for bad in ([], [0.0], [2.0, 0.1], [np.nan]):
        with pytest.raises(ValueError, match=r"levels must be numbers in \(0, 1\]"):
            TailRiskDisplay.from_predictions(LOSSES, levels=bad)
    with pytest.raises(ValueError, match="levels must be vectors of one length"):
        TailRiskDisplay.from_predictions(LOSSES, levels=[[0.5, 0.2]])


# ------------------------------------------------------------------------- weights


def test_weights_of_a_model(data, model):
    display = WeightsDisplay.from_estimator(model, *data)
    report = model.worst_case_report(*data)
    assert_array_equal(display.line_.get_xdata(), report.losses)
    assert_allclose(display.line_.get_ydata(), report.dual_weights * report.n_samples)
    assert display.cap == 5.0 and display.times.max() == pytest.approx(5.0)
    assert_allclose(display.cap_line_.get_ydata(), 5.0)
    assert_allclose(display.nominal_line_.get_ydata(), 1.0)
    assert [text.get_text() for text in display.ax_.texts] == ["nominal", "cap 5"]
    # The training rows' own weights, up to the tolerance of the fit.
    assert_allclose(display.times, model.dual_weights_ * report.n_samples, atol=0.01)
    same = WeightsDisplay.from_predictions(
        report.losses, report.dual_weights, cap=5.0, ax=display.ax_, name="same"
    )
    assert_allclose(same.line_.get_xydata(), display.line_.get_xydata(), rtol=1e-14)
    assert same.cap_line_ is None and same.nominal_line_ is None, "the same lines twice"
    assert len(same.ax_.texts) == 2


def test_tails_of_several_models_are_the_same_share():
    losses = np.arange(100.0)
    first = SortedLossDisplay.from_predictions(losses, tail_fraction=0.5)
    second = SortedLossDisplay.from_predictions(losses + 1, tail_fraction=0.2, ax=first.ax_)
    assert second.tail_ is None and first.tail_ is not None
    assert_allclose(second.tail_line_.get_xdata(), [0.5, 1.0])
    assert_allclose(second.tail_line_.get_ydata(), (losses + 1)[50:].mean())


def test_weights_rise_with_the_loss_at_the_price_of_shifting(data, model):
    """Between 0 and the cap, chi2 gives a weight that rises by 1 for each shift cost."""
    display = WeightsDisplay.from_estimator(model, *data)
    between = (display.times > 1e-9) & (display.times < 5 - 1e-9)
    assert between.sum() > 3
    slopes = np.polyfit(display.losses[between], display.times[between], 1)
    assert slopes[0] == pytest.approx(1 / 0.05)


def test_weights_with_nominal_weights_and_groups(data):
    X, y = data
    weight, groups = np.arange(y.size) % 3.0, np.arange(y.size) % 4
    model = DRORegressor(Grouped(CVaR(0.5))).fit(X, y, groups=groups)
    display = WeightsDisplay.from_estimator(model, X, y, groups=groups, sample_weight=weight)
    there = weight > 0
    assert display.losses.size == there.sum() and display.cap == 2.0
    # A group rises and falls as one.
    for group in range(4):
        assert np.ptp(display.times[groups[there] == group]) < 1e-12
    assert display.times @ weight[there] == pytest.approx(weight.sum())
    given = WeightsDisplay.from_predictions(LOSSES, WEIGHT / 8, sample_weight=WEIGHT)
    assert_allclose(given.times, 1.0)


def test_weights_of_other_sets_and_of_classifiers(data):
    X, y = data
    ball = DRORegressor(KLBall(0.3)).fit(X, y)
    display = WeightsDisplay.from_estimator(ball, X, y)
    assert display.cap is None and display.cap_line_ is None and display.name == "KLBall(0.3)"
    mean = DROClassifier(CVaR(1.0)).fit(X, y > 0)
    display = WeightsDisplay.from_estimator(mean, X, y > 0)
    assert_allclose(display.times, 1.0)
    assert display.cap_line_ is None, "a cap of 1 is the nominal line"


def test_weights_that_cannot_be_shown():
    with pytest.raises(ValueError, match="weights must have one entry per row"):
        WeightsDisplay.from_predictions(LOSSES, [1.0])
    with pytest.raises(ValueError, match=r"cap must be a number in \[1, inf\)"):
        WeightsDisplay.from_predictions(LOSSES, LOSSES / 12, cap=0.5)


# ------------------------------------------------------------------------- simplex


@pytest.mark.parametrize(
    "p, uncertainty", cases.thinned([None, [0.5, 0.3, 0.2]], SETS, keep=2), ids=str
)
def test_simplex(p, uncertainty):
    losses = np.array([1.0, 2.0, 4.0])
    display = SimplexDisplay.from_losses(losses, uncertainty, p=p)
    divergence = uncertainty.match("auto")
    nominal = np.full(3, 1 / 3) if p is None else np.array(p)
    for q in (*display.edge, *display.path, *display.weights):
        assert uncertainty.violation(q, nominal) < 1e-9
    # From the nominal weights to the worst ones, the loss never falling.
    assert_array_equal(display.path[0], nominal)
    assert_allclose(display.path[-1], uncertainty.worst_case(losses, 0.0, divergence, nominal))
    assert (np.diff(display.path @ losses) > -1e-9).all()
    for cost, q in zip(display.shift_costs, display.weights):
        assert_array_equal(q, uncertainty.worst_case(losses, cost, divergence, nominal))
        near = np.abs(display.path - q).max(axis=1).min()
        assert near < 0.05, "the dots lie on the path"
    # Points just outside of the edge are not in the set.
    outside = nominal + 1.01 * (display.edge - nominal)
    assert all(uncertainty.violation(q, nominal) > 0 for q in outside)
    # The thick contour: no point of the set is better, and the maximum is on it.
    inside = np.array([uncertainty.violation(q, nominal) == 0 for q in display.grid])
    assert display.values[inside].max() <= display.level + 1e-12
    assert display.level in display.contours_.levels
    assert display.contours_.get_linewidths().max() > display.contours_.get_linewidths().min()
    assert len(display.patch_.get_xy()) - 1 == len(display.edge)
    display.figure_.canvas.draw()


def test_simplex_in_the_plane():
    display = SimplexDisplay.from_losses([1.0, 2.0, 4.0], Simplex(), shift_costs=[0.01])
    # All weight on the third row: the upper corner.
    assert_allclose(display.points_.get_xydata()[-1], [0.5, np.sqrt(0.75)], atol=1e-12)
    assert_allclose(display.line_.get_xydata()[0], [0.5, np.sqrt(0.75) / 3])
    corners = display.patch_.get_xy()[:-1]
    assert_allclose(np.unique(corners.round(9), axis=0), [[0, 0], [0.5, 0.866025404], [1, 0]])
    texts = {text.get_text(): text for text in display.ax_.texts}
    assert list(texts) == ["loss 1", "loss 2", "loss 4", "$p$"]
    assert_allclose(texts["loss 2"].xy, [1.0, 0.0])


def test_simplex_polygons_are_exact():
    corners = {tuple(q) for q in SimplexDisplay.from_losses(LOSSES[:3], CVaR(0.5)).edge.round(9)}
    third, two = round(1 / 3, 9), round(2 / 3, 9)
    assert corners == {
        (0, third, two), (0, two, third), (third, 0, two),
        (two, 0, third), (third, two, 0), (two, third, 0),
    }  # fmt: skip
    edge = SimplexDisplay.from_losses(LOSSES[:3], Extremile(2)).edge
    assert_allclose(np.sort(edge, axis=1), np.tile([1 / 9, 3 / 9, 5 / 9], (6, 1)))
    ball = SimplexDisplay.from_losses(LOSSES[:3], Chi2Ball(0.1)).edge
    assert_allclose([drago.Chi2().value(q, np.full(3, 1 / 3)) for q in ball], 0.1)


def test_simplex_labels_costs_and_styles():
    losses = [1.0, 2.0, 4.0]
    display = SimplexDisplay.from_losses(
        losses, CVaR(0.5), "kl", shift_costs=[0.5, 8, 2], contour_cost=3, fc="red"
    )
    assert_array_equal(display.shift_costs, [8.0, 2.0, 0.5])
    assert display.contour_cost == 3.0
    assert legend(display) == [
        "CVaR(0.5)", r"objective, $\nu$ = 3", r"maximum, $\nu$ = 8 to 0.5",
    ]  # fmt: skip
    assert to_hex(display.patch_.get_facecolor()) == to_hex("red")
    other = SimplexDisplay.from_losses(losses, "simplex", ax=display.ax_)
    assert other.ax_ is display.ax_ and other.name == "Simplex"
    held = SimplexDisplay.from_losses(losses, CVaR(0.5), shift_costs=[100, 1.5, 0.1])
    assert held.contour_cost == 1.5, "the first for which the set makes a difference"
    free = SimplexDisplay.from_losses(losses, Simplex(), shift_costs=[100, 1.5, 0.1])
    assert free.contour_cost == 0.1


def test_simplex_of_equal_losses_and_of_a_single_point():
    equal = SimplexDisplay.from_losses([1.0, 1.0, 1.0], CVaR(0.5))
    assert_allclose(equal.path, 1 / 3)
    equal.figure_.canvas.draw()
    point = SimplexDisplay.from_losses([1.0, 2.0, 3.0], CVaR(1.0))
    assert point.name == "mean" and point.edge.shape == (1, 3)
    point.figure_.canvas.draw()


def test_simplex_that_cannot_be_shown():
    with pytest.raises(ValueError, match="losses must have one entry per row"):
        SimplexDisplay.from_losses(LOSSES)
    with pytest.raises(ValueError, match="p must"):
        SimplexDisplay.from_losses(LOSSES[:3], p=[0.5, 0.5])
    with pytest.raises(ValueError, match=r"shift_costs must be a number in \(0, inf\)"):
        SimplexDisplay.from_losses(LOSSES[:3], shift_costs=[1.0, 0.0])
    with pytest.raises(ValueError, match=r"contour_cost must be a number in \(0, inf\)"):
        SimplexDisplay.from_losses(LOSSES[:3], contour_cost=0.0)
    with pytest.raises(ValueError, match="works with its own divergence"):
        SimplexDisplay.from_losses(LOSSES[:3], KLBall(0.2), "chi2")
    with pytest.raises(ValueError, match="Grouped needs to know the group"):
        SimplexDisplay.from_losses(LOSSES[:3], Grouped())
    assert plt.get_fignums() == []


# ------------------------------------------------------------------------- found groups


def test_found_groups_are_drawn_with_their_intervals():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(600, 3))
    y = X[:, 1] + 4.0 * (X[:, 0] > 0.5) * X[:, 1] ** 2 + 0.1 * rng.normal(size=600)
    found = drago.find_groups(X, y, max_groups=4)
    assert 0 < found.stands_out.sum() < found.n_groups
    display = FoundGroupsDisplay.from_result(found, lw=3)
    ends = np.array([segment[:, 0] for segment in display.lines_.get_segments()])
    assert_allclose(ends, np.column_stack([found.table["above_low"], found.table["above_high"]]))
    assert_allclose(display.points_.get_offsets()[:, 0], found.table["above"])
    colours = [to_hex(colour).upper() for colour in display.lines_.get_colors()]
    assert_array_equal(np.array(colours) == COLOURS[1], found.stands_out)
    assert display.lines_.get_linewidths() == [3]
    labels = [text.get_text() for text in display.ax_.get_yticklabels()]
    assert [label.replace("\n", " ") for label in labels] == found.rules
    assert display.ax_.yaxis_inverted()  # the worst on top
    assert display.ax_.get_xlabel() == "excess above that of all rows"
    plain = FoundGroupsDisplay.from_result(drago.find_groups(X, y, baseline=None), ax=plt.gca())
    assert plain.ax_.get_xlabel() == "loss above that of all rows"


def test_long_rules_are_cut_and_intervals_without_ends_drawn():
    rule = " and ".join(f"{k}.5 < a_long_name_{k} <= {k + 1}.25" for k in range(6))
    display = FoundGroupsDisplay(
        rules=[rule, "b"], above=[1.0, np.nan], low=[-np.inf, -np.inf], high=[np.inf, np.inf]
    ).plot()
    label = display.ax_.get_yticklabels()[0].get_text()
    assert label.count("\n") == 2 and label.endswith(" ...")
    assert_allclose(display.lines_.get_segments()[0][:, 0], [-1.0, 1.0])
    display.figure_.canvas.draw()
    with pytest.raises(ValueError, match="one entry per group"):
        FoundGroupsDisplay(rules=["a"], above=[1.0, 2.0], low=[0.0, 0.0], high=[3.0, 3.0])


def test_a_trade_off_of_a_path_and_of_a_comparison():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(200, 2)), np.arange(200) % 4 == 0
    y = np.where(groups, -1.0, 1.0) * X[:, 0] + rng.normal(size=200)
    path = drago.robust_path(X[:100], y[:100], tail_fractions=[1.0, 0.3])
    display = TradeOffDisplay.from_path(path, X[100:], y[100:], groups=groups[100:])
    models = {
        f"tail {tail:g}": DRORegressor(CVaR(tail)).fit(X[:100], y[:100]) for tail in (1.0, 0.3)
    }
    found = drago.compare(models, X[100:], y[100:], groups=groups[100:], baseline=None)
    other = TradeOffDisplay.from_result(found, s=50)
    # Solved to a relative gap of 1e-4.
    assert_allclose(display.points_.get_offsets(), other.points_.get_offsets(), rtol=0.02)
    assert [text.get_text() for text in display.texts_] == display.names == ["tail 1", "tail 0.3"]
    legend = [text.get_text() for text in other.ax_.get_legend().get_texts()]
    assert legend == display.names and other.texts_ == []
    assert other.names == display.names and other.points_.get_sizes().tolist() == [50]
    assert other.ax_.get_ylabel() == "loss of the worst group"
    tail = TradeOffDisplay.from_result(found, metric="tail_excess")
    assert_allclose(tail.worst, found.table["tail_excess"])
    with pytest.raises(ValueError, match="metric must be one of"):
        TradeOffDisplay.from_result(found, metric="best")
    with pytest.raises(ValueError, match="names must have one entry per model"):
        TradeOffDisplay(names=["a"], mean=[1.0, 2.0], worst=[1.0, 2.0])


# ------------------------------------------------------------------- titles, units, heavy tails


def test_heavy_tails_get_a_logarithmic_axis():
    rng = np.random.default_rng(0)
    mild, heavy = rng.uniform(size=400), np.abs(rng.standard_t(0.7, size=400)) ** 2
    weights = np.full(400, 1 / 400)
    for made, axis in [
        (lambda losses, **more: SortedLossDisplay.from_predictions(losses, **more), "y"),
        (lambda losses, **more: TailRiskDisplay.from_predictions(losses, **more), "y"),
        (lambda losses, **more: WeightsDisplay.from_predictions(losses, weights, **more), "x"),
    ]:

        def scale(display, axis=axis):
            return getattr(display.ax_, f"get_{axis}scale")()

        assert scale(made(mild)) == "linear"
        display = made(heavy)
        assert scale(display) == "log"
        low, high = getattr(display.ax_, f"get_{axis}lim")()
        assert high > heavy.mean() and low >= 1e-6 * high
        assert scale(made(mild, ax=display.ax_)) == "log"  # what was there stays readable
        assert scale(made(heavy, scale="linear")) == "linear"
        assert scale(made(mild, scale="log")) == "log"
        with pytest.raises(ValueError, match="scale must be one of"):
            made(mild, scale="cubic")


def test_zeros_and_negative_losses():
    assert SortedLossDisplay.from_predictions([0.0, 0.0, 0.0]).ax_.get_yscale() == "linear"
    assert (
        SortedLossDisplay.from_predictions([-1.0] + [0.1] * 19 + [1e6]).ax_.get_yscale() == "linear"
    )
    shown = SortedLossDisplay.from_predictions([0.0] + [0.1] * 19 + [1e6]).ax_
    assert shown.get_yscale() == "log" and shown.get_ylim()[1] > 1e6


def test_pictures_have_titles_and_units(data):
    X, y = data[:2]
    model = drago.DRORegressor().fit(X, y)
    labels = drago.DROClassifier().fit(X, y > np.median(y))
    for made in (SortedLossDisplay, TailRiskDisplay):
        assert "half squared error" in made.from_estimator(model, X, y).ax_.get_ylabel()
        shown = made.from_estimator(labels, X, y > np.median(y)).ax_
        assert "nats" in shown.get_ylabel() and shown.get_title()
    weights = WeightsDisplay.from_estimator(model, X, y).ax_
    assert weights.get_xlabel() == "loss (half squared error)" and weights.get_title()
    assert ConvergenceDisplay.from_estimator(model).ax_.get_title()
    _, ax = plt.subplots()
    ax.set_title("mine")
    assert SortedLossDisplay.from_estimator(model, X, y, ax=ax).ax_.get_title() == "mine"
