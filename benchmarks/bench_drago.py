"""DRAGO in numbers, a table a question; one thread, one process, compilation left out.

    grid         every default over the grid of the paper's data: is anything left to tune?
    paper        the paper's setting: against Algorithm 2 as its authors run it, and L-BFGS (torch)
    conditioned  ill-conditioned data: against L-BFGS, plain and in DRAGO's own metric
    pass         a pass over the rows against two products with X, and how it grows with n
    small        what small solves are made of: products by columns, the metric of a few features
    memory       what a solve allocates, in vectors of length n
    sparse       iterations on CSR: do they follow the nonzeros, or n d?
    threads      two threads against one: time, and the same bits
    ablation     DRAGO with one thing changed at a time

What is compared is run in turn in one process, and the best of three runs counts (of more where
they are short, of fewer where they are long). Times of `drago.solve` include its certificates.

    DRAGO_DATA_DIR=... python benchmarks/bench_drago.py TABLE [TABLE ...] [--csv FOLDER] [--quick]
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import lagged_baseline as lagged  # noqa: E402
import numpy as np  # noqa: E402
import published_baseline as published  # noqa: E402
import scipy.sparse  # noqa: E402
from tables import Table, Tables, make_tables, parser_of  # noqa: E402

import drago  # noqa: E402
from drago.datasets import load, make_synthetic  # noqa: E402
from drago.metric import make_metric  # noqa: E402
from drago.solvers.drago.iterations import Iterations  # noqa: E402
from drago.solvers.drago.steps import Steps  # noqa: E402
from drago.solvers.drago.variants import SupportIterations  # noqa: E402

DATA = ["yacht", "energy", "concrete", "kin8nm", "power", "acsincome1k", "emotion"]
SETS = [
    ("CVaR 0.75", drago.CVaR(0.75), ("chi2", "kl")),
    ("CVaR 0.1", drago.CVaR(0.1), ("chi2", "kl")),
    ("extremile 2", drago.Extremile(2.0), ("chi2", "kl")),
    ("ESRM 1", drago.ESRM(1.0), ("chi2", "kl")),
    ("chi2 ball 1", drago.Chi2Ball(1.0), ("chi2",)),
    ("KL ball 0.5", drago.KLBall(0.5), ("kl",)),
]
DRAGO = drago.Drago(n_threads=1)

Result = TypeVar("Result")

# How often something is run: three times, more often while it took less than SHORT seconds in all,
# no more once it took LONG.
ROUNDS, MOST_ROUNDS = 3, 20
SHORT, LONG = 1.0, 10.0
# What takes less than a millisecond depends on what ran before it: whoever's turn it is repeats it
# for so long.
TURN = 0.02


def in_turn(
    runs: dict[str, Callable[[], Result]],
    seconds: Callable[[Result], float],
    most: int = MOST_ROUNDS,
    short: float = SHORT,
    turn: float = 0.0,
    first: dict[str, float] | None = None,
) -> dict[str, Result]:
    """The fastest of several runs of each; they take turns, for a machine is not steady.

    A run without result, whose `seconds` are infinite, is not repeated. A turn lasts `turn` seconds
    or a run; `first` receives the least seconds of the first run of a turn.
    """
    best: dict[str, Result] = {}
    first = {} if first is None else first
    spent = dict.fromkeys(runs, 0.0)
    left = list(runs)
    for rounds in range(1, most + 1):
        for name in left:
            began, taken, results = time.perf_counter(), 0.0, []
            while taken <= turn and not (results and np.isinf(seconds(results[-1]))):
                results.append(runs[name]())
                taken = time.perf_counter() - began
            spent[name] += taken
            first[name] = min(seconds(results[0]), first.get(name, np.inf))
            best[name] = min([*results, best.get(name, results[0])], key=seconds)
        enough = LONG if rounds < ROUNDS else short
        left = [name for name in left if spent[name] < enough and seconds(best[name]) < np.inf]
    return best


def solve(
    problem: drago.DROProblem, solver: Any, tol: float, time_limit: float
) -> drago.SolverResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return drago.solve(problem, solver, tol=tol, time_limit=time_limit)


def solve_in_turn(
    problem: drago.DROProblem, solvers: dict[str, Any], tol: float, time_limit: float
) -> dict[str, drago.SolverResult]:
    runs = {
        name: lambda solver=solver: solve(problem, solver, tol, time_limit)
        for name, solver in solvers.items()
    }
    # What is not certified is no result, however fast.
    return in_turn(runs, lambda result: result.time if certified(result) else np.inf)


def certified(result: drago.SolverResult) -> bool:
    return result.status == "optimal"


def timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def shown(result: drago.SolverResult, scale: float = 1.0) -> float | str:
    """The time of a solve; with a mark where the tolerance was not certified."""
    taken = scale * result.time
    return taken if certified(result) else f"not: {taken:.3g}"


# -------------------------------------------------------------------------------------- grid


def rows(data: str, tol: float, time_limit: float) -> Iterator[dict[str, Any]]:
    prepared = load(data, prepare="paper")
    loss = "multinomial" if prepared.task == "multiclass" else "squared"
    n = prepared.y.size
    grid = itertools.product((1.0, 1e-2, 1e-4), (1.0 / n, 1e-3, 0.1), SETS)
    for l2_reg, shift_cost, (name, uncertainty, divergences) in grid:
        for divergence in divergences:
            problem = drago.DROProblem(
                prepared.X,
                prepared.y,
                loss=loss,
                uncertainty=uncertainty,
                divergence=divergence,
                shift_cost=shift_cost,
                l2_reg=l2_reg,
            )
            row: dict[str, Any] = {
                "data": data,
                "l2_reg": l2_reg,
                "shift_cost": shift_cost,
                "set": name,
                "divergence": divergence,
            }
            solvers = {"drago": DRAGO, "lbfgs": "lbfgs"}
            for solver, result in solve_in_turn(problem, solvers, tol, time_limit).items():
                row[f"{solver}_status"] = str(result.status)
                row[f"{solver}_rel_gap"] = result.rel_gap
                row[f"{solver}_passes"] = result.n_passes
                row[f"{solver}_time"] = result.time
            yield row


def grid(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Each data set x l2_reg x shift_cost x set, to a certified 1e-5; time by that of L-BFGS."""
    summary = Table(
        {
            "data": "12s",
            "certified": "9d",
            "cases": "5d",
            "median_passes": "6.0f",
            "largest": "6.0f",
            "median_by_lbfgs": "6.1f",
            "90%": "6.1f",
            "largest_by_lbfgs": "6.1f",
        }
    )
    found: list[dict[str, Any]] = []

    def summarise(data: str, cases: list[dict[str, Any]]) -> None:
        passes = np.array([row["drago_passes"] for row in cases])
        ratios = np.array([row["drago_time"] / row["lbfgs_time"] for row in cases])
        summary.add(
            {
                "data": data,
                "certified": sum(row["drago_status"] == "optimal" for row in cases),
                "cases": len(cases),
                "median_passes": np.median(passes),
                "largest": passes.max(),
                "median_by_lbfgs": np.median(ratios),
                "90%": np.quantile(ratios, 0.9),
                "largest_by_lbfgs": ratios.max(),
            }
        )

    for data in options.data or (["yacht", "concrete"] if options.quick else DATA):
        cases = list(rows(data, 1e-5, options.time_limit or 30.0))
        summarise(data, cases)
        found += cases
    summarise("all", found)
    failed = [row for row in found if {row["drago_status"], row["lbfgs_status"]} != {"optimal"}]
    print(f"\nnot certified by one or both: {len(failed)}")
    if failed:
        columns = {"data": "12s", "set": "12s", "divergence": "4s", "l2_reg": "7.0e"}
        columns |= {"shift_cost": "7.1e", "drago_status": "11s", "drago_rel_gap": "8.1e"}
        columns |= {"drago_time": "6.2f", "lbfgs_status": "11s", "lbfgs_rel_gap": "8.1e"}
        table = Table(columns | {"lbfgs_time": "6.2f"})
        for row in failed:
            table.add(row)
    return found


