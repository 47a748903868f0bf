"""Wrong arguments: one sentence that names the argument, its value and what is allowed."""

import re
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import drago
from drago import CVaR, Grouped

X = np.arange(12.0).reshape(6, 2) / 7
Y = np.arange(6.0) - 2
LABELS = np.array([0.0, 1, 0, 1, 1, 0])
CLASSES = np.array([0, 1, 2, 0, 1, 2])
P6 = np.full(6, 1 / 6)


def problem(X=X, y=Y, **settings):
    return drago.DROProblem(X, y, **{"shift_cost": 0.1, **settings})


def spoilt(array, value, index):
    out = np.array(array, dtype=float)
    out[index] = value
    return out


def check_message(error, parts):
    message = str(error)
    for part in parts:
        assert re.search(part, message), f"{part!r} is not in: {message}"
    assert "\n" not in message, "the message is not a single line"
    assert message.endswith((".", "?")), message
    assert not message.endswith(".."), message


def case(name, call, error, *parts):
    return pytest.param(call, error, parts, id=name)


# --------------------------------------------------------------------------------------- data

FEATURES = [
    case("nan", lambda: problem(spoilt(X, np.nan, (1, 1))), ValueError, "^X ", "NaN", r"\(1, 1\)"),
    case("inf", lambda: problem(spoilt(X, np.inf, (2, 0))), ValueError, "^X ", r"\(2, 0\)"),
    case("minus_inf", lambda: problem(spoilt(X, -np.inf, (2, 0))), ValueError, r"\(2, 0\)"),
    case(
        "nan_float32",
        lambda: problem(spoilt(X, np.nan, (1, 1)).astype(np.float32)),
        ValueError,
        "^X ",
        r"\(1, 1\)",
    ),
    case(
        "nan_sparse",
        lambda: problem(sp.csr_array(spoilt(X, np.nan, (1, 1)))),
        ValueError,
        "^X ",
        "NaN",
    ),
    case("one_dimension", lambda: problem(Y), ValueError, "^X ", "two dim", r"\(6,\)"),
    case("three_dimensions", lambda: problem(np.zeros((6, 2, 1))), ValueError, r"\(6, 2, 1\)"),
    case("sparse_one_dimension", lambda: problem(sp.coo_array(Y)), ValueError, "^X ", r"\(6,\)"),
    case("scalar", lambda: problem(3.0), ValueError, "^X ", r"\(\)"),
    case("none", lambda: problem(None), (ValueError, TypeError), "^X "),
    case("no_rows", lambda: problem(np.zeros((0, 2)), []), ValueError, "at least", r"\(0, 2\)"),
    case("no_features", lambda: problem(np.zeros((6, 0))), ValueError, "^X ", r"\(6, 0\)"),
    case("no_rows_sparse", lambda: problem(sp.csr_array((0, 2)), []), ValueError, r"\(0, 2\)"),
    case("strings", lambda: problem([["a", "b"]] * 6), ValueError, "^X ", "numbers", "<U1"),
    case(
        "object",
        lambda: problem(np.array([["a", 1]] * 6, dtype=object)),
        ValueError,
        "^X ",
        "object",
        "'a'",
    ),
    case("mapping", lambda: problem({"a": 1}), ValueError, "^X ", "dict"),
    case("ragged", lambda: problem([[1, 2], [3]]), ValueError, "^X ", "array of numbers"),
    case("complex", lambda: problem(X + 1j), ValueError, "^X ", "real", "complex128"),
    case("complex_sparse", lambda: problem(sp.csr_array(X + 1j)), ValueError, "real", "complex128"),
    case("dates", lambda: problem(np.zeros((6, 2), dtype="M8[s]")), ValueError, "^X ", "datetime"),
]

