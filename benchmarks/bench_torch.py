"""The torch engine: bandwidth of its passes, solves of up to 4e7 rows, bias of robust losses.

Runs where there is PyTorch, with or without the compiled kernels. Data are drawn on the device;
times are the median of five solves after a first one, which compiles; all else is in them.

    python benchmarks/bench_torch.py passes rows losses sets classes precision bias [--csv FOLDER]

and, for the processor's side of the comparison, where they are built:

    python benchmarks/bench_torch.py rows --device arrays --sizes 1e6
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tables import Table, make_tables, parser_of

import drago
from drago.torch_engine import robust_loss

D = 100
TAIL = 0.1
TOL = 1e-4
SIZES = (1e6, 1e7, 4e7)
REPEATS = 20
SOLVES = 5


# ------------------------------------------------------------------------------------- data


def draw(
    n: int,
    device: str,
    dtype: torch.dtype = torch.float32,
    classes: int = 0,
    d: int = D,
    heavy: bool = True,
) -> Any:
    """Features of condition number 1e3, a linear target, with heavy tails or not; or classes."""
    generator = torch.Generator(device=device).manual_seed(0)
    X = torch.empty((n, d), dtype=dtype, device=device)
    y = torch.empty(n, dtype=torch.float64, device=device)
    scale = torch.logspace(0.0, -1.5, d, device=device)
    truth = torch.randn((d, max(classes, 1)), generator=generator, device=device)
    step = max(1, (1 << 22) * D // d)
    for k in range(0, n, step):
        part = torch.randn((min(step, n - k), d), generator=generator, device=device)
        part *= scale
        X[k : k + step] = part
        z = part @ (truth / scale[:, None]) / d**0.5
        size = (part.shape[0], 4 if classes == 0 else classes)
        noise = torch.randn(size, generator=generator, device=device)
        if classes:
            y[k : k + step] = (z + noise).argmax(1).double()
        else:
            # Student's t with 3 degrees of freedom.
            spread = (noise[:, 1:] ** 2).mean(1).sqrt() if heavy else 1.0
            y[k : k + step] = (z[:, 0] + 0.5 * noise[:, 0] / spread).double()
    return X, y


def make_problem(
    n: int,
    device: str,
    dtype: torch.dtype = torch.float32,
    classes: int = 0,
    d: int = D,
    data: Any = None,
    **settings: Any,
) -> Any:
    """The problem of these tables, but for what is set otherwise; `data` are X and y if drawn."""
    X, y = data or draw(n, "cpu" if device == "arrays" else device, dtype, classes, d)
    if settings.get("loss") == "logistic":
        y = (y > y.mean()).to(y)
    if device == "arrays":
        X, y = X.numpy(), y.numpy()
    given = {
        "loss": "multinomial" if classes else "squared",
        "uncertainty": drago.CVaR(TAIL),
        "divergence": "chi2",
        "shift_cost": 0.05,
        "l2_reg": 1e-3,
    }
    return drago.DROProblem(X, y, **(given | settings))


# ----------------------------------------------------------------------------------- clocks


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any], device: str, repeats: int = REPEATS) -> float:
    """The median of so many runs, after two that are not counted."""
    for _ in range(2):
        work()
    times = []
    for _ in range(repeats):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def free(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def copy_bandwidth(device: str) -> float:
    """Bytes a second, read and written, of a copy of 4 GB (less on a processor)."""
    size = 1 << (29 if device == "cuda" else 26)
    source = torch.zeros(size, dtype=torch.float64, device=device)
    target = torch.empty_like(source)
    return 16.0 * size / seconds(lambda: target.copy_(source), device)


# ----------------------------------------------------------------------------------- tables


def passes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time of the parts of an iteration, and the share of the bandwidth of a copy they reach."""
    device = options.device
    ceiling = copy_bandwidth(device)
    print(f"a copy moves {ceiling / 1e12:.2f} TB/s\n")
    table = Table({"rows": "9d", "part": "34s", "ms": "9.3f", "GB": "8.3f", "share": "7.2f"})
    for n in map(int, options.sizes):
        for name, (work, size) in _parts(make_problem(n, device)).items():
            taken = seconds(work, device)
            share = size / taken / ceiling
            row = {"rows": n, "part": name, "ms": 1e3 * taken, "GB": size / 1e9, "share": share}
            table.add(row)
        del work
        free(device)
    return table.rows


