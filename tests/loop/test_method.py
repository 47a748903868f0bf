"""What solvers declare, objects that only have what one needs, and who touches whose privates."""

import ast
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import pytest

import cases
import drago
from drago.loop.loop import Iterate, Loop
from drago.loop.method import Adapted, Method, Solver, adapted
from drago.solvers.solve import as_method
from drago.solvers.trivial import TrivialModel

SOURCE = Path(drago.__file__).parent
NAMES = ("drago", "lbfgs", "newton", "gd", "agog", "sgd", "lsvrg", "prospect")
# What each solver is, as it was: public names and their defaults.
FIELDS = {
    "drago": {
        "step_size": "auto", "dual_step_size": None, "block_size": "auto", "metric": "auto",
        "start": "stationary", "tables": "exact", "primal": "auto", "refresh": True,
        "progressive": True, "finish": "auto", "n_threads": None,
    },
    "lbfgs": {"memory": 20, "metric": "euclidean", "progressive": False},
    "newton": {},
    "gd": {},
    "agog": {},
    "sgd": {"step_size": "auto", "batch_size": 64},
    "lsvrg": {"step_size": "auto"},
    "prospect": {"step_size": "auto"},
}  # fmt: skip


class Plain:
    """An object that inherits from nothing, with what a solver needs at least."""

    name = "plain"

    def __init__(self):
        self.asked = []

    def check(self, problem):
        self.asked.append("check")

    def run(self, problem, loop):
        self.asked.append("run")
        loop.observe(Iterate(*loop.start, 1, 1.0, problem.n_samples))
        return "that was all"


# ---------------------------------------------------------------------------- what is declared


@pytest.mark.parametrize("name", NAMES)
def test_solvers_are_methods_and_their_fields_are_public(name):
    method = as_method(name)
    assert isinstance(method, Method) and isinstance(method, Solver) and is_dataclass(method)
    assert {field.name: field.default for field in fields(method)} == FIELDS[name]
    shown = ", ".join(f"{key}={value!r}" for key, value in FIELDS[name].items())
    assert repr(method) == f"{type(method).__name__}({shown})"
    assert method.settings is method and method.name == name


@pytest.mark.parametrize("name", NAMES)
def test_what_solvers_declare(name):
    method = as_method(name)
    assert method.can_resume == method.has_threads == (name == "drago")
    assert method.progressive == (name == "drago")
    assert method.metric == {"drago": "auto", "lbfgs": "euclidean"}.get(name)
    expected = dict.fromkeys(("sgd", "lsvrg", "prospect"), "single rows")
    expected |= {"newton": "responses", "drago": "tables"}
    assert method.needs == ((expected[name],) if name in expected else ())


def test_the_defaults_declare_nothing():
    method, problem = Method(), cases.make()
    method.check(problem)
    assert not (method.can_resume or method.progressive or method.has_threads or method.needs)
    assert method.metric is None and method.layout == 1
    assert method.with_threads(3) is method
    assert method.metric_at(problem, Iterate(*problem.origin, 0, 0.0, 0), 0.0) is None
    with pytest.raises(NotImplementedError, match="has no `run`"):
        method.run(problem, Loop(problem, 1e-3))
    with pytest.raises(NotImplementedError, match="cannot be resumed"):
        method.resume(problem, Loop(problem, 1e-3), ({}, {}))


def test_threads_change_nothing_else():
    method = drago.Drago(step_size=0.1, n_threads=2)
    assert method.with_threads(None) == drago.Drago(step_size=0.1)
    assert method.with_threads(5).n_threads == 5 and method.n_threads == 2


def test_the_trivial_model_is_a_method():
    assert isinstance(TrivialModel((drago.Newton(),)), Method)


# ------------------------------------------------------------------------ objects of one's own


def test_an_object_with_name_check_and_run_is_enough():
    given, problem = Plain(), cases.make()
    with pytest.warns(match="no further progress after 1 iteration .that was all.*Solver: plain"):
        result = drago.solve(problem, given)
    assert given.asked[0] == "check" and "run" in given.asked
    assert result.solver == "plain" and result.n_iter == 1


@pytest.mark.parametrize("argument", [{"n_threads": 2}, {"checkpoint": "somewhere"}])
def test_such_an_object_has_no_threads_and_cannot_be_resumed(argument):
    problem = cases.make()
    if "checkpoint" in argument:
        with pytest.raises(ValueError, match="solver 'plain' cannot be resumed"):
            drago.solve(problem, Plain(), **argument)
    else:
        with pytest.warns(match="that was all"):
            drago.solve(problem, Plain(), **argument)


@pytest.mark.parametrize("missing", ["name", "check", "run"])
def test_an_object_that_has_less_is_refused(missing):
    own = {key: value for key, value in vars(Plain).items() if key != missing}
    with pytest.raises(TypeError, match="solver must be one of 'auto'"):
        as_method(type("Less", (), own)())


def test_an_adapted_object_shows_what_was_given():
    given = Plain()
    method = adapted(given)
    assert isinstance(method, Adapted) and method.settings is given
    assert repr(method) == repr(given)
    assert adapted(method) is method


def test_tune_takes_an_object_of_ones_own():
    @dataclass(frozen=True)
    class Own:
        step_size: float = 0.5
        name = "own"

        def check(self, problem):
            pass

        def run(self, problem, loop):
            return drago.SGD(step_size=self.step_size).run(problem, loop)

    problem = cases.make(n=100)
    found = drago.tune(problem, Own(), grid=[0.01, 0.02], seeds=[0], n_passes=12)
    same = drago.tune(problem, "sgd", grid=[0.01, 0.02], seeds=[0], n_passes=12)
    assert found.solver == Own(found.step_size) and found.trials == same.trials
    with pytest.raises(ValueError, match="solver 'plain' has no step size to tune"):
        drago.tune(problem, Plain())


# ------------------------------------------------------------------------------------ privates

ROOMS = [SOURCE / "loop", SOURCE / "solvers"]
FILES = sorted(path for folder in ROOMS for path in folder.rglob("*.py"))
# What the loop and its objects are called, wherever they are used.
OBJECTS = {"loop", "inner", "clock", "budget", "goal", "judge", "ledger", "method"}


def privates(tree):
    """``loop._x`` and the like: private attributes of one of the loop's objects, by its name."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        owner = node.value
        last = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if last.lstrip("_") in OBJECTS and not node.attr.startswith("__"):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_the_reader_of_privates_sees_them():
    """The test below would pass on an empty list."""
    code = "loop._last; self.loop._stop(); self._loop._x = 1; a.loop.clock._now(); self._loop.fine"
    seen = [line.partition(": ")[2] for line in privates(ast.parse(code))]
    expected = {"loop._last", "self.loop._stop", "self._loop._x", "a.loop.clock._now"}
    assert set(seen) == expected and len(seen) == 4
    assert len(FILES) > 25


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])
def test_nobody_uses_the_privates_of_the_loop(path):
    assert privates(ast.parse(path.read_text())) == []


def test_subclasses_of_the_loop_do_not_either():
    """In `drago.solvers`: the attributes of `self` that a subclass uses are its own or public."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            if "Loop" not in [ast.unparse(base) for base in node.bases]:
                continue
            names = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
            own = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            used = {name for name in names - own if name.startswith("_") and name != "__init__"}
            assert not used & set(dir(Loop(cases.make(), 1e-3))), path


def test_the_loop_knows_no_solver():
    for path in (SOURCE / "loop").glob("*.py"):
        assert "drago.solvers" not in [
            ".".join((node.module or "").split(".")[:2])
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
        ], path