TARGETS = [
    case("nan", lambda: problem(y=spoilt(Y, np.nan, 3)), ValueError, "^y ", "NaN", "at 3"),
    case("inf", lambda: problem(y=spoilt(Y, np.inf, 0)), ValueError, "^y ", "at 0"),
    case("short", lambda: problem(y=Y[:5]), ValueError, "^y ", r"\(6,\)", r"\(5,\)"),
    case("two_columns", lambda: problem(y=np.zeros((6, 2))), ValueError, r"\(6,\)", r"\(6, 2\)"),
    case("scalar", lambda: problem(y=1.0), ValueError, "^y ", r"\(6,\)", r"\(\)"),
    case("none", lambda: problem(y=None), ValueError, "^y "),
    case("strings", lambda: problem(y=list("abcabc")), ValueError, "^y ", "numbers", "<U1"),
    case("digits", lambda: problem(y=list("123456")), ValueError, "^y ", "numbers", "<U1"),
    case(
        "object_strings",
        lambda: problem(y=np.array(list("abcabc"), dtype=object)),
        ValueError,
        "^y ",
        "object",
        "'a'",
    ),
    case("object_none", lambda: problem(y=np.array([None] * 6)), ValueError, "^y "),
    case("sparse", lambda: problem(y=sp.csr_array(Y[:, None])), ValueError, "^y "),
    case("complex", lambda: problem(y=Y + 1j), ValueError, "^y ", "real", "complex128"),
    case(
        "logistic_signs",
        lambda: problem(y=2 * LABELS - 1, loss="logistic"),
        ValueError,
        "^y ",
        "0 and 1",
        "-1",
        "encode the labels",
    ),
    case("logistic_strings", lambda: problem(y=list("ababab"), loss="logistic"), ValueError, "^y "),
    case(
        "logistic_one_class",
        lambda: problem(y=np.ones(6), loss="logistic"),
        ValueError,
        "^y ",
        "two classes",
        "only 1",
    ),
    case(
        "logistic_one_class_by_weight",
        lambda: problem(y=LABELS, loss="logistic", sample_weight=LABELS),
        ValueError,
        "two classes",
        "positive weight",
        "only 1",
    ),
    case("half_labels", lambda: problem(y=LABELS / 2, loss="multinomial"), ValueError, "0.5"),
    case("negative_labels", lambda: problem(y=LABELS - 1, loss="multinomial"), ValueError, "-1"),
    case(
        "multinomial_one_class",
        lambda: problem(y=0 * LABELS + 2, loss="multinomial"),
        ValueError,
        "two classes",
        "only 2",
    ),
]

WEIGHTS = [
    case(
        "negative",
        lambda: problem(sample_weight=[1, 1, -2, 1, 1, 1]),
        ValueError,
        "^sample_weight ",
        "nonnegative",
        "entry 2 is -2",
    ),
    case("all_zero", lambda: problem(sample_weight=np.zeros(6)), ValueError, "positive", "zero"),
    case(
        "nan",
        lambda: problem(sample_weight=spoilt(P6, np.nan, 3)),
        ValueError,
        "^sample_weight ",
        "at 3",
    ),
    case(
        "inf",
        lambda: problem(sample_weight=spoilt(P6, np.inf, 2)),
        ValueError,
        "^sample_weight ",
        "at 2",
    ),
    case("short", lambda: problem(sample_weight=[1, 2]), ValueError, r"\(6,\)", r"\(2,\)"),
    case("scalar", lambda: problem(sample_weight=1.0), ValueError, "^sample_weight ", r"\(6,\)"),
    case("word", lambda: problem(sample_weight="balanced"), ValueError, "^sample_weight "),
    case("complex", lambda: problem(sample_weight=P6 + 1j), ValueError, "^sample_weight ", "real"),
]

GROUPS = [
    case("missing", lambda: problem(uncertainty=Grouped("cvar")), ValueError, "Grouped", "groups="),
    case("short", lambda: problem(groups=[1, 2]), ValueError, "^groups ", r"\(6,\)", r"\(2,\)"),
    case("two_dimensions", lambda: problem(groups=np.zeros((6, 1))), ValueError, r"\(6, 1\)"),
    case("nan", lambda: problem(groups=spoilt(Y, np.nan, 1)), ValueError, "^groups ", "NaN"),
    case(
        "mixed_types",
        lambda: problem(groups=np.array([None, "a", 1, 2, 3, 4], dtype=object)),
        (TypeError, ValueError),
        "^groups ",
    ),
    case(
        "object_nan",
        lambda: problem(groups=np.array([np.nan, 1, 2, 3, 1, 2], dtype=object)),
        (TypeError, ValueError),
        "^groups ",
    ),
    case("ragged", lambda: problem(groups=[[1], [1, 2], 3, 4, 5, 6]), ValueError, "^groups "),
]

# ----------------------------------------------------------------------------------- settings

LOSS_NAMES = ("'squared'", "'huber'", "'logistic'", "'multinomial'")
SET_NAMES = ("'cvar'", "'extremile'", "'esrm'", "'chi2_ball'", "'kl_ball'", "'simplex'")
DIVERGENCE_NAMES = ("'auto'", "'chi2'", "'kl'")

