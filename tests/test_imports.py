"""What an import costs, which way imports run, and the first solve of a new process."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import drago

SOURCE = Path(drago.__file__).parent
HEAVY = ("scipy", "sklearn", "torch", "matplotlib")


def run(code, **environment):
    """Run code in a new process and return what it prints."""
    settings = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=settings,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ------------------------------------------------------------------------- import drago


def test_import_needs_numpy_alone():
    loaded = run(
        f"""
        import sys
        import drago
        print([name for name in {HEAVY!r} if name in sys.modules])
        """
    )
    assert loaded == "[]"


def test_import_takes_less_than_three_tenths_of_a_second():
    """NumPy included; the best of a few tries, since other processes share the machine."""
    code = """
        import time
        began = time.perf_counter()
        import drago
        print(time.perf_counter() - began)
        """
    times = []
    for _ in range(20):
        times.append(float(run(code)))
        if min(times) < 0.3:
            break
    assert min(times) < 0.3, times


def test_classes_work_without_scikit_learn():
    out = run(
        """
        import sys
        sys.modules["sklearn"] = None
        import numpy as np
        import drago

        X, y = np.arange(6.0).reshape(3, 2), np.array([0.0, 1.0, 1.0])
        for loss in (drago.Squared(), drago.Huber(2.0), drago.Logistic(), drago.Multinomial()):
            for uncertainty in (drago.CVaR(0.5), drago.Simplex(), drago.Extremile(), drago.ESRM(),
                                drago.Chi2Ball(), drago.KLBall(),
                                drago.Spectrum(integral=lambda u: u)):
                for constraint in (None, drago.L2Ball(1.0), drago.Box(0, 1), drago.NonNegative()):
                    problem = drago.DROProblem(
                        X, y, loss=loss, uncertainty=uncertainty, shift_cost=0.1,
                        constraint=constraint,
                    )
                    assert problem.kappa_q >= 1 - 1e-12
                    assert np.isfinite(problem.smoothness)
        grouped = drago.DROProblem(
            X, y, uncertainty=drago.Grouped("cvar"), groups=["a", "b", "a"], shift_cost=0.1
        )
        print(grouped.n_samples, drago.KL().value(problem.p, problem.p))
        """
    )
    assert out == "3 0.0"


# ------------------------------------------------------------------------ the public names


def test_every_public_name_resolves():
    assert len(set(drago.__all__)) == len(drago.__all__)
    for name in drago.__all__:
        assert getattr(drago, name) is not None, name
    assert dir(drago) == sorted(drago.__all__)


def test_public_names_are_known_to_type_checkers():
    """The lazily loaded names and the block under TYPE_CHECKING are the same list."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    declared = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                declared |= {alias.asname or alias.name for alias in line.names}
    assert declared == set(drago.__all__) - {"__version__"}


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        drago.nothing  # noqa: B018
    assert not hasattr(drago, "_something")


def test_classes_know_their_home():
    for name in drago.__all__:
        value = getattr(drago, name)
        if isinstance(value, type):
            home = importlib.import_module(value.__module__)
            assert getattr(home, name) is value


# ------------------------------------------------------------------- which way imports run

