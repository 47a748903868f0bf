"""Checkpoints with a right sum and a wrong content: refused by name, or answered rightly.

Run as a script, this file is a process that resumes solves from such checkpoints: a crash of
compiled code ends it, and is seen.
"""

import copy
import functools
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import drago
from drago.files.checkpoint import CheckpointError, load, save
from drago.loop import resume
from drago.rows.tables import unsettled

PAPER = {"start": "paper", "step_size": 0.05}
TOL = 1e-5

# name: (problem, settings, iterations before it is saved)
KINDS = {
    "one block": ({}, {}, 10),
    "one block, intercept": ({"fit_intercept": True}, {}, 10),
    "blocks": ({}, {"primal": "blocks", "block_size": 15}, 20),
    "support": ({"fit_intercept": True}, {"primal": "support", "block_size": 15}, 12),
    "lagged": ({}, {"tables": "lagged", "block_size": 20, **PAPER}, 20),
    "lists of rows": ({}, {"primal": "blocks", "block_size": 15}, 20),
    "mu = 0": ({"l2_reg": 0.0}, {}, 12),
    "nu = 0": ({"shift_cost": 0.0}, {}, 12),
    "kl": ({"divergence": "kl"}, {"primal": "blocks"}, 12),
    "kl ball": ({"uncertainty": drago.KLBall(0.5)}, {}, 8),
    "spectral": ({"uncertainty": drago.Extremile(2.0)}, {}, 4),
    "box": ({"constraint": drago.Box(-0.5, 0.5)}, {"primal": "blocks"}, 12),
    "multinomial": ({"loss": "multinomial", "fit_intercept": True}, {"primal": "blocks"}, 12),
}


def make(loss="squared", n=60, d=3, **options):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((n, d)) * np.logspace(0, -1, d)
    y = X @ rng.standard_normal(d) * 2 + rng.standard_normal(n) + 0.5
    if loss == "multinomial":
        y = np.digitize(y, [-0.5, 1.5])
    options = {"shift_cost": 0.1, "l2_reg": 1e-2, "uncertainty": drago.CVaR(0.3), **options}
    return drago.DROProblem(X, y, loss=loss, **options)