def _parts(problem: Any) -> dict[str, tuple[Callable[[], Any], float]]:
    """What to time, and the bytes that it has to read and write: X, and vectors of the rows."""
    n = problem.n_samples
    w, b = np.random.default_rng(0).normal(size=(D, 1)), np.zeros(1)
    ev, oracle = problem.evaluate(w, b), problem.dual_oracle()
    q = oracle.weights(ev.losses, problem.nu)
    tail = float((q > 0).sum()) / n
    everything, vector = n * D * problem.X.element_size(), 8 * n
    return {
        "losses and slopes of all rows": (lambda: problem.evaluate(w, b), everything + 4 * vector),
        "gradient, all rows of weight": (
            lambda: problem.gradient(ev, problem.p),
            everything + 2 * vector,
        ),
        f"gradient, {100 * tail:.0f} % of weight": (
            lambda: problem.gradient(ev, q),
            tail * everything + 2 * vector,
        ),
        "weights (dual step)": (lambda: oracle.weights(ev.losses, problem.nu), 2 * vector),
        "a pass: losses, weights, gradient": (
            lambda: _full_pass(problem, oracle, w, b),
            (1.0 + tail) * everything + 8 * vector,
        ),
    }


def _full_pass(problem: Any, oracle: Any, w: Any, b: Any) -> Any:
    ev = problem.evaluate(w, b)
    return problem.gradient(ev, oracle.weights(ev.losses, problem.nu))


SOLVERS = {
    "drago": drago.Drago(),
    "auto": "auto",
    "lbfgs, full batch": drago.LBFGS(),
}