SETTINGS = [
    case("loss_name", lambda: problem(loss="hinge"), ValueError, "^loss ", "'hinge'", *LOSS_NAMES),
    case("loss_class", lambda: problem(loss=drago.Huber), ValueError, "^loss ", *LOSS_NAMES),
    case("loss_none", lambda: problem(loss=None), ValueError, "^loss ", "None", *LOSS_NAMES),
    case("set_name", lambda: problem(uncertainty="var"), ValueError, "'var'", *SET_NAMES),
    case("set_class", lambda: problem(uncertainty=CVaR), TypeError, "^uncertainty ", *SET_NAMES),
    case("set_number", lambda: problem(uncertainty=0.1), TypeError, r"0\.1 was", *SET_NAMES),
    case("set_none", lambda: problem(uncertainty=None), TypeError, "None", *SET_NAMES),
    case(
        "divergence_name",
        lambda: problem(divergence="tv"),
        ValueError,
        "^divergence ",
        "'tv'",
        *DIVERGENCE_NAMES,
    ),
    case("divergence_class", lambda: problem(divergence=drago.KL), ValueError, *DIVERGENCE_NAMES),
    case("divergence_none", lambda: problem(divergence=None), ValueError, *DIVERGENCE_NAMES),
    case(
        "ball_with_other_divergence",
        lambda: problem(uncertainty="chi2_ball", divergence="kl"),
        ValueError,
        "Chi2Ball",
        "'chi2'",
        "'kl'",
        "'auto'",
    ),
    case(
        "grouped_ball_with_other_divergence",
        lambda: problem(uncertainty=Grouped("kl_ball"), divergence="chi2", groups=Y),
        ValueError,
        "KLBall",
        "'chi2'",
    ),
    case("shift_cost_word", lambda: problem(shift_cost="big"), ValueError, "'auto'", "'big'"),
    case("l2_reg_word", lambda: problem(l2_reg="auto"), TypeError, "^l2_reg ", "'auto'"),
    case("fit_intercept_word", lambda: problem(fit_intercept="no"), TypeError, "^fit_intercept "),
    case("fit_intercept_none", lambda: problem(fit_intercept=None), TypeError, "^fit_intercept "),
    case(
        "constraint_word",
        lambda: problem(constraint="box"),
        TypeError,
        "^constraint ",
        "L2Ball",
        "Box",
        "NonNegative",
        "'box'",
    ),
    case("constraint_class", lambda: problem(constraint=drago.L2Ball), TypeError, "^constraint "),
    case("constraint_array", lambda: problem(constraint=np.eye(3)), TypeError, "^constraint "),
    case(
        "box_of_other_size",
        lambda: problem(constraint=drago.Box(np.zeros(3), np.ones(3))),
        ValueError,
        "Box",
        r"\(3,\)",
        "2 features",
    ),
]

# Every number that has a range: (name, a call that passes it on, allowed text, values outside).
NUMBERS = {
    "shift_cost": (lambda v: problem(shift_cost=v), r"\[0, inf\)", (-1.0, np.inf)),
    "l2_reg": (lambda v: problem(l2_reg=v), r"\[0, inf\)", (-1e-9, np.inf)),
    "tail_fraction": (CVaR, r"\(0, 1\]", (0.0, 1.5, -0.1, np.inf)),
    "n_draws": (drago.Extremile, r"\[1, inf\)", (0.5, -2.0, np.inf)),
    "risk_aversion": (drago.ESRM, r"\[0, inf\)", (-1.0, np.inf)),
    "radius of Chi2Ball": (drago.Chi2Ball, r"\[0, inf\)", (-1.0, np.inf)),
    "radius of KLBall": (drago.KLBall, r"\[0, inf\)", (-0.1, np.inf)),
    "radius of L2Ball": (drago.L2Ball, r"\(0, inf\)", (-1.0, 0.0, np.inf)),
    "delta": (drago.Huber, r"\(0, inf\)", (-1.0, 0.0, np.inf)),
    "tol": (lambda v: drago.solve(problem(), tol=v), r"\[0, inf\)", (-1.0, np.inf)),
    "time_limit": (lambda v: drago.solve(problem(), time_limit=v), r"\[0, inf\)", (-1.0,)),
    "c": (lambda v: CVaR().worst_case(Y, v, "chi2", P6), r"\[0, inf\)", (-1.0, np.inf)),
}

INTEGERS = {
    "max_iter": lambda v: drago.solve(problem(), max_iter=v),
    "memory": lambda v: drago.LBFGS(memory=v),
}