def quiet(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return drago.solve(*args, **kwargs)


@functools.cache
def best(name):
    """The least objective of a kind of solve."""
    return quiet(make(**KINDS[name][0]), "auto", tol=1e-9).primal


class Case:
    """A kind of solve, its honest checkpoint, and what to compare answers with."""

    def __init__(self, name, folder):
        options, settings, self.n_iter = KINDS[name]
        self.problem, self.path = make(**options), Path(folder) / "solve"
        self.method = drago.Drago(**{"finish": "none", "progressive": False, **settings})
        self.best = best(name)
        self.forget()
        self.resumed(tol=0.0, max_iter=self.n_iter)
        self.arrays, self.settings = load(self.path)

    def forget(self):
        for name in self.path.parent.glob("solve*"):
            name.unlink()

    def resumed(self, **limits):
        limits = {"tol": TOL, "max_iter": self.n_iter + 60, "time_limit": 5.0, **limits}
        return quiet(
            self.problem, self.method, checkpoint=self.path, checkpoint_every=0.0, **limits
        )

    def write(self, arrays, settings):
        self.forget()
        save(self.path, arrays, settings)

    def check(self, result):
        """Raise where an answer is not what the problem says of it."""
        problem, size = self.problem, abs(self.problem.reference[0])
        found = drago.certify(problem, result.coef, result.intercept)
        assert abs(found.primal - result.primal) <= 1e-9 * size, "another objective"
        assert found.primal <= problem.reference[0] + 1e-9 * size, "worse than the trivial model"
        if "||w||" not in result.bound:
            assert result.dual <= self.best + 1e-9 * size, (
                result.dual,
                self.best,
                "no lower bound",
            )
        if result.status == "optimal":
            # Gaps are accurate to a share of themselves; 1e-9 is far above their rounding.
            assert found.rel_gap <= TOL * (1 + 1e-3) + 1e-9, "not optimal"
        assert result.status != "stationary", "a convex problem"


def changed_arrays(arrays):
    """Every array in other shapes, of other types, with other entries, and left out."""
    for name, array in arrays.items():
        if name in ("loop.start.w", "loop.start.b"):  # pragma: no cover
            continue
        flat = array.reshape(-1)
        changes = {
            "shorter": array[:-1],
            "longer": np.concatenate([array, np.zeros((1, *array.shape[1:]))]),
            "narrower": array[..., :-1],
            "wider": np.concatenate([array, array], axis=-1),
            "deeper": array[..., None],
            "a number": np.array(1.0),
            "float32": array.astype(np.float32),
            "int64": array.astype(np.int64),
            "complex": array.astype(complex),
            "bool": array.astype(bool),
            "str": array.astype(str),
            "big-endian": array.astype(">f8"),
            "columns": np.asfortranarray(array),
            "nan": np.where(np.arange(flat.size) == 0, np.nan, flat).reshape(array.shape),
            "inf": np.where(np.arange(flat.size) == 0, np.inf, flat).reshape(array.shape),
            "-inf": np.full(array.shape, -np.inf),
            "huge": np.full(array.shape, 1e300),
            "tiny": np.full(array.shape, 5e-324),
            "negative": -1.0 - array,
            "zero": np.zeros(array.shape),
            "noise": np.random.default_rng(0).exponential(size=array.shape),
        }
        for how, other in changes.items():
            yield f"{name} {how}", {**arrays, name: other}
        yield f"{name} removed", {key: a for key, a in arrays.items() if key != name}
    for name in ("method.x", "loop.x", "x", "method.mean", "method.watch.x", "method.metric.x"):
        yield f"{name} added", {**arrays, name: np.zeros(3)}


REMOVED = object()
VALUES = [
    REMOVED, None, [], {}, "x", True, False, 0, -1, -2, 7, 10**30, -(10**30), 2**62, 0.5, -0.5, 0.0,
    math.nan, math.inf, -math.inf, 1e300, 5e-324, [1.0], [1.0] * 9, [[1.0]], ["x"], {"x": 1.0},
]  # fmt: skip


def ways(tree, way=()):
    """The way to every leaf and every branch."""
    if way:
        yield way
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    if isinstance(tree, (dict, list)):
        for key, value in list(items)[:20]:
            yield from (
                ways(value, (*way, key)) if isinstance(value, (dict, list)) else [(*way, key)]
            )


def changed_settings(settings):
    """(label, way, value) of every leaf and every branch left out, or something else."""
    for way in ways(settings):
        for value in VALUES:
            label = "removed" if value is REMOVED else repr(value)
            yield f"settings {'.'.join(map(str, way))} {label}", way, value
    yield "settings x added", ("x",), 1


def changed(settings, way, value):
    other = copy.deepcopy(settings)
    inner = other
    for key in way[:-1]:
        inner = inner[key]
    if value is REMOVED:
        del inner[way[-1]]
    else:
        inner[way[-1]] = value
    return other


def attack(name, folder, first, stride):
    """Resume a solve from wrong checkpoints, and report each.

    Of the changes to settings every `stride`-th, of those to arrays five times as many.
    """
    warnings.simplefilter("ignore")  # of conversions that lose what was there
    resume._SHARE = math.inf
    os.fsync = lambda file: None
    if name == "lists of rows":
        unsettled.LEAST_ROWS, unsettled._LEAST_BLOCK = 0, 1
    case = Case(name, folder)
    case.check(case.resumed())  # the honest one
    wrong = [(label, arrays, case.settings) for label, arrays in changed_arrays(case.arrays)]
    wrong = wrong[first % max(stride // 5, 1) :: max(stride // 5, 1)]
    for label, *change in list(changed_settings(case.settings))[first::stride]:
        wrong.append((label, case.arrays, changed(case.settings, *change)))
    for label, arrays, settings in wrong:
        print(f"{name}: {label}", flush=True)
        case.write(arrays, settings)
        try:
            case.check(case.resumed())
        except CheckpointError as error:
            if str(case.path) in str(error):
                print("refused", flush=True)
                continue
            print(f"WRONG {name}: {label}: {error}", flush=True)
        except Exception as error:
            print(f"WRONG {name}: {label}: {type(error).__name__}: {error}", flush=True)
        print("answered", flush=True)


def run(names, folder, stride):
    command = [sys.executable, __file__, str(folder), str(stride), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    said = done.stdout.splitlines()
    assert done.returncode == 0, (done.returncode, said[-3:], done.stderr[-2000:])
    wrong = [line for line in said if line.startswith("WRONG")]
    assert not wrong, "\n".join(wrong)
    return said.count("refused"), said.count("answered")


@pytest.mark.parametrize("first", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_wrong_checkpoints_are_refused_or_answered_rightly(first, tmp_path):
    """A part of the changes of a few kinds, another one for each; all of them are slow."""
    refused, answered = run(list(KINDS)[first::6], tmp_path, 97)
    assert refused > 80 and answered > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_all_wrong_arrays_and_many_settings_are_refused_or_answered_rightly(name, tmp_path):
    refused, answered = run([name], tmp_path, 5)
    assert refused > 200 and answered > 5


CLAIMS = {
    "a gap of 0": {"best": {"gap": 0.0, "bound": "tangent"}},
    "a gap of 0, of the bound alone": {"dual": {"gap": 0.0, "bound": "curvature"}},
    "a lower objective": {"best": {"primal": 0.1, "gap": 0.0, "bound": "tangent"}},
    "a higher bound": {"dual": {"primal": 9.0, "gap": 0.0, "bound": "tangent"}},
    "a gap in a small ball": {"best": {"gap": 0.0, "bound": "tangent", "restricted_to": 1e-3}},
}


@pytest.mark.parametrize("name", CLAIMS)
def test_what_the_problem_does_not_confirm_is_not_believed(name, tmp_path):
    """Neither by the status nor by the numbers of the answer."""
    case = Case("blocks", tmp_path)
    settings, arrays = copy.deepcopy(case.settings), dict(case.arrays)
    if "dual" not in settings["loop"]:
        settings["loop"]["dual"] = {**settings["loop"]["best"], "restricted_to": None}
        arrays |= {f"loop.dual.{key}": arrays[f"loop.best.{key}"] for key in "wbq"}
    for entry, claim in CLAIMS[name].items():
        settings["loop"][entry] |= claim
    case.write(arrays, settings)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = drago.solve(
            case.problem, case.method, tol=TOL, max_iter=case.n_iter + 1, checkpoint=case.path
        )
    assert "solve claims more than the problem confirms" in str(said[0].message)
    assert said[0].category is UserWarning and len(said) == 2  # and that it did not converge
    assert result.status == "max_iter" and result.rel_gap > 10 * TOL
    case.check(result)


def test_an_honest_claim_is_believed_to_the_last_bit(tmp_path):
    case = Case("blocks", tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        result = drago.solve(case.problem, case.method, tol=TOL, checkpoint=case.path)
    expected = drago.solve(case.problem, case.method, tol=TOL)
    assert result.status == "optimal" and result.gap == expected.gap
    assert result.n_passes == expected.n_passes and (result.coef == expected.coef).all()


def outside(q):
    return np.eye(q.size)[0]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("method.q", lambda q: q[:-1], r"method\.q must be an array of float64 and shape \(60,\)"),
        ("method.q", outside, r"method\.q must lie in CVaR\(.*\), but violates it by 0\.9"),
        ("loop.best.q", outside, r"loop\.best\.q must lie in CVaR"),
        ("loop.best.b", lambda b: b + 1, r"loop\.best\.b must have entries in \[-?0, 0\]"),
        ("loop.best.w", lambda w: w * np.nan, r"loop\.best\.w must be finite"),
        ("method.loss_table", lambda a: a.astype("f4"), r"loss_table must .* one of float32 and"),
        ("method.metric.eigenvalues", lambda a: 0 * a, r"entries in \(0, inf\], but they lie in"),
    ],
)
def test_errors_name_what_is_wrong(name, change, message, tmp_path):
    case = Case("blocks", tmp_path)
    case.write({**case.arrays, name: change(case.arrays[name])}, case.settings)
    before = case.path.read_bytes()
    with pytest.raises(CheckpointError, match=message) as caught:
        case.resumed()
    assert str(caught.value).startswith(f"The checkpoint {case.path} cannot be used: ")
    assert str(caught.value).endswith("Delete it to start anew.")
    assert case.path.read_bytes() == before


def test_a_point_outside_of_the_constraint_set_is_refused(tmp_path):
    case = Case("box", tmp_path)
    case.write({**case.arrays, "loop.best.w": case.arrays["loop.best.w"] + 1.0}, case.settings)
    with pytest.raises(CheckpointError, match=r"loop\.best\.w lies outside of Box"):
        case.resumed()


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("mu = 0", "metric.eigenvalues", 5e-324),
        ("nu = 0", "metric.basis", 1e300),
        ("kl", "w", 1e300),
        ("kl ball", "w", 1e300),
    ],
)
def test_numbers_that_overflow_end_in_an_answer(kind, name, value, tmp_path):
    """The method diverges, or has no step to take: there is nothing to divide by."""
    case = Case(kind, tmp_path)
    array = np.full(case.arrays[f"method.{name}"].shape, value)
    case.write({**case.arrays, f"method.{name}": array}, case.settings)
    result = case.resumed()
    assert result.status in ("stalled", "max_iter", "optimal")
    case.check(result)


if __name__ == "__main__":
    for place, kind in enumerate(sys.argv[3:]):
        attack(kind, sys.argv[1], 7 * place % int(sys.argv[2]), int(sys.argv[2]))