# Each module imports from its own row or from rows above, never from below.
LAYERS = [
    {
        "_version",
        "_validation",
        "_interrupts",
        "_progress",
        "_threads",
        "_frames",
        "_html",
        "synthetic",
        "kernels",
        "files",
    },
    {"terms", "datasets"},
    {"oracles", "sources"},
    {"rows", "intercept"},
    {"problem"},
    {"metric", "certificate", "result"},
    {"loop"},
    {"solvers"},
    {"training", "torch_engine"},
    {"estimators", "scorers"},
    {"advice"},
    {"plotting"},
    {"report"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# Files of models know what is in them.
HIGH = {"files/models.py": "estimators"}
# Files of rooms that are for torch alone, and live without kernels.
ON_TORCH = (
    "rows/device.py", "rows/tensor", "rows/fused", "rows/tables/tensor", "rows/tables/recorded.py",
    "oracles/", "training/", "torch_engine/",
)  # fmt: skip
# But for these, which are for arrays.
ON_ARRAYS = ("oracles/rounds/",)
MOST_LINES = 500
# Top-level imports of other packages, and the modules that may have them.
TOP_LEVEL = {
    "sklearn": {"estimators", "scorers", "advice", "report", "cli"},
    "torch": {"torch_engine", "training", "oracles", "rows"},
    "matplotlib": {"plotting"},
    "scipy": {"kernels", "solvers", "estimators", "scorers", "plotting"},
    "typer": {"cli"},
    "rich": {"cli"},
    "pandas": {"cli"},
    "pyarrow": set(),
}


def imports_of(path):
    """(imported module, whether at the top of the file) for each import that runs."""
    package = ["drago", *path.relative_to(SOURCE).parent.parts]
    found = []

    def visit(node, top):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for other in child.orelse:
                    visit(ast.Module([other], []), top)
                continue
            if isinstance(child, ast.Import):
                found.extend((alias.name, top) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                start = package[: len(package) - child.level + 1] if child.level else []
                base = ".".join([*start, *([child.module] if child.module else [])])
                # `from drago import metric` imports a module, `from drago.metric import x` not
                names = [f"{base}.{alias.name}" for alias in child.names]
                found.extend((name if base == "drago" else base, top) for name in names)
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            visit(child, top and not inside)

    visit(ast.parse(path.read_text()), True)
    return found


def room(dotted):
    """The second part of ``drago.room.more``."""
    return dotted.split(".")[1]


def files():
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def home(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


all_files = pytest.mark.parametrize(
    "path", files(), ids=[str(path.relative_to(SOURCE)) for path in files()]
)


def test_the_reader_of_imports_sees_them(tmp_path):
    """The tests below would pass on an empty list."""
    kernel_calls = imports_of(SOURCE / "terms" / "losses.py")
    assert ("drago._validation", True) in kernel_calls
    assert ("drago.kernels", True) in kernel_calls
    assert ("drago.problem", True) not in imports_of(SOURCE / "intercept.py")
    assert ("importlib", True) in imports_of(SOURCE / "kernels" / "__init__.py")


@all_files
def test_imports_run_one_way(path):
    assert home(path) in RANK, f"give {home(path)} its place in LAYERS"
    rank = RANK[HIGH.get(path.relative_to(SOURCE).as_posix(), home(path))]
    for name, _ in imports_of(path):
        if name.split(".")[0] == "drago" and "." in name:
            assert RANK[room(name)] <= rank, f"{home(path)} imports {name}"
        else:
            assert name != "drago", "a module imports the package itself"


@all_files
def test_heavy_packages_are_imported_late(path):
    for name, at_top in imports_of(path):
        package = name.split(".")[0]
        if at_top and package in TOP_LEVEL:
            assert home(path) in TOP_LEVEL[package], f"{home(path)} imports {name} at its top"


def is_on_torch(path):
    name = path.relative_to(SOURCE).as_posix()
    return name.startswith(ON_TORCH) and not name.startswith(ON_ARRAYS)


@all_files
def test_torch_lives_without_kernels_and_others_without_torch(path):
    names = [name for name, _ in imports_of(path)]
    if is_on_torch(path):
        assert not [name for name in names if name.startswith("drago.kernels")]
    elif path != SOURCE / "torch_engine" / "__init__.py":
        assert not [name for name in names if name.split(".")[0] in ("torch", "triton")]


def test_there_is_no_circle_of_imports():
    """Not even by imports inside of functions."""
    modules = {}
    for path in files():
        parts = ("drago", *path.relative_to(SOURCE).with_suffix("").parts)
        modules[".".join(parts).removesuffix(".__init__")] = path
    arrows = {}
    for module, path in modules.items():
        found = {name for name, _ in imports_of(path)}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in found:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        arrows[module] = (found & set(modules)) - {module}
    arrows = {
        module: {name for name in names if not any(more.startswith(name + ".") for more in names)}
        for module, names in arrows.items()
    }
    assert sum(map(len, arrows.values())) > 300  # the reader sees them
    while arrows:
        ends = [module for module, names in arrows.items() if not names & set(arrows)]
        assert ends, f"a circle among {sorted(arrows)}"
        for module in ends:
            del arrows[module]


def test_no_file_is_too_long():
    """By responsibility, not by length; but a file of more lines is asking to be two."""
    long = [path.name for path in files() if len(path.read_text().splitlines()) > MOST_LINES]
    assert long == []


def test_package_itself_imports_nothing_early():
    top = {name for name, at_top in imports_of(SOURCE / "__init__.py") if at_top}
    assert {name.split(".")[0] for name in top} <= {"__future__", "importlib", "typing", "drago"}
    assert {name for name in top if name.startswith("drago")} == {"drago._version"}


# ------------------------------------------------------------------------- the first solve

SOLVE = """
    import time
    began = time.perf_counter()
    import numpy as np
    import drago
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = X @ np.ones(5) + rng.normal(size=200)
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.2), divergence="chi2",
                               shift_cost=0.1)
    result = drago.solve(problem)
    assert result.status == "optimal", result.message
    print(time.perf_counter() - began)
    """


def test_a_solve_that_succeeds_does_not_import_scikit_learn():
    """It costs more than the rest of a first solve, and only a warning needs it."""
    out = run(SOLVE + "\n    import sys\n    print('sklearn' in sys.modules)")
    assert out.splitlines()[-1] == "False"


def test_a_first_solve_compiles_nothing():
    """Neither Numba nor a compiler: the kernels come with the package."""
    out = run(
        SOLVE
        + """
    import sys
    loaded = [name for name in sys.modules if name.startswith("drago.kernels._")]
    print(loaded, bool({"numba", "llvmlite"} & set(sys.modules)))
    """
    )
    assert re.fullmatch(r"\['drago\.kernels\._(v4|v3|plain)'\] False", out.splitlines()[-1])


def test_importing_the_kernels_does_not_load_them():
    code = """
    import sys
    import drago, drago.kernels, drago.problem, drago.solvers.solve
    print([name for name in sys.modules if name.startswith("drago.kernels._")])
    """
    assert run(code) == "[]"


def test_without_kernels_a_message_says_how_to_get_them(tmp_path):
    """As in a checkout that is not installed, or on another processor."""
    copy = tmp_path / "lib" / "drago"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    out = run(
        """
    import drago
    try:
        drago.solve(drago.DROProblem([[1.0], [2.0]], [1.0, 2.0]))
    except ImportError as error:
        print(drago.__file__, "pip install" in str(error))
    """,
        PYTHONPATH=str(copy.parent),
    )
    assert out == f"{copy / '__init__.py'} True"