# ------------------------------------------------------------------------------------- paper


def papers_problem(data: str) -> drago.DROProblem:
    """CVaR 0.75, chi2, mu = 1, nu = 1 in the paper's scale, no intercept."""
    prepared = load(data, prepare="paper")
    return drago.DROProblem(
        prepared.X,
        prepared.y,
        loss="multinomial" if prepared.task == "multiclass" else "squared",
        uncertainty=drago.CVaR(0.75),
        divergence="chi2",
        shift_cost=1.0 / prepared.y.size,
        l2_reg=1.0,
    )


def paper(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time to a normalised suboptimality of 1e-6 in the paper's setting.

    The baselines are Algorithm 2 with tables of gradients, blocks of n/d rows and sorting, with the
    best step size of the paper's grid; neither its search nor their looks at the suboptimality are
    in their time. One is written as the published code is, with NumPy and (torch) with its PyTorch;
    the other is lean; the steps are the same. For drago and lbfgs it is the time to certify 1e-6;
    first is that of drago right after the others, which find it a cold cache.
    """
    limit = options.time_limit or 60.0
    table = Table(
        {
            "data": "9s",
            "n": "6d",
            "d": "4d",
            "step_size": "6g",
            "blocks": "6d",
            "published_ms": "9.1f",
            "torch_ms": "9.1f",
            "lean_ms": "9.1f",
            "drago_ms": "9.2f",
            "first_ms": "9.2f",
            "lbfgs_ms": "9.2f",
            "published/drago": "7.1f",
            "published/first": "7.1f",
            "torch/drago": "7.1f",
            "lean/drago": "7.1f",
            "drago/lbfgs": "7.2f",
        }
    )
    names = ["yacht", "concrete", "kin8nm", "power", "emotion"]
    for data in options.data or (names[:3] if options.quick else names):
        table.add({"data": data} | paper_row(papers_problem(data), 1e-6, limit))
    return table.rows


# Seconds that each step size of the baseline gets to show what it can.
SEARCH = 5.0


def paper_row(problem: drago.DROProblem, target: float, limit: float) -> dict[str, Any]:
    PublishedTorch = published_torch()
    suboptimality = measure_of(problem)
    d, outputs = problem.n_features, problem.n_outputs
    sigma = lagged.cvar_spectrum(problem.n_samples, 0.75)
    arguments = (problem.X, problem.y, problem.loss.name, sigma, problem.mu, problem.nu)

    def baseline(alpha: float, n_blocks: int, *limits: float, kind: Any = lagged.Lagged) -> Any:
        return lagged.run_to(
            lambda: kind(*arguments, alpha, n_blocks), suboptimality, target, *limits
        )

    def best_step(n_blocks: int) -> tuple[float, float, float, int]:
        """By iterations, which do not depend on the machine; otherwise the nearest."""
        best, chosen = (np.inf, np.inf, np.inf), np.nan
        for alpha in lagged.STEP_SIZES:
            found = baseline(alpha, n_blocks, SEARCH, best[0])
            iterations = found.iterations if found.reached else np.inf
            seconds = found.seconds if found.reached else np.inf
            if (iterations, found.suboptimality) < best[:2]:
                best, chosen = (iterations, found.suboptimality, seconds), alpha
        return best[2], best[1], chosen, n_blocks

    lagged.isotonic(sigma)  # compiles
    published.isotonic(sigma)
    # The paper's d counts unknowns; with several classes, features may be the better choice.
    _, _, alpha, n_blocks = min(best_step(count) for count in {d, d * outputs})
    runs: dict[str, Callable[[], Any]] = {
        "published": lambda: baseline(alpha, n_blocks, limit, kind=published.Published),
        "torch": lambda: baseline(alpha, n_blocks, limit, kind=PublishedTorch),
        "lean": lambda: baseline(alpha, n_blocks, limit),
        "drago": lambda: solve(problem, DRAGO, target, limit),
        "lbfgs": lambda: solve(problem, "lbfgs", target, limit),
    }
    first: dict[str, float] = {}
    found = in_turn(
        runs, lambda run: getattr(run, "time", None) or run.seconds, turn=TURN, first=first
    )
    ours, lbfgs = found["drago"], found["lbfgs"]
    row: dict[str, Any] = {
        "n": problem.n_samples,
        "d": d * outputs,
        "step_size": alpha,
        "blocks": n_blocks,
    }
    for name in ("published", "torch", "lean"):
        more = "" if found[name].reached else ">"
        row[f"{name}_ms"] = f"{more}{1e3 * found[name].seconds:.1f}"
        row[f"{name}/drago"] = f"{more}{found[name].seconds / ours.time:.1f}"
    return row | {
        "published/first": found["published"].seconds / first["drago"],
        "drago_ms": shown(ours, 1e3),
        "first_ms": 1e3 * first["drago"],
        "lbfgs_ms": shown(lbfgs, 1e3),
        "drago/lbfgs": ours.time / lbfgs.time,
        "drago_suboptimality": suboptimality(problem.to_internal(ours.coef)[0]),
        "lbfgs_suboptimality": suboptimality(problem.to_internal(lbfgs.coef)[0]),
    }


def published_torch() -> Any:
    """The baseline in PyTorch; this is the only table here that needs it."""
    import torch
    from published_torch import PublishedTorch

    torch.set_num_threads(1)
    return PublishedTorch


def measure_of(problem: drago.DROProblem) -> Callable[[Any], float]:
    """``(P(w) - P*) / (P(0) - P*)`` as a function of w."""
    optimum = solve(problem, "lbfgs", 1e-12, 60.0)
    assert optimum.rel_gap < 1e-9, optimum
    oracle = problem.dual_oracle()
    b = np.zeros(problem.n_outputs)

    def suboptimality(w: Any) -> float:
        w = np.reshape(w, (problem.n_features, problem.n_outputs))
        losses = problem.evaluate(w, b).losses
        value = problem.primal(w, losses, oracle.weights(losses, problem.nu))
        return (value - optimum.primal) / (problem.reference[0] - optimum.primal)

    return suboptimality


# ------------------------------------------------------------------------------- conditioned


def ill_conditioned(data: Any, tail_fraction: float, shift_cost: float = 0.05) -> drago.DROProblem:
    return drago.DROProblem(
        data.X,
        data.y,
        uncertainty=drago.CVaR(tail_fraction),
        divergence="chi2",
        shift_cost=shift_cost,
        l2_reg=1e-4,
    )


def conditioned(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Features of condition number 1e3, l2_reg 1e-4, to a certified 1e-4."""
    solvers = {
        "drago": DRAGO,
        "lbfgs": drago.LBFGS(),
        "metric": drago.LBFGS(metric="auto", progressive=True),
    }
    columns = {"n": "8d", "d": "4d", "tail": "5.1f", "shift_cost": "7g"}
    columns |= {f"{solver}_s": "8.3f" for solver in solvers}
    columns |= {f"{solver}_passes": "6.1f" for solver in solvers}
    table = Table(columns | {"lbfgs/drago": "7.2f", "metric/drago": "7.2f"})
    for n in (10**5,) if options.quick else (10**5, 10**6):
        for d in (20, 50, 200):
            data = make_synthetic(n, d, condition_number=1e3, random_state=0)
            if not table.rows:
                for tail, solver in itertools.product((0.1, 0.5), solvers.values()):
                    solve(ill_conditioned(data, tail), solver, 1e-4, 60.0)  # compiles
            for tail, shift_cost in itertools.product((0.1, 0.5), (0.05, 1e-3)):
                problem = ill_conditioned(data, tail, shift_cost)
                results = solve_in_turn(problem, solvers, 1e-4, options.time_limit or 300.0)
                row: dict[str, Any] = {"n": n, "d": d, "tail": tail, "shift_cost": shift_cost}
                for solver, result in results.items():
                    row[f"{solver}_s"] = shown(result)
                    row[f"{solver}_passes"] = result.n_passes
                for solver in ("lbfgs", "metric"):
                    row[f"{solver}/drago"] = results[solver].time / results["drago"].time
                table.add(row)
            del data, problem
    return table.rows


# -------------------------------------------------------------------------------------- pass


# Epochs before a pass is timed: as many for any n, for the weights settle as they go.
SETTLED = 20


class Running:
    """DRAGO's iterations on a problem, warmed up, in portions of an epoch."""

    def __init__(
        self, problem: drago.DROProblem, kind: type[Iterations], metric: str = "auto"
    ) -> None:
        self.n = problem.n_samples
        self.tables = problem.rows.tables(problem, kind.kind, 20, 1)
        zero = np.zeros((problem.n_features, problem.n_outputs)), np.zeros(problem.n_outputs)
        start = problem.evaluate(*zero)
        self.state = kind(problem, self.tables, make_metric(problem, metric), None, start)
        self.state.steps = Steps(0.02, 0.02, True)
        self.dual = 0.0
        self.tables.reweigh = self.clocked(self.tables.reweigh)
        self.rng = np.random.default_rng(0)
        self.first, *_ = self.epoch()
        for _ in range(SETTLED):
            self.epoch()

    def clocked(self, weigh: Callable[..., None]) -> Callable[..., None]:
        """A dual step with a clock."""

        def run(*arguments: Any) -> None:
            self.dual += timed(lambda: weigh(*arguments))

        return run

    def epoch(self) -> tuple[float, float, float]:
        """Seconds a pass, of which dual steps, and seconds an iteration."""
        visits, self.dual = self.state.visits, 0.0
        draws = self.rng.integers(0, self.tables.count, size=(self.tables.count, 2)).tolist()
        began = time.perf_counter()
        for i, j in draws:
            self.state.step(i, j)
        spent = time.perf_counter() - began
        passes = (self.state.visits - visits) / self.n
        return spent / passes, self.dual / passes, spent / len(draws)


def products(X: Any) -> Callable[[], float]:
    """Times ``X @ w`` and ``X.T @ r``."""
    w, r = np.ones(X.shape[1]), np.ones(X.shape[0])

    def run() -> None:
        X @ w
        X.T @ r

    return lambda: timed(run)


def cost_of_pass(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A pass (n visits to rows, by blocks I, J and K; dual steps included) against X w and X' r.

    20 blocks, CVaR 0.1 with chi2. "blocks" is the paper's primal gradient, "support" the exact one
    from the rows that carry weight. Below the first lines: d = 20 for growing n. The first passes
    of a run, when the weights of many rows change, have a column of their own.
    """
    table = Table(
        {
            "primal": "8s",
            "n": "9d",
            "d": "4d",
            "pass_ms": "9.2f",
            "dual_share": "6.2f",
            "products_ms": "9.2f",
            "pass/products": "6.2f",
            "pass_ns_a_row": "7.1f",
            "first_ns_a_row": "7.1f",
            "products_ns_a_row": "7.1f",
        }
    )
    kinds: dict[str, type[Iterations]] = {"blocks": Iterations, "support": SupportIterations}
    sizes = [(10**6, 50), *((n, 20) for n in (10**5, 10**6, 10**7))]
    for kind in kinds.values():
        Running(ill_conditioned(plain_data(10**5, 20), 0.1), kind)  # compiles
    for n, d in [(10**5, 50), (10**5, 20), (10**6, 20)] if options.quick else sizes:
        problem = ill_conditioned(plain_data(n, d), 0.1)
        for primal, kind in kinds.items():
            state = Running(problem, kind)
            both = products(problem.X)
            both()
            found = in_turn(
                {"pass": state.epoch, "products": lambda both=both: (both(), 0.0, 0.0)},
                lambda times: times[0],
                most=100,
                short=5.0,
            )
            taken, dual, _ = found["pass"]
            reference = found["products"][0]
            table.add(
                {
                    "primal": primal,
                    "n": n,
                    "d": d,
                    "pass_ms": 1e3 * taken,
                    "dual_share": dual / taken,
                    "products_ms": 1e3 * reference,
                    "pass/products": taken / reference,
                    "pass_ns_a_row": 1e9 * taken / n,
                    "first_ns_a_row": 1e9 * state.first / n,
                    "products_ns_a_row": 1e9 * reference / n,
                }
            )
            del state
        del problem
    return table.rows


def plain_data(n: int, d: int) -> Any:
    return make_synthetic(n, d, random_state=0)


# ------------------------------------------------------------------------------------- small


def small(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Microseconds of X w and X' (q s) by BLAS and by columns, and of the metric both ways.

    The products are those of the compiled iterations (`drago.kernels`), a call each; by
    columns they need a copy of X first. The metric is by LAPACK or by the rotations of
    `drago.kernels`, for up to 8 features. What is not in the paper's data is drawn.
    """
    from drago import kernels, metric

    columns = {"data": "9s", "n": "6d", "d": "4d", "blas_us": "8.1f", "by_columns_us": "8.1f"}
    columns |= {"blas/by_columns": "6.1f", "copy_us": "8.1f", "lapack_us": "8.1f"}
    table = Table(columns | {"rotations_us": "8.1f", "lapack/rotations": "6.1f"})
    problems = {name: papers_problem(name) for name in ("yacht", "concrete", "kin8nm", "power")}
    for n, d in ((1000, 20), (1000, 100)):
        problems[f"{n} x {d}"] = ill_conditioned(plain_data(n, d), 0.1)
    few, none = metric.FEW, np.empty((0, 0))
    for name, problem in problems.items():
        X, n, d = problem.X, problem.n_samples, problem.n_features
        by_columns, w, raw, out = np.array(X.T, order="C"), np.ones(d), np.empty(n), np.empty(d)
        q, slopes, weighted = np.full(n, 1.0 / n), np.ones(n), np.empty(n)

        def product(of: Any) -> None:
            kernels.one_block_predict(X, of, w, raw)  # noqa: B023
            kernels.one_block_gradient(X, of, q, slopes, weighted, out)  # noqa: B023

        def decompose(features: int) -> None:
            metric.FEW = features
            make_metric(problem, "full")  # noqa: B023
            metric.FEW = few

        runs: dict[str, Callable[[], None]] = {
            "blas": lambda: product(none),
            "by_columns": lambda: product(by_columns),  # noqa: B023
            "copy": lambda: np.array(X.T, order="C"),  # noqa: B023
            "lapack": lambda: decompose(0),
            "rotations": lambda: decompose(few),
        }
        if d > few:
            del runs["rotations"]
        for run in runs.values():
            run()  # compiles
        clocks = {key: lambda run=run: timed(run) for key, run in runs.items()}
        found = in_turn(clocks, float, turn=TURN)
        row: dict[str, Any] = {"data": name, "n": n, "d": d}
        row |= {f"{key}_us": 1e6 * found[key] for key in found}
        row["blas/by_columns"] = found["blas"] / found["by_columns"]
        rotations = found.get("rotations")
        row["rotations_us"] = None if rotations is None else 1e6 * rotations
        row["lapack/rotations"] = None if rotations is None else found["lapack"] / rotations
        table.add(row)
    return table.rows


# ------------------------------------------------------------------------------------ memory


def memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The peak of what a solve to 1e-4 allocates beyond X, y and the problem (its p, n numbers).

    In vectors of n float64 numbers, d = 20, one output, CVaR 0.1. "allocated" is what NumPy and
    Python ask for, as `tracemalloc` counts it: certificates, tables, the rows that are copied to
    start from and the result, everything but X, y and p. "resident" is by how much the process
    grew at most during another solve, as the system counts it, workspace of compiled code included.
    """
    n, d = 10**6 if options.quick else 10**7, 20
    data = plain_data(n, d)
    table = Table(
        {"solver": "26s", "n": "9d", "allocated": "6.1f", "resident": "6.1f", "seconds": "8.2f"}
        | {"passes": "6.1f"}
    )
    solvers = {
        "drago": DRAGO,
        "drago progressive=False": drago.Drago(progressive=False, n_threads=1),
        "drago primal='blocks'": drago.Drago(primal="blocks", n_threads=1),
        "lbfgs": drago.LBFGS(),
    }
    small = ill_conditioned(plain_data(10**4, d), 0.1)
    for name, solver in solvers.items():
        solve(small, solver, 1e-4, 60.0)  # compiles
        problem = ill_conditioned(data, 0.1)
        before = restart_peak()
        result = solve(problem, solver, 1e-4, 600.0)
        resident = None if before is None else (resident_peak() - before) / (8 * n)
        seconds, passes = shown(result), result.n_passes
        del result
        problem = ill_conditioned(data, 0.1)
        tracemalloc.start()
        solve(problem, solver, 1e-4, 600.0)
        allocated = tracemalloc.get_traced_memory()[1] / (8 * n)
        tracemalloc.stop()
        del problem
        table.add(
            {
                "solver": name,
                "n": n,
                "allocated": allocated,
                "resident": resident,
                "seconds": seconds,
                "passes": passes,
            }
        )
    return table.rows


def restart_peak() -> int | None:
    """Bytes resident now, from where the peak is counted anew; None where Linux is not there."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return resident_peak()
    except OSError:
        return None


def resident_peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


# ------------------------------------------------------------------------------------ sparse


def sparse(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Iterations on CSR data with 20 blocks, CVaR 0.1 with chi2, against X w and X' r (scipy)."""
    n = 10**4 if options.quick else 10**5
    table = Table(
        {
            "n": "7d",
            "d": "7d",
            "nonzeros_a_row": "4d",
            "iteration_ms": "8.3f",
            "pass_ms": "8.2f",
            "products_ms": "8.2f",
            "pass/products": "6.2f",
            "ns_by_nonzeros_+_d": "6.2f",
            "time_by_first": "6.1f",
            "nonzeros_by_first": "6.1f",
            "n_d_by_first": "6.0f",
        }
    )
    first = None
    for d, nonzeros in ((10**3, 50), (10**4, 50), (10**5, 50), (10**5, 10), (10**5, 250)):
        X, y = csr_data(n, d, nonzeros)
        problem = drago.DROProblem(
            X, y, uncertainty=drago.CVaR(0.1), divergence="chi2", shift_cost=0.05, l2_reg=1e-4
        )
        state = Running(problem, Iterations)
        both = products(X)
        both()
        found = in_turn(
            {"pass": state.epoch, "products": lambda both=both: (both(), 0.0, 0.0)},
            lambda times: times[0],
            most=100,
            short=5.0,
        )
        taken, _, iteration = found["pass"]
        first = first or (taken, nonzeros, d)
        table.add(
            {
                "n": n,
                "d": d,
                "nonzeros_a_row": nonzeros,
                "iteration_ms": 1e3 * iteration,
                "pass_ms": 1e3 * taken,
                "products_ms": 1e3 * found["products"][0],
                "pass/products": taken / found["products"][0],
                # Of an iteration, which visits three blocks.
                "ns_by_nonzeros_+_d": 1e9 * iteration / (3 * n // 20 * nonzeros + d),
                "time_by_first": taken / first[0],
                "nonzeros_by_first": nonzeros / first[1],
                "n_d_by_first": d / first[2],
            }
        )
        del X, problem, state
    return table.rows


def csr_data(n: int, d: int, nonzeros: int) -> tuple[Any, Any]:
    """Each row has one nonzero in each of equal ranges of columns."""
    rng = np.random.default_rng(0)
    width = d // nonzeros
    columns = width * np.arange(nonzeros) + rng.integers(0, width, size=(n, nonzeros))
    values = rng.standard_normal(n * nonzeros) / np.sqrt(nonzeros)
    ends = nonzeros * np.arange(n + 1)
    X = scipy.sparse.csr_array((values, columns.reshape(-1), ends), shape=(n, d))
    return X, X @ rng.standard_normal(d) + rng.standard_normal(n)


# ----------------------------------------------------------------------------------- threads


def threads(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A solve to a certified 1e-4 with n_threads 1 and 2; products outside of blocks have one."""
    n, d = 10**5 if options.quick else 10**6, 50
    data = make_synthetic(n, d, condition_number=1e3, random_state=0)
    table = Table(
        {
            "n": "8d",
            "d": "4d",
            "tail": "4.1f",
            "primal": "8s",
            "one_s": "8.3f",
            "two_s": "8.3f",
            "one/two": "6.2f",
            "same_bits": "5s",
        }
    )
    for tail, primal in ((0.1, "support"), (0.5, "blocks")):
        problem = ill_conditioned(data, tail)
        solvers = {
            name: drago.Drago(primal=primal, n_threads=count)
            for name, count in (("one", 1), ("two", 2))
        }
        results = solve_in_turn(problem, solvers, 1e-4, options.time_limit or 120.0)
        one, two = results["one"], results["two"]
        table.add(
            {
                "n": n,
                "d": d,
                "tail": tail,
                "primal": primal,
                "one_s": shown(one),
                "two_s": shown(two),
                "one/two": one.time / two.time,
                "same_bits": "yes" if one.coef.tobytes() == two.coef.tobytes() else "NO",
            }
        )
    return table.rows


# ---------------------------------------------------------------------------------- ablation

# Each changes the default in one way. The second lot takes a number as step size, the best of a
# few, and so goes without safeguard and finish.
CHANGES: dict[str, dict[str, Any]] = {
    "default": {},
    "metric='euclidean'": {"metric": "euclidean"},
    "metric='diagonal'": {"metric": "diagonal"},
    "primal='blocks'": {"primal": "blocks"},
    "primal='support'": {"primal": "support"},
    "progressive=False": {"progressive": False},
    "finish='none'": {"finish": "none"},
    "block_size='n/d'": {"block_size": "n/d"},
    "one block": {"block_size": 10**9, "primal": "support", "refresh": False},
}
WITH_A_STEP: dict[str, dict[str, Any]] = {
    "step_size=...": {},
    "step_size=..., start='paper'": {"start": "paper"},
    "step_size=..., start='paper', tables='lagged'": {"start": "paper", "tables": "lagged"},
    "all of the paper's": {
        "start": "paper",
        "tables": "lagged",
        "metric": "euclidean",
        "primal": "blocks",
        "block_size": "n/d",
    },
}
STEP_SIZES = (0.1, 0.03, 0.3, 0.01, 0.003, 0.001)


def ablation(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time and passes to a certified 1e-4, with one thing changed at a time."""
    limit = options.time_limit or 20.0
    n = 10**4 if options.quick else 10**5
    data = make_synthetic(n, 50, condition_number=1e3, random_state=0)
    problems = {f"{n:.0e} x 50, CVaR {tail}": ill_conditioned(data, tail) for tail in (0.1, 0.5)}
    problems |= {f"{name}, the paper's": papers_problem(name) for name in ("kin8nm", "emotion")}
    table = Table(
        {"problem": "22s", "changed": "46s", "step_size": "6g", "ms": "10.2f", "passes": "8.1f"}
        | {"by_default": "7.2f"}
    )
    for title, problem in problems.items():
        steps: dict[str, float | None] = dict.fromkeys(CHANGES)
        solvers: dict[str, Any] = {
            name: drago.Drago(n_threads=1, **change) for name, change in CHANGES.items()
        }
        for name, change in WITH_A_STEP.items():
            steps[name] = best_step(problem, change, limit)
            solvers[name] = drago.Drago(n_threads=1, step_size=steps[name], **change)
        results = solve_in_turn(problem, solvers, 1e-4, limit)
        usual = results["default"]
        for name, result in results.items():
            table.add(
                {
                    "problem": title,
                    "changed": name,
                    "step_size": steps[name],
                    "ms": shown(result, 1e3),
                    "passes": result.n_passes,
                    "by_default": result.time / usual.time if certified(result) else None,
                }
            )
    return table.rows


def best_step(problem: drago.DROProblem, change: dict[str, Any], limit: float) -> float:
    """The step size that is certified first; where none is in time, the one that comes nearest."""
    best, chosen = (np.inf, np.inf), STEP_SIZES[0]
    for step in STEP_SIZES:
        solver = drago.Drago(n_threads=1, step_size=step, **change)
        result = solve(problem, solver, 1e-4, min(best[0], limit))
        found = result.time if certified(result) else np.inf, result.rel_gap
        if found < best:
            best, chosen = found, step
    return chosen


# -------------------------------------------------------------------------------------- main

TABLES: Tables = {
    "grid": grid,
    "paper": paper,
    "conditioned": conditioned,
    "pass": cost_of_pass,
    "small": small,
    "memory": memory,
    "sparse": sparse,
    "threads": threads,
    "ablation": ablation,
}


def main() -> None:
    parser = parser_of(__doc__, TABLES)
    parser.add_argument("--data", nargs="+", choices=DATA, metavar="NAME", help="of grid, paper")
    parser.add_argument("--time-limit", type=float, help="seconds a solve, where there is a limit")
    make_tables(TABLES, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