SETS = [
    case("spectrum_nothing", lambda: drago.Spectrum(), ValueError, "density", "integral"),
    case(
        "spectrum_both",
        lambda: drago.Spectrum(np.ones_like, lambda u: u),
        ValueError,
        "exactly one",
    ),
    case("spectrum_number", lambda: drago.Spectrum(3), TypeError, "function", "3"),
    case(
        "spectrum_decreasing",
        lambda: drago.Spectrum(lambda u: 2 * (1 - u)),
        ValueError,
        "nondecreasing",
    ),
    case("spectrum_negative", lambda: drago.Spectrum(lambda u: 4 * u - 1), ValueError, "nonneg"),
    case("spectrum_half", lambda: drago.Spectrum(lambda u: u), ValueError, "integral 1", r"0\.5"),
    case(
        "spectrum_nan",
        lambda: drago.Spectrum(lambda u: np.full_like(u, np.nan)),
        ValueError,
        "density",
        "finite",
    ),
    case("spectrum_scalar", lambda: drago.Spectrum(lambda u: 1.0), ValueError, "vectorised"),
    case(
        "integral_half",
        lambda: drago.Spectrum(integral=lambda u: u / 2),
        ValueError,
        "from 0 to 1",
        r"0\.5",
    ),
    case(
        "integral_words",
        lambda: drago.Spectrum(integral=lambda u: np.full(u.shape, "a")),
        (TypeError, ValueError),
        "integral",
    ),
    case("grouped_twice", lambda: Grouped(Grouped()), ValueError, "Grouped"),
    case("grouped_name", lambda: Grouped("var"), ValueError, "'var'", *SET_NAMES),
    case("grouped_none", lambda: Grouped(None), TypeError, "None", *SET_NAMES),
    case(
        "unknown_parameter",
        lambda: CVaR().set_params(level=1),
        ValueError,
        "'level'",
        "'tail_fraction'",
    ),
    case("parameter_range", lambda: CVaR().set_params(tail_fraction=2), ValueError, r"\(0, 1\]"),
    case(
        "inner_parameter",
        lambda: Grouped(CVaR()).set_params(inner__radius=2),
        ValueError,
        "'radius'",
        "'tail_fraction'",
    ),
    case(
        "p_sum",
        lambda: CVaR().worst_case([1, 2], 1, "chi2", [0.5, 0.6]),
        ValueError,
        "^p ",
        r"sum 1\.1",
    ),
    case("p_empty", lambda: CVaR().worst_case([], 1, "chi2", []), ValueError, "^p ", r"\(0,\)"),
    case("u_shape", lambda: CVaR().worst_case([1, 2], 1, "chi2", P6), ValueError, "^u ", r"\(2,\)"),
    case(
        "u_nan",
        lambda: CVaR().worst_case(spoilt(Y, np.nan, 2), 1, "chi2", P6),
        ValueError,
        "^u ",
        "finite",
    ),
    case("u_words", lambda: CVaR().worst_case(["a"] * 6, 1, "chi2", P6), ValueError, "^u "),
    case(
        "worst_case_divergence",
        lambda: CVaR().worst_case(Y, 1, "tv", P6),
        ValueError,
        "'tv'",
        "'chi2'",
        "'kl'",
    ),
    case("worst_case_grouped", lambda: Grouped().worst_case(Y, 1, "chi2", P6), ValueError, "group"),
]

BOXES = [
    case("crossed", lambda: drago.Box(1, 0), ValueError, "low", "high", "1", "0"),
    case("crossed_arrays", lambda: drago.Box(np.ones(60), np.zeros(60)), ValueError, "low", "high"),
    case("nan", lambda: drago.Box(np.nan, 1), ValueError, "low", "NaN"),
    case("shapes", lambda: drago.Box(np.zeros(2), np.ones(3)), ValueError, r"\(2,\)", r"\(3,\)"),
    case("word", lambda: drago.Box("a", 1), (TypeError, ValueError), "low", "numbers"),
    case("complex", lambda: drago.Box(0, 1j), (TypeError, ValueError), "high", "real"),
    case("none", lambda: drago.Box(None, 1), (TypeError, ValueError), "low"),
    case("empty", lambda: drago.Box(np.inf, np.inf), ValueError, "low"),
    case("empty_below", lambda: drago.Box(-np.inf, -np.inf), ValueError, "high"),
]

# ------------------------------------------------------------------------------------ the calls

MULTI = {"y": CLASSES, "loss": "multinomial", "fit_intercept": True}