def _solve(table: Table, n: int, name: str, problem: Any, device: str, **more: Any) -> None:
    solver = SOLVERS[name]
    drago.solve(problem, solver, tol=TOL)
    wait(device)
    results = [drago.solve(problem, solver, tol=TOL) for _ in range(SOLVES)]
    result = sorted(results, key=lambda result: result.time)[SOLVES // 2]
    row = {
        "rows": n,
        "solver": name,
        "seconds": result.time,
        "passes": result.n_passes,
        "n_iter": result.n_iter,
        "gap": result.rel_gap,
        "status": result.status.value,
    }
    if "base" in more:
        more["ratio"] = result.time / more["base"] if more["base"] else 1.0
    table.add(row | more)


_COLUMNS = {
    "rows": "9d", "solver": "18s", "seconds": "9.4f", "passes": "8.1f", "n_iter": "7d",
    "gap": "9.1e", "status": "10s",
}  # fmt: skip


def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Squared loss, d = 100, float32, CVaR 0.1, to a certified 1e-4."""
    table = Table(_COLUMNS)
    for n in map(int, options.sizes):
        problem = make_problem(n, options.device)
        for name in SOLVERS:
            _solve(table, n, name, problem, options.device)
        del problem
        free(options.device)
    return table.rows


WIDTHS = (100, 200, 256, 300, 400, 1000)


def losses(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Losses and numbers of features, CVaR 0.1; by the time of `auto` with the squared loss."""
    table = Table({"d": "5d", "loss": "12s", **_COLUMNS, "ratio": "7.2f"})
    n, device = int(min(options.sizes)), options.device
    for d in WIDTHS[:2] if options.quick else WIDTHS:
        data, base = draw(n, "cpu" if device == "arrays" else device, d=d), None
        for loss in ("squared", "huber", "logistic"):
            problem = make_problem(n, device, data=data, loss=loss)
            for name in ("auto", "drago"):
                _solve(table, n, name, problem, device, d=d, loss=loss, base=base)
                base = base or table.rows[-1]["seconds"]
            del problem
        del data
        free(device)
    for count in (10,) if options.quick else (10, 100):
        problem = make_problem(n, device, classes=count)
        _solve(table, n, "auto", problem, device, d=D, loss=f"{count} classes")
        del problem
        free(device)
    return table.rows


def sets(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Sets, divergences and settings, d = 100; by the time of `auto` with CVaR 0.1 and chi2."""
    table = Table({"set": "22s", **_COLUMNS, "ratio": "7.2f"})
    n, device, base = int(4 * min(options.sizes)), options.device, None
    # Without heavy tails: the worst of all rows, which a simplex looks for, is then one of many.
    data = draw(n, "cpu" if device == "arrays" else device, heavy=False)
    groups = np.random.default_rng(0).integers(0, 50, n)
    cases: dict[str, dict[str, Any]] = {
        "CVaR 0.1, chi2": {},
        "CVaR 0.1, kl": {"divergence": "kl"},
        "CVaR 0.1, no shift cost": {"shift_cost": 0.0},
        "CVaR 0.1, intercept": {"fit_intercept": True},
        "CVaR 0.1, huber": {"loss": "huber"},
        "CVaR 0.1, logistic": {"loss": "logistic"},
        "Simplex, chi2": {"uncertainty": "simplex"},
        "Simplex, kl": {"uncertainty": "simplex", "divergence": "kl"},
        "Extremile 2, chi2": {"uncertainty": drago.Extremile(2.0)},
        "Extremile 2, kl": {"uncertainty": drago.Extremile(2.0), "divergence": "kl"},
        "ESRM 1, chi2": {"uncertainty": drago.ESRM(1.0)},
        "ESRM 1, kl": {"uncertainty": drago.ESRM(1.0), "divergence": "kl"},
        "50 groups, CVaR": {"uncertainty": drago.Grouped(drago.CVaR(TAIL)), "groups": groups},
        "Chi2Ball 1": {"uncertainty": "chi2_ball", "divergence": "auto"},
        "KLBall 0.5": {"uncertainty": "kl_ball", "divergence": "auto"},
    }
    for label, settings in cases.items():
        problem = make_problem(n, device, data=data, **settings)
        for name in ("auto", "drago"):
            _solve(table, n, name, problem, device, set=label, base=base)
            base = base or table.rows[-1]["seconds"]
        del problem
        free(device)
    return table.rows


def classes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Multinomial loss with 10 classes, d = 100, float32, CVaR 0.1, to a certified 1e-4."""
    table = Table(_COLUMNS)
    n = int(min(options.sizes))
    problem = make_problem(n, options.device, classes=10)
    for name in SOLVERS:
        _solve(table, n, name, problem, options.device)
    return table.rows


def precision(options: argparse.Namespace) -> list[dict[str, Any]]:
    """float32 against float64 features, DRAGO: products are summed in float64 with both."""
    table = Table({"dtype": "8s", **_COLUMNS})
    n = int(min(options.sizes))
    for dtype in (torch.float32, torch.float64):
        problem = make_problem(n, options.device, dtype)
        _solve(table, n, "drago", problem, options.device, dtype=str(dtype).removeprefix("torch."))
        del problem
        free(options.device)
    return table.rows


def bias(options: argparse.Namespace) -> list[dict[str, Any]]:
    """By how much robust losses of batches fall short of that of all rows, on average.

    As a share of what robustness adds to the mean loss; exponential losses of mean 1.
    """
    device = "cpu" if options.device == "arrays" else options.device
    kinds = {
        "CVaR 0.5": (drago.CVaR(0.5), 0.0),
        "CVaR 0.1": (drago.CVaR(0.1), 0.0),
        "CVaR 0.1, shift cost 1": (drago.CVaR(0.1), 1.0),
        "chi2 ball 1": (drago.Chi2Ball(1.0), 0.0),
        "KL ball 0.5": (drago.KLBall(0.5), 0.0),
    }
    generator = torch.Generator(device=device).manual_seed(0)
    n, batches = 1 << 18, 200 if options.quick else 4000
    losses = torch.rand(n, generator=generator, device=device, dtype=torch.float64).log().neg()
    table = Table({"set": "24s", "batch": "6d", "robust": "8.3f", "short_by": "9.3f"})
    for name, (uncertainty, cost) in kinds.items():
        settings = {"uncertainty": uncertainty, "shift_cost": cost}
        whole = float(robust_loss(losses, **settings))
        for size in (16, 64, 256, 1024):
            found = 0.0
            for _ in range(batches):
                places = torch.randint(n, (size,), generator=generator, device=device)
                some = losses[places]
                # The mean of a batch has no bias, and much of the noise.
                found += float(robust_loss(some, **settings) - some.mean()) / batches
            short = 1.0 - found / (whole - float(losses.mean()))
            table.add({"set": name, "batch": size, "robust": whole, "short_by": short})
    return table.rows


TABLES = {
    "passes": passes, "rows": rows, "losses": losses, "sets": sets, "classes": classes,
    "precision": precision, "bias": bias,
}  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__, TABLES)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help="a device of torch, or 'arrays'")
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="rows")
    options = parser.parse_args()
    if options.quick:
        options.sizes = [1e4]
    name = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    print(f"torch {torch.__version__}, {name}")
    make_tables(TABLES, options)


if __name__ == "__main__":
    main()
