"""What L-BFGS's part of a saved solve holds; the loop's is in `drago.loop.saved`."""

from __future__ import annotations

from drago.files.archive import State
from drago.files.forms import (
    NOT_NEGATIVE,
    POSITIVE,
    UP_TO_INFINITY,
    Count,
    Fields,
    Flag,
    Floats,
    Form,
    Number,
    inner,
)
from drago.loop.saved import memory_form, point_forms, require_weights
from drago.problem import DROProblem


def check_lbfgs(
    problem: DROProblem, oracle: dict[str, float], pairs: int, n_stages: int, state: State
) -> None:
    """Raise where L-BFGS's part of a saved solve is not one.

    Parameters
    ----------
    problem : DROProblem
    oracle : dict
        The memory of an oracle of the problem.
    pairs : int
        How many pairs of steps and changes are kept at most.
    n_stages : int
        How many problems are solved one after the other.
    state : (dict, dict)
        Arrays and settings.
    """
    arrays, settings = state
    Fields(
        {
            "stage": Count(0, n_stages - 1),
            "n_iter": Count(),
            "n_calls": Count(),
            "passes": NOT_NEGATIVE,
            "idle": Count(),
            "least": UP_TO_INFINITY,
            "value": Number(),
            "estimate": NOT_NEGATIVE,
            "is_sum": Flag(),
            "share": NOT_NEGATIVE,
            "pairs": Count(0, pairs),
            "intercept": POSITIVE,
            "oracle": memory_form(oracle),
        }
    ).check("method", settings)
    n, d, k, m = problem.n_samples, problem.n_features, problem.n_outputs, settings["pairs"]
    unknowns = d * k + (k if problem.fit_intercept else 0)
    forms: dict[str, Form] = {
        **point_forms(problem),
        "mean": Floats((d,)),
        "x": Floats((unknowns,)),
        "slope": Floats((unknowns,)),
        "gradient_w": Floats((d, k)),
        "gradient_b": Floats((k,)),
        "steps": Floats((m, unknowns)),
        "changes": Floats((m, unknowns)),
        "inner": Floats((m, m)),
        "square": Floats((m, m)),
        "raw": Floats((n, k)),
        "losses": Floats((n,)),
        "dlosses": Floats((n, k)),
        "q": Floats((n,), 0.0),
    }
    Fields(forms).check("method", {key: a for key, a in arrays.items() if key[:7] != "metric."})
    basis = Floats((d, d), any_order=True)
    Fields({"eigenvalues": Floats((d,), 0.0, above=True)}, {"basis": basis}).check(
        "method.metric", inner(arrays, "metric.")
    )
    require_weights("method.q", problem, arrays["q"])