CALLS = [
    case("solve_array", lambda: drago.solve(X), TypeError, "^problem ", "DROProblem", "ndarray"),
    case(
        "solver_name",
        lambda: drago.solve(problem(), "adam"),
        ValueError,
        "^solver ",
        "'adam'",
        "'auto'",
        "'lbfgs'",
    ),
    case(
        "solver_class",
        lambda: drago.solve(problem(), drago.LBFGS),
        TypeError,
        "^solver ",
        "'lbfgs'",
    ),
    case("solver_none", lambda: drago.solve(problem(), None), TypeError, "^solver ", "None"),
    case("callback", lambda: drago.solve(problem(), callback=3), TypeError, "^callback ", "3"),
    case(
        "lbfgs_ball",
        lambda: drago.solve(problem(constraint=drago.L2Ball(1)), "lbfgs"),
        ValueError,
        "'lbfgs'",
        r"L2Ball\(radius=1\)",
    ),
    case("certify_array", lambda: drago.certify(X, [1, 2]), TypeError, "^problem ", "DROProblem"),
    case("coef_size", lambda: drago.certify(problem(), [1, 2, 3]), ValueError, "^coef ", r"\(2,\)"),
    case("coef_nan", lambda: drago.certify(problem(), [1, np.nan]), ValueError, "^coef ", "NaN"),
    case("coef_none", lambda: drago.certify(problem(), None), ValueError, "^coef "),
    case("coef_words", lambda: drago.certify(problem(), ["a", "b"]), ValueError, "^coef "),
    case(
        "coef_complex",
        lambda: drago.certify(problem(), [1j, 2]),
        (TypeError, ValueError),
        "^coef ",
        "real",
    ),
    case("coef_ragged", lambda: drago.certify(problem(), [[1], [2, 3]]), ValueError, "^coef "),
    case(
        "coef_transposed",
        lambda: drago.certify(problem(**MULTI), np.zeros((2, 3))),
        ValueError,
        "^coef ",
        r"\(3, 2\)",
        r"\(2, 3\)",
    ),
    case("coef_flat", lambda: problem(**MULTI).losses(np.zeros(6)), ValueError, r"\(3, 2\)"),
    case(
        "intercept_size",
        lambda: problem(**MULTI).losses(np.zeros((3, 2)), np.zeros(2)),
        ValueError,
        "^intercept ",
        "3",
        r"\(2,\)",
    ),
    case(
        "intercept_not_fitted",
        lambda: drago.certify(problem(), [1, 2], 1.0),
        ValueError,
        r"^intercept=1\.0",
        "fit_intercept=False",
    ),
    case(
        "intercept_word",
        lambda: problem(fit_intercept=True).losses([1, 2], "a"),
        (TypeError, ValueError),
        "^intercept ",
    ),
    case(
        "coef_outside",
        lambda: drago.certify(problem(constraint=drago.NonNegative()), [-1, 2]),
        ValueError,
        "^coef ",
        "NonNegative",
    ),
    case(
        "weights_outside",
        lambda: drago.certify(problem(), [1, 2], dual_weights=np.ones(6)),
        ValueError,
        "^dual_weights ",
        "CVaR",
        "5",
    ),
    case(
        "weights_shape",
        lambda: drago.certify(problem(), [1, 2], dual_weights=np.ones(5)),
        ValueError,
        "^dual_weights ",
        r"\(6,\)",
        r"\(5,\)",
    ),
    case(
        "weights_nan",
        lambda: drago.certify(problem(), [1, 2], dual_weights=spoilt(P6, np.nan, 4)),
        ValueError,
        "^dual_weights ",
        "at 4",
    ),
    case(
        "losses_shape",
        lambda: problem().worst_case_weights([1, 2]),
        ValueError,
        "^losses ",
        r"\(6,\)",
    ),
    case(
        "losses_nan",
        lambda: problem().worst_case_weights(spoilt(Y, np.nan, 1)),
        ValueError,
        "^losses ",
        "at 1",
    ),
    case(
        "user_loss_one_array",
        lambda: problem(loss=lambda y, z: z).losses([0, 0]),
        ValueError,
        "pair",
        "ndarray",
    ),
    case(
        "user_loss_shapes",
        lambda: problem(loss=lambda y, z: (z[:2], z)).losses([0, 0]),
        ValueError,
        r"\(6,\)",
        r"\(2,\)",
    ),
]


ALL = {
    "X": FEATURES,
    "y": TARGETS,
    "sample_weight": WEIGHTS,
    "groups": GROUPS,
    "settings": SETTINGS,
    "sets": SETS,
    "box": BOXES,
    "calls": CALLS,
}


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [pytest.param(*one.values, id=f"{kind}-{one.id}") for kind in ALL for one in ALL[kind]],
)
def test_refusal(call, error, parts):
    with pytest.raises(error) as caught:
        call()
    check_message(caught.value, parts)


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, (_, _, outside) in NUMBERS.items() for value in (*outside, np.nan)],
)
def test_number_out_of_range(name, value):
    call, allowed, _ = NUMBERS[name]
    with pytest.raises(ValueError) as caught:
        call(value)
    check_message(caught.value, (f"^{name.split()[0]} ", allowed, re.escape(f"{value:g} was")))


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "bool"),
        (np.False_, "bool"),
        (1j, "complex"),
        ("1e-3", "str"),
        ([0.5], "list"),
        (np.array([0.5]), "ndarray"),
    ],
    ids=["bool", "numpy_bool", "complex", "word", "list", "array"],
)
def test_not_a_number(name, value, kind):
    call, allowed, _ = NUMBERS[name]
    if name == "shift_cost" and isinstance(value, str):
        with pytest.raises(ValueError) as caught:
            call(value)
        check_message(caught.value, ("^shift_cost ", allowed, "'auto'"))
        return
    with pytest.raises(TypeError) as caught:
        call(value)
    check_message(caught.value, (f"^{name.split()[0]} ", allowed, kind))


