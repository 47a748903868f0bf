"""Tables beside the curves: how the rate depends on the problem, what an iteration costs, kappa_Q.

Each function returns rows, dicts with the same keys.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from linear import LEVELS, places
from methods import BATCH, METHODS, Limits, PlainDrago, Recorder, warm_up, with_step
from optimum import TOLERANCE
from problems import Spec

import drago
from drago.datasets import make_synthetic
from drago.metric import make_metric
from drago.solvers.drago.constants import theory_step
from drago.solvers.drago.iterations import Iterations
from drago.solvers.drago.steps import Steps

sys.path.append(str(Path(__file__).parents[1]))
import lagged_baseline as lagged

Rows = list[dict[str, Any]]

# The rate is measured between these suboptimalities, in iterations for a factor of ten.
_FROM, _TO = 1e-3, 1e-8
# Step sizes that are tried: this factor apart, outwards from a guess, as long as they get better.
_FACTOR = 2.0
_STEPS = (3e-5, 30.0)
_MOST_SECONDS = 12.0
# Step sizes of the comparison of rates: the paper's grid, and as many orders of magnitude below it
# that the grid's end decides nothing.
_GRID = tuple(base * 10.0**k for k in range(0, -7, -1) for base in (3.0, 1.0))


def rates(n: int, d: int, points: dict[str, Sequence[float]]) -> Rows:
    """Iterations a decade with the best step size, as one parameter varies and others stay.

    From the stationary start: with A_0 = 0 the first points are far off, and no step size of the
    grid comes back for a small mu.

    Parameters
    ----------
    n, d : int
        Size of the drawn data.
    points : dict
        The values of "nu" (in the paper's scale), "mu", "kappa" (1 / tail fraction) and "b".
    """
    base = {"nu": 1.0, "mu": 1.0, "kappa": 2.0, "b": float(n // d)}
    rows: Rows = []
    for name, values in dict(points).items():
        guess = None
        for value in values:
            setting = base | {name: float(value)}
            found = _rate(n, d, setting, guess)
            # The step that suits one value is a good guess for the next; not so for blocks.
            known = np.isfinite(found["iterations"]) and name != "b"
            guess = found["step_size"] if known else None
            rows.append({"varied": name, "n": n, "d": d} | setting | found)
    return rows


def _rate(n: int, d: int, setting: dict[str, float], guess: float | None) -> dict[str, Any]:
    spec = Spec("synthetic", "cvar", setting["mu"], setting["nu"], 1.0 / setting["kappa"], n, d)
    problem = spec.build()
    best = drago.solve(problem, tol=TOLERANCE).primal
    block = int(setting["b"])
    tried: dict[float, float] = {}

    def decade(step: float) -> float:
        if step not in tried:
            method = PlainDrago(
                step_size=step, block_size=block, metric="euclidean", primal="blocks",
                start="stationary", n_threads=1,
            )  # fmt: skip
            # A step that needs twice the best one's iterations need not show its end.
            most = 2.0 * min(tried.values(), default=np.inf)
            tried[step] = _iterations_a_decade(method, problem, best, most)
        return tried[step]

    # Outwards from the guess, first down, until two in a row are no better than the best; a guess
    # that diverges only says that it is too large.
    first = 0.3 * block / n if guess is None else guess
    for factor in (1.0 / _FACTOR, _FACTOR):
        step, idle = first, 0
        while idle < 2 and _STEPS[0] < step < _STEPS[1]:
            least = min(tried.values(), default=np.inf)
            better = decade(step) < least
            known = factor > 1 or np.isfinite(min(tried.values()))
            idle = idle + 1 if known and not better and step != first else 0
            step *= factor
    chosen = min(tried, key=lambda step: (tried[step], step))
    iterations = tried[chosen]
    return {
        "iterations": iterations,
        "step_size": chosen,
        "bound": bound(problem, block, setting["nu"]),
    }


def bound(problem: drago.DROProblem, block: int, nu: float) -> float:
    """The paper's ``n/b + kappa_Q L/mu + (n/b) sqrt(n G^2/(mu nu))``, G at w = 0.

    G is the largest gradient at the start: the squared loss has no Lipschitz constant.
    """
    n, mu = problem.n_samples, problem.mu
    zero = np.zeros((problem.n_features, problem.n_outputs))
    slopes = np.abs(problem.evaluate(zero, np.zeros(problem.n_outputs)).dlosses[:, 0])
    G = float((slopes * problem.row_norms).max())
    m = n / block
    return m + problem.kappa_q * problem.smoothness / mu + m * np.sqrt(n * G**2 / (mu * nu))


def _iterations_a_decade(
    method: PlainDrago, problem: drago.DROProblem, best: float, most: float
) -> float:
    limits = Limits(_TO, passes=np.inf, seconds=np.inf, most_seconds=_MOST_SECONDS)
    loop = Recorder(problem, 0, limits, best, certified=False)
    decades = np.log10(_FROM / _TO)
    loop.most_iterations = most * decades if np.isfinite(most) else np.inf
    with np.errstate(all="ignore"):
        loop.run(method)
    share = np.array(loop.curve.suboptimality)
    if loop.curve.end != "target":
        return np.inf
    # The last time that it was above: a noisy curve may touch a level before.
    iterations = np.array(loop.curve.iterations, dtype=float)
    above = np.flatnonzero(share > _FROM)
    first = iterations[above[-1]] if above.size else 0.0
    return float((iterations[-1] - first) / decades)


def linear(n: int, d: int, nus: Sequence[float], passes: float) -> Rows:
    """Calls by n at which the best step size of each method passes the levels of `linear`.

    The best one is that which needs the fewest calls to the last level; where none gets there, that
    which gets lowest. `passes` are the calls by n after which a run is over.
    """
    rows: Rows = []
    for nu in nus:
        problem = Spec("synthetic", "cvar", 1.0, nu, 0.5, n, d).build()
        best = drago.solve(problem, tol=TOLERANCE).primal
        for name in ("lsvrg", "prospect", "drago-n/d", "steady-n/d"):
            entry = METHODS[name]
            settings = entry.make(problem)
            warm_up(with_step(settings, 1e-3), problem, entry)
            found: list[Any] = []
            for step in _GRID:
                # A step that needs twice the best one's calls need not show its end.
                most = min([passes, *(2.0 * place for place, *_ in found)])
                limits = Limits(LEVELS[-1] / 10.0, most, 0.0, _MOST_SECONDS)
                loop = Recorder(problem, 0, limits, best, certified=False)
                with np.errstate(all="ignore"):
                    loop.run(with_step(settings, step))
                share = np.array(loop.curve.suboptimality)
                where = places(np.array(loop.curve.calls) / n, share)
                found.append((where[2], float(share.min()), where, step))
            _, least, where, step = min(found)
            rows.append(
                {"method": name, "n": n, "d": d, "nu": float(nu), "passes": float(passes)}
                | {"step_size": step, "least": least}
                | dict(zip(("first", "middle", "last"), where))
            )
    return rows


def bias(cases: Sequence[tuple[str, int | None, float]], batches: int) -> Rows:
    """The bias of the gradients of SGD's batches at the optimum.

    From each batch the same rows with their exact weights q are taken off, ``sum_B (q_B,i - n q_i /
    |B|) grad l_i``: that has the same mean, because the latter part has no bias, and varies far
    less. `squared` is the product of the means over two halves of the batches, whose expectation is
    the squared norm of the bias, and `deviation` what it would vary by without one; `start` is the
    norm of the gradient at w = 0.
    """
    rows: Rows = []
    for data, size, nu in cases:
        spec = Spec(data, nu=nu, rows=size)
        problem = spec.build()
        coef = drago.solve(problem, tol=TOLERANCE).coef
        ev = problem.evaluate(*problem.to_internal(coef))
        n, X = problem.n_samples, np.asarray(problem.X)
        batch = min(BATCH, n // 2)
        oracle = problem.uncertainty.oracle(np.full(batch, 1.0 / batch), problem.divergence)
        rng = np.random.default_rng(0)
        exact = problem.dual_oracle().weights(ev.losses, problem.nu)
        grads = np.empty((batches, ev.w.size))
        for k in range(batches):
            some = rng.choice(n, batch, replace=False)
            q = oracle.weights(ev.losses[some], problem.nu * n / batch)
            q -= n / batch * exact[some]
            grads[k] = (X[some].T @ (q[:, None] * ev.dlosses[some])).ravel()
        half = batches // 2
        means = grads[:half].mean(0), grads[half : 2 * half].mean(0)
        spread = np.linalg.norm(np.cov(grads, rowvar=False)) / half
        zero = problem.evaluate(np.zeros_like(ev.w), np.zeros(problem.n_outputs))
        q = problem.dual_oracle().weights(zero.losses, problem.nu)
        start = float(np.linalg.norm(X.T @ (q[:, None] * zero.dlosses)))
        rows.append(
            {"data": data, "nu": float(nu), "batches": batches, "batch": batch, "start": start}
            | {"squared": float(np.dot(*means)), "deviation": float(spread)}
        )
    return rows


@dataclass
class TheoremSteps:
    """The sequences of the theorem: a_1 = 1, a_2 = 4 alpha, then a factor 1 + alpha.

    `Steps` has the a_2 = 1 + alpha of the experiments. The constant of c_t is that of the proof, in
    which alpha is four times the theorem's.

    Attributes
    ----------
    a, total : float
        a_t and A_t of the last iteration.
    """

    alpha: float
    a: float = 0.0
    total: float = 0.0

    def __call__(self, t: int, m: int, nu: float) -> tuple[float, float, float, float]:
        before, total = self.a, self.total
        self.a = {1: 1.0, 2: 4.0 * self.alpha}.get(t, (1.0 + self.alpha) * before)
        self.total += self.a
        far = before / (64.0 * self.alpha * max(m - 1, 1) ** 2) if m > 1 else 0.0
        near = total - (m - 1) * far
        return before / self.a, near / self.a, far / self.a, nu * total / self.a


def theorem(n: int, d: int, nus: Sequence[float], lengths: float, seeds: int) -> Rows:
    """Both sides of the theorem's bound after T iterations of its sequences.

    Huber loss, CVaR 0.5, mu = 1, two blocks. `left` is ``A_T mu/4 ||w_T - w*||^2 + A_T nu/4 ||q_T -
    q*||^2``, the mean over seeds: what the bound adds to it, the gaps, is not negative. T is 1, and
    then up to `lengths` times one over the step size.
    """
    rows: Rows = []
    data = make_synthetic(n, d, random_state=0)
    for nu in nus:
        problem = drago.DROProblem(
            data.X, data.y, loss="huber", uncertainty=drago.CVaR(0.5), shift_cost=nu / n, l2_reg=1.0
        )
        best = drago.solve(problem, tol=TOLERANCE)
        w_best = problem.to_internal(best.coef)[0]
        q_best = problem.dual_oracle().weights(problem.evaluate(w_best, np.zeros(1)).losses, nu / n)
        tables = problem.rows.tables(problem, "blocks", 2, 1)
        alpha = theory_step(problem, tables.count)
        start = problem.evaluate(np.zeros((d, 1)), np.zeros(1))
        times = [1, *(int(k / alpha) for k in np.arange(1.0, 2.0 * lengths + 1.0) / 2.0)]
        left, first = np.zeros(len(times)), 0.0
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            metric = make_metric(problem, "euclidean")
            state = Iterations(problem, tables, metric, None, start, "nominal")
            steps = state.steps = TheoremSteps(alpha)
            for k, last in enumerate(times):
                for i, j in rng.integers(0, tables.count, size=(last - state.t, 2)).tolist():
                    state.step(i, j)
                q = state.weights()
                square = np.sum((state.w - w_best) ** 2) + nu * np.sum((q - q_best) ** 2)  # mu = 1
                left[k] += 0.25 * steps.total * square / seeds
                if last == 1:  # the first iteration draws nothing that counts
                    first = float(np.sum(state.w**2))
        right = n * problem.lipschitz**2 / nu * first
        same = {"n": n, "d": d, "nu": float(nu), "step_size": alpha, "seeds": seeds, "right": right}
        rows += [same | {"T": T, "left": float(value)} for T, value in zip(times, left)]
    return rows


# ---------------------------------------------------------------------------- iterations


def costs(cases: Iterable[tuple[int, int, int]], seconds: float) -> Rows:
    """Seconds an iteration of Algorithm 1 for cases (n, d, b)."""
    rows: Rows = []
    for n, d, b in cases:
        state = _iterations(n, d, b)
        rng = np.random.default_rng(0)
        best, spent = np.inf, 0.0
        size = 8
        for _ in range(size):  # compiles, where the cache is empty
            state.step(0, 0)
        while spent < seconds:
            draws = rng.integers(0, state.tables.count, size=(size, 2)).tolist()
            began = time.perf_counter()
            for i, j in draws:
                state.step(i, j)
            taken = time.perf_counter() - began
            spent += taken
            best = min(best, taken / size)
        rows.append({"n": n, "d": d, "b": b, "seconds": best})
    return rows


def _iterations(n: int, d: int, b: int) -> Iterations:
    data = make_synthetic(n, d, random_state=0)
    problem = drago.DROProblem(
        data.X, data.y, uncertainty=drago.CVaR(0.5), shift_cost=1.0, l2_reg=1.0
    )
    tables = problem.rows.tables(problem, "blocks", -(-n // b), 1)
    start = problem.evaluate(np.zeros((d, 1)), np.zeros(1))
    metric = make_metric(problem, "euclidean")
    state = Iterations(problem, tables, metric, None, start, "nominal")
    alpha = 0.1 / tables.count
    state.steps = Steps(alpha, alpha, True)
    for _ in range(2):
        state.step(0, tables.count - 1)
    return state


def memory(n: int, d: int) -> Rows:
    """What the method keeps beside the data, in numbers of eight bytes, for several b.

    "tables of s" is this library (a number a row and the ring of n/b past points), "tables of
    gradients" an implementation in the way of the authors' (two tables n x d).
    """
    rows: Rows = []
    _iterations(100, 2, 10)  # what is compiled is not counted
    for b in (1, 16, n // d):
        tracemalloc.start()
        state = _iterations(n, d, b)
        kept, _ = tracemalloc.get_traced_memory()
        X = 8 * n * (d + 2)  # the data, which are counted with what was made here, and y, p
        del state
        tracemalloc.stop()
        rows.append({"kept": "tables of s", "n": n, "d": d, "b": b, "numbers": (kept - X) / 8})
    data = make_synthetic(n, d, random_state=0)
    tracemalloc.start()
    table = lagged.Lagged(data.X, data.y, "squared", lagged.cvar_spectrum(n, 0.5), 1.0, 1.0, 0.1, d)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    rows.append({"kept": "tables of gradients", "n": n, "d": d, "b": n // d, "numbers": kept / 8})
    del table
    return rows


# ------------------------------------------------------------------------------- kappa_Q


def kappas(sizes: Sequence[int], levels: Sequence[float], radii: Sequence[float]) -> Rows:
    """The largest n q_i that a set allows, attained by its own oracle, and the paper's bound.

    The chi2 ball in two scales: the one of the experiments, ``n/2 ||q - 1/n||^2 <= rho`` (ours),
    and that of the Proposition's proof, ``n ||q - 1/n||^2 <= rho/n``. For the latter `uniform`
    tells whether the uniform weights satisfy what the proof calls equivalent,
    ``||q||^2 <= (1 + rho)/n^2``.
    """
    rows: Rows = []
    for n in sizes:
        p = np.full(n, 1.0 / n)
        spike = np.zeros(n)
        spike[0] = 1.0

        def attained(kind: Any, p: Any = p, spike: Any = spike) -> float:
            return float(p.size * kind.worst_case(spike, 0.0, drago.Chi2(), p)[0])

        for level in levels:
            found = attained(drago.CVaR(level))
            rows.append(_kappa("CVaR", n, level, found, 1.0 / level, True))
        for rho in radii:
            claimed = np.sqrt(1.0 + rho)
            uniform = 1.0 / n <= (1.0 + rho) / n**2
            found = attained(drago.Chi2Ball(rho))
            rows.append(_kappa("chi2 ball", n, rho, found, claimed, uniform))
            found = attained(drago.Chi2Ball(rho / (2.0 * n)))
            rows.append(_kappa("chi2 ball, scale of the proof", n, rho, found, claimed, uniform))
    return rows


def _kappa(
    name: str, n: int, level: float, found: float, claimed: float, uniform: bool
) -> dict[str, Any]:
    return {
        "set": name,
        "n": n,
        "level": float(level),
        "attained": found,
        "claimed": float(claimed),
        "uniform": bool(uniform),
    }


TABLES: dict[str, Callable[..., Rows]] = {
    "rates": rates,
    "linear": linear,
    "bias": bias,
    "theorem": theorem,
    "costs": costs,
    "memory": memory,
    "kappas": kappas,
}