@pytest.mark.parametrize("name", ["tail_fraction", "l2_reg"])
def test_a_table_in_place_of_a_number_is_shown_on_one_line(name):
    call, allowed, _ = NUMBERS[name]
    with pytest.raises(TypeError) as caught:
        call(np.full((4, 2), 0.5))
    check_message(caught.value, (f"^{name} ", allowed, "ndarray"))


@pytest.mark.parametrize("name", ["tail_fraction", "l2_reg"])
def test_number_too_large_for_a_float(name):
    call, allowed, _ = NUMBERS[name]
    with pytest.raises(ValueError) as caught:
        call(10**400)
    check_message(caught.value, (f"^{name.split()[0]} ", allowed))


@pytest.mark.parametrize("value", [np.float32(0.5), Fraction(1, 2), np.float64(0.5)])
def test_any_real_number_is_taken(value):
    assert problem(l2_reg=value, shift_cost=value).mu == 0.5
    q = CVaR(value).worst_case(Y, 0.1, "chi2", P6)
    np.testing.assert_array_equal(q, CVaR(0.5).worst_case(Y, 0.1, "chi2", P6))


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-3, ValueError), (1.5, TypeError), (True, TypeError), ("3", TypeError)],
)
def test_not_a_positive_integer(name, value, error):
    with pytest.raises(error) as caught:
        INTEGERS[name](value)
    check_message(caught.value, (f"^{name} ", "integer >= 1", re.escape(str(value))))


def test_sparse_nan_is_named_by_row_and_column():
    """The place is that of the matrix, not of its list of stored entries."""
    with pytest.raises(ValueError, match=r"\(4, 1\)"):
        problem(sp.csr_array(spoilt(X, np.nan, (4, 1))))


def test_inner_set_by_name_has_the_parameters_of_the_set():
    assert Grouped("cvar").set_params(inner__tail_fraction=0.2) == Grouped(CVaR(0.2))
    with pytest.raises(ValueError) as caught:
        Grouped("cvar").set_params(inner__radius=0.2)
    check_message(caught.value, ("CVaR", "radius", "tail_fraction"))


def test_multinomial_labels_far_beyond_the_rows():
    """Labels that are no 0..k-1 must not make room for a thousand empty classes."""
    with pytest.raises(ValueError) as caught:
        problem(y=1000 * LABELS, loss="multinomial")
    check_message(caught.value, ("^y ", "0..k-1", "1000"))


def test_weights_of_very_different_size_leave_no_zero_in_p():
    """A weight that underflows when normalised is dropped like a zero, not kept as 0/0."""
    weight = np.array([1e-200, 1e200, 1e200, 1e200, 1e200, 1e200])
    small = problem(sample_weight=weight)
    assert small.p.min() > 0
    assert np.isfinite(small.kappa_q)


def test_settings_after_data_are_by_keyword_only():
    with pytest.raises(TypeError):
        drago.DROProblem(X, Y, "squared")


# ------------------------------------------------------------- what is converted, not refused

SPARSE = {
    "csr_array": sp.csr_array,
    "csr_matrix": sp.csr_matrix,
    "csc_array": sp.csc_array,
    "csc_matrix": sp.csc_matrix,
    "coo_array": sp.coo_array,
    "coo_matrix": sp.coo_matrix,
    "lil_array": sp.lil_array,
    "lil_matrix": sp.lil_matrix,
    "dok_array": sp.dok_array,
    "bsr_array": sp.bsr_array,
    "dia_array": sp.dia_array,
}
W = np.array([0.3, -1.2])


def same_problem(one, other, w=W):
    # A raw prediction is a sum of two products, rounded twice or (fused) once, less the target.
    np.testing.assert_allclose(one.losses(w), other.losses(w), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(one.objective(w), other.objective(w), rtol=1e-13)
    np.testing.assert_allclose(one.row_norms, other.row_norms, rtol=1e-14)


@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_formats_become_csr(kind):
    given = problem(SPARSE[kind](X))
    assert given.X.format == "csr"
    assert given.X.dtype == np.float64
    same_problem(given, problem())


def test_sparse_duplicates_are_summed_and_the_given_matrix_is_left_alone():
    coo = sp.coo_matrix(([1.0, 2.0, 5.0], ([0, 0, 1], [1, 1, 0])), shape=(6, 2))
    csr = sp.csr_matrix(
        (np.array([1.0, 2.0, 5.0]), np.array([1, 1, 0]), np.array([0, 2, 3, 3, 3, 3, 3])),
        shape=(6, 2),
    )
    dense = np.zeros((6, 2))
    dense[0, 1], dense[1, 0] = 3.0, 5.0
    for given in (coo, csr):
        same_problem(problem(given), problem(dense))
        assert given.nnz == 3
        assert given.data.tolist() == [1.0, 2.0, 5.0]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, np.bool_])
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_integers_and_booleans_become_float64(dtype, container):
    table = (np.arange(12).reshape(6, 2) % 5).astype(dtype)
    given = problem(container(table))
    assert given.X.dtype == np.float64
    same_problem(given, problem(table.astype(float)))


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble])
def test_other_floats_become_float64(dtype):
    given = problem(X.astype(dtype))
    assert given.X.dtype == np.float64
    same_problem(given, problem(X.astype(dtype).astype(float)))


def test_convertible_objects_are_converted():
    given = problem(X.astype(object), Y.astype(object), sample_weight=P6.astype(object))
    assert given.X.dtype == given.y.dtype == given.p.dtype == np.float64
    same_problem(given, problem(sample_weight=P6))


def test_lists_and_columns_are_taken():
    same_problem(problem(X.tolist(), Y.tolist()), problem())
    same_problem(problem(y=Y[:, None], sample_weight=P6[:, None]), problem())


def test_strided_views_are_taken():
    wide = np.zeros((12, 6))
    wide[::2, ::3] = X
    same_problem(problem(wide[::2, ::3]), problem())


def test_boolean_labels_are_taken_for_logistic():
    same_problem(
        problem(y=LABELS.astype(bool), loss="logistic"), problem(y=LABELS, loss="logistic")
    )


def test_huge_finite_values_are_not_mistaken_for_infinite_ones():
    """Their sum overflows in float32; each of them is a number, and its square one in float64."""
    small = np.full((6, 2), 3e38, dtype=np.float32)
    assert problem(small).X.dtype == np.float32
    assert problem(np.full((6, 2), 1e153)).X.max() == 1e153
    with pytest.raises(ValueError, match="sums of their squares overflow; scale the features"):
        problem(np.full((6, 2), 1e308))


@pytest.mark.parametrize("container", [np.array, sp.csr_array, sp.coo_matrix])
@pytest.mark.parametrize("factor", [1e160, 1e200, 1e300])
def test_features_whose_squares_overflow_are_refused(factor, container):
    for build in (
        problem,
        drago.robust_path,
        drago.DRORegressor().fit,
        lambda X, y: drago.DROClassifier().fit(X, y > 0),
    ):
        with pytest.raises(ValueError, match=r"as large as .*; scale the features"):
            build(container(factor * X), Y)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("solver", ["auto", "drago", "lbfgs", "newton"])
def test_targets_out_of_range_are_named(solver):
    """Squares that overflow or underflow: an answer, or a sentence that says what to scale."""
    for fit_intercept in (False, True):
        for factor in (1e160, 1e200, 1e300, 1e-160, 1e-200, 1e-300):
            with pytest.raises(ValueError, match=r"scale the (features and the )?target"):
                given = {"shift_cost": "auto", "fit_intercept": fit_intercept}
                drago.solve(problem(y=factor * Y, **given), solver)
        for factor in (1e140, 1e-140):
            given = problem(y=factor * Y, shift_cost="auto", fit_intercept=fit_intercept)
            assert drago.solve(given, solver).status == "optimal"
    with pytest.raises(ValueError, match="scale the target"):
        drago.DRORegressor(solver=solver).fit(X, 1e-200 * Y)
    # A target of zeros is a target; its shift cost times what rounding leaves of D(p || p).
    assert abs(drago.solve(problem(y=0 * Y), solver).primal) <= 1e-30


# ------------------------------------------------------------------------------ missing entries


def masked(values, *places):
    out = np.ma.array(values, mask=False)
    for place in places:
        out[place] = np.ma.masked
    return out


def fitted(kind=drago.DRORegressor):
    return kind().fit(X, Y)


@pytest.mark.parametrize(
    ("name", "run"),
    {
        "X": lambda wrap: problem(wrap(X)),
        "y": lambda wrap: problem(y=wrap(Y)),
        "sample_weight": lambda wrap: problem(sample_weight=wrap(P6)),
        "groups": lambda wrap: problem(groups=wrap(CLASSES)),
        "coef": lambda wrap: problem().losses(wrap(X[0])),
        "losses": lambda wrap: problem().worst_case_weights(wrap(Y)),
        "p": lambda wrap: CVaR(0.5).q_max(wrap(P6)),
        "u": lambda wrap: CVaR(0.5).worst_case(wrap(Y), 0.1, "chi2", P6),
        "q": lambda wrap: drago.KL().value(wrap(P6), P6),
        "X of fit": lambda wrap: drago.DRORegressor().fit(wrap(X), Y),
        "y of fit": lambda wrap: drago.DRORegressor().fit(X, wrap(Y)),
        "y of a classifier": lambda wrap: drago.DROClassifier().fit(X, wrap(CLASSES)),
        "sample_weight of fit": lambda wrap: drago.DRORegressor().fit(X, Y, wrap(P6)),
        "groups of fit": lambda wrap: drago.DRORegressor().fit(X, Y, groups=wrap(CLASSES)),
        "X of predict": lambda wrap: fitted().predict(wrap(X)),
        "y of losses": lambda wrap: fitted().losses(X, wrap(Y)),
        "groups of a report": lambda wrap: fitted().worst_case_report(X, Y, groups=wrap(CLASSES)),
        "y of a scorer": lambda wrap: drago.tail_loss_scorer()(fitted(), X, wrap(Y)),
        "losses of a display": lambda wrap: plotted(wrap(Y)),
    }.items(),
)
def test_masked_entries_are_no_data(name, run):
    """Under a mask lies whatever was there; without one the array is an array."""
    run(np.ma.asarray)
    with pytest.raises(ValueError, match=f"^{name.split()[0]} has 1 masked entries"):
        run(lambda values: masked(values, (0,) * values.ndim))


def plotted(losses):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    drago.plotting.SortedLossDisplay.from_predictions(losses)
    matplotlib.pyplot.close("all")


def labels_without(missing):
    """Six labels, one of which says that there is none."""
    pd = pytest.importorskip("pandas")
    return {
        "None": np.array(["a", "b", None, "a", "b", "a"], dtype=object),
        "NaN": np.array(["a", "b", np.nan, "a", "b", "a"], dtype=object),
        "<NA>": np.array(pd.array([0, 1, None, 0, 1, 0], dtype="Int64"), dtype=object),
        "NaT": np.array(["2020", "2021", "NaT", "2020", "2021", "2020"], dtype="datetime64[D]"),
        "NaT of pandas": np.array(pd.Series([*"ab", pd.NaT, *"aba"], dtype=object)),
        "NaT of times": np.array([1, 2, "NaT", 1, 2, 1], dtype="timedelta64[s]"),
        "None alone": np.array([None] * 6, dtype=object),
    }[missing]


@pytest.mark.parametrize(
    "missing", ["None", "NaN", "<NA>", "NaT", "NaT of pandas", "NaT of times", "None alone"]
)
def test_labels_that_say_that_there_is_none(missing):
    groups = labels_without(missing)
    what = f"groups contains {missing.split()[0]} labels, the first at .*; give these rows a label"
    for run in (
        lambda: problem(groups=groups),
        lambda: drago.DRORegressor(Grouped(CVaR(0.5))).fit(X, Y, groups=groups),
        lambda: fitted().worst_case_report(X, Y, groups=groups),
        lambda: drago.worst_group_scorer()(fitted(), X, Y, groups=groups),
    ):
        with pytest.raises(ValueError, match=what):
            run()


def test_dates_and_objects_are_labels():
    days = np.array(["2020", "2021", "2020", "2021", "2021", "2020"], dtype="datetime64[D]")
    for groups in (days, days - days[0], days.astype(object), LABELS.astype(object)):
        assert problem(groups=groups).groups.tolist() == LABELS.astype(int).tolist()


def test_a_set_of_ones_own_is_taken():
    class Nominal:
        def worst_case(self, u, c, divergence, p):
            return p

        def q_max(self, p):
            return p.max()

    given = problem(uncertainty=Nominal())
    np.testing.assert_array_equal(given.worst_case_weights(Y), P6)


@pytest.mark.parametrize(
    "answer", [np.ones(3), np.full(6, np.nan)], ids=["too short", "not finite"]
)
def test_a_set_of_ones_own_must_return_weights(answer):
    class Broken:
        def worst_case(self, u, c, divergence, p):
            return answer

        def q_max(self, p):
            return 1.0

    with pytest.raises(ValueError) as caught:
        problem(uncertainty=Broken()).worst_case_weights(Y)
    check_message(caught.value, ("Broken.worst_case", "6 finite"))
