"""Reference optima from cvxpy and Clarabel.

`worst_case_cvxpy` models the inner maximum as it is written; `solve_problem` solves the whole
min-max problem as one convex program, the inner maximum replaced by its dual.  Sets, losses and
divergences are described as in `twins`; nothing is imported from the package under test.
"""

import itertools
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import cvxpy as cp
import numpy as np

import twins

MAX_SUBSETS = 8  # up to this n a spectral set is written with all its 2^n - 1 constraints


# -------------------------------------------------------------------------------------- solving


def _solve(problem):
    """Solve at the tightest tolerance Clarabel reaches; return "optimal@<tolerance>".

    Shorter steps than the solver's own reach tight tolerances more often.
    """
    for tol, step in itertools.product((1e-12, 1e-11, 1e-10, 1e-9, 1e-8), (0.9, 0.75)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                problem.solve(
                    solver=cp.CLARABEL,
                    tol_gap_abs=tol,
                    tol_gap_rel=tol,
                    tol_feas=tol,
                    max_iter=500,
                    max_step_fraction=step,
                )
        except cp.error.SolverError:
            continue
        if problem.status == cp.OPTIMAL:
            return f"optimal@{tol:g}"
        if problem.status != cp.OPTIMAL_INACCURATE:
            raise RuntimeError(f"reference problem is {problem.status}")
    if problem.status == cp.OPTIMAL_INACCURATE:
        return problem.status
    raise RuntimeError("the reference solver failed at every tolerance")


def _nominal(p, n):
    return np.full(n, 1.0 / n) if p is None else np.asarray(p, dtype=float)


def _is_uniform(p):
    return np.ptp(p) <= 1e-14


def _float_G(set_, x):
    return np.asarray(twins.G(set_, x), dtype=float)


def _group_matrix(labels, p):
    """(index, P, A) with A @ l the p-weighted means of l in each group."""
    index, mass = twins.group_masses(labels, p)
    mass = mass.astype(float)
    A = np.zeros((mass.size, p.size))
    A[index, np.arange(p.size)] = p / mass[index]
    return index, mass, A


def _subsets(n):
    """Indicator matrix of every nonempty proper subset."""
    return np.array(list(itertools.product((0.0, 1.0), repeat=n)))[1:-1]


# ---------------------------------------------------------------------------- the inner maximum


class WorstCase(NamedTuple):
    value: float
    q: np.ndarray
    status: str


def worst_case_cvxpy(set_, u, c, divergence, p=None):
    """max over q in Q of <u, q> - c * Omega(q): (value, q, status).

    u is centred, and u and c are divided by max(max u - min u, c), before the model is built.
    """
    u = np.asarray(u, dtype=float)
    p = _nominal(p, u.size)
    top, scale = u.max(), max(np.ptp(u), c)
    scale = scale if scale > 0 else 1.0
    v, cost = (u - top) / scale, c / scale
    for by_order in (False, True):
        try:
            return _solve_inner(set_, v, cost, divergence, p, by_order, top, scale)
        except RuntimeError:
            if by_order:
                raise
    raise AssertionError("unreachable")


def _solve_inner(set_, v, cost, divergence, p, by_order, top, scale):
    if set_[0] == "grouped":
        index, nominal, A = _group_matrix(set_[2], p)
        inner, order_by = set_[1], A @ v
    else:
        index, nominal, inner, order_by = np.arange(p.size), p, set_, v
    # the unknown q/sqrt(p) keeps chi2 well scaled for tiny p, q itself the rest
    quadratic = inner[0] == "chi2_ball" or (divergence == "chi2" and cost > 0)
    unit = np.sqrt(nominal) if quadratic else np.ones(nominal.size)
    z = cp.Variable(nominal.size, nonneg=True)
    constraints = _membership(inner, z, unit, order_by, nominal, by_order)
    share = p / nominal[index]  # of a row in its group
    q = cp.multiply(share * unit[index], z[index])
    gain = v @ q
    if cost > 0 and divergence == "chi2":
        root = share * unit[index] / np.sqrt(p)
        gain -= cost / 2 * cp.sum_squares(cp.multiply(root, z[index]))
    elif cost > 0 or inner[0] == "kl_ball":  # D(q||p) is modelled once, for cost and ball
        spent = cp.Variable()
        constraints.append(cp.sum(cp.rel_entr(q, p)) <= spent)
        gain -= cost * spent
        if inner[0] == "kl_ball":
            constraints.append(spent <= inner[1])
    problem = cp.Problem(cp.Maximize(gain), constraints)
    status = _solve(problem) + (" by order" if by_order else "")
    return WorstCase(float(problem.value) * scale + top, q.value, status)


def _membership(set_, z, unit, u, p, by_order):
    """Constraints of q = unit z in Q (but for a KL ball's radius).

    by_order (and a nonuniform p with many rows) writes a spectral set for this u only: the
    optimal q/p is monotone in u, and for such q the prefixes in that order are enough.
    """
    n, kind = p.size, set_[0]
    q = cp.multiply(unit, z)
    constraints = [cp.sum(q) == 1]
    if kind == "cvar":
        constraints.append(z <= p / unit / set_[1])
    elif kind == "chi2_ball":
        deviation = cp.multiply(unit / np.sqrt(p), z) - np.sqrt(p)
        constraints.append(cp.norm(deviation) <= np.sqrt(2 * set_[1]))
    elif kind in twins.SPECTRAL and n > 1:
        if n <= MAX_SUBSETS and not by_order:  # q(A) <= G(p(A)) for all A
            A = _subsets(n)
            constraints.append(A @ q <= _float_G(set_, A @ p))
        elif _is_uniform(p) and not by_order:  # permutahedron: q = P^T sigma, P doubly stochastic
            sigma = twins.spectral_masses(set_, p).astype(float)
            P = cp.Variable((n, n), nonneg=True)
            constraints += [cp.sum(P, axis=0) == 1, cp.sum(P, axis=1) == 1]
            constraints.append(q == P.T @ sigma)
        else:
            order = np.argsort(-u, kind="stable")
            mass = np.cumsum(p[order])[:-1]
            upper, lower = order[:-1], order[1:]
            ratio = p[lower] / p[upper]  # q_i / p_i >= q_j / p_j, scaled to coefficients <= 1
            constraints.append(
                cp.multiply(np.minimum(ratio, 1), q[upper])
                >= cp.multiply(np.minimum(1 / ratio, 1), q[lower])
            )
            constraints.append(cp.cumsum(q[order])[:-1] <= _float_G(set_, mass))
    elif kind not in ("simplex", "kl_ball", *twins.SPECTRAL):
        raise ValueError(f"unknown set {set_!r}")
    return constraints


# ----------------------------------------------------------------------------- the whole problem


@dataclass
class Optimum:
    """Solution of one problem.

    value = min(solved, primal): what the solver reported and P(w, b) by the twins, whose
    difference says how far to trust it.  q is read off the multipliers.
    """

    value: float
    w: np.ndarray
    b: float | np.ndarray
    q: np.ndarray
    status: str
    solved: float
    primal: float


def solve_problem(
    X, y, loss, set_, divergence, nu, mu, p=None, fit_intercept=False, constraint=None,
    baseline=None,
):  # fmt: skip
    """(optimum, w, b) of min over w, b of the worst-case loss + mu/2 ||w||^2.

    worst-case loss = max over q in Q of sum q_i loss_i - nu D(q||p); w is (d,), or (k, d) for
    "multinomial", with b a float or (k,).  The baseline is subtracted from the losses.
    constraint on w: None, ("l2_ball", r), ("box", lo, hi) or ("nonnegative",).  Warns if the
    solver's value and P(w, b) differ by more than 1e-7 relative.
    """
    best = solve_problem_detailed(
        X, y, loss, set_, divergence, nu, mu, p, fit_intercept, constraint, baseline
    )
    if abs(best.solved - best.primal) > 1e-7 * max(1.0, abs(best.primal)):
        warnings.warn(f"reference optimum is doubtful: {best}", stacklevel=2)
    return best.value, best.w, best.b


def solve_problem_detailed(
    X, y, loss, set_, divergence, nu, mu, p=None, fit_intercept=False, constraint=None,
    baseline=None,
):  # fmt: skip
    """`solve_problem`, returned as an `Optimum`."""
    X, y = np.asarray(X, dtype=float), np.asarray(y)
    n, d = X.shape
    p = _nominal(p, n)
    baseline = np.zeros(n) if baseline is None else baseline
    multi = loss == "multinomial"
    k = int(y.max()) + 1 if multi else 1
    W = cp.Variable((k, d))
    b = cp.Variable(k)
    constraints = _primal_constraints(W, constraint)
    if not fit_intercept:
        constraints.append(b == 0)
    elif multi:
        constraints.append(cp.sum(b) == 0)  # softmax does not see a common shift
    raw = X @ W.T + np.ones((n, 1)) @ cp.reshape(b, (1, k), order="C")
    l = cp.Variable(n)  # noqa: E741
    constraints.append(l + baseline >= _loss_expression(loss, y, raw if multi else raw[:, 0]))
    penalty = mu / 2 * cp.sum_squares(W) if mu > 0 else 0

    spread = (lambda q: q) if set_[0] != "grouped" else None
    atoms, inner, nominal = l, set_, p
    if set_[0] == "grouped":
        index, nominal, A = _group_matrix(set_[2], p)
        inner = set_[1]
        atoms = cp.Variable(nominal.size)
        constraints.append(atoms >= A @ l)

        def spread(r):
            return p * (r / nominal)[index]

    subsets = _first_subsets(inner, nominal)
    for _ in range(60):
        worst, links, weights = _inner_dual(inner, atoms, divergence, nu, nominal, subsets)
        problem = cp.Problem(cp.Minimize(worst + penalty), constraints + links)
        status = _solve(problem)
        q = weights()
        if subsets is None or nominal.size <= MAX_SUBSETS:
            break
        # cutting planes: if q holds too much anywhere, every prefix in the order of q/p and of l
        order = np.argsort(-(q / nominal), kind="stable")
        mass, held = np.cumsum(nominal[order])[:-1], np.cumsum(q[order])[:-1]
        if np.all(held <= _float_G(inner, mass) + 1e-10):
            break
        prefixes = np.tri(nominal.size)[:-1]
        by_loss = np.argsort(-atoms.value, kind="stable")
        new = [prefixes[:, np.argsort(one)] for one in (order, by_loss)]
        grown = np.unique(np.vstack([subsets, *new]), axis=0)
        if len(grown) == len(subsets):
            break
        subsets = grown
    else:
        raise RuntimeError("the cutting planes of a spectral set did not settle")
    coef = _project(W.value, constraint)
    w = coef if multi else coef[0]
    intercept = b.value if multi else float(b.value[0])
    primal = primal_value(X, y, loss, set_, divergence, nu, mu, p, w, intercept, baseline)
    solved = float(problem.value)
    # P(w) bounds the optimum from above, and is the better of the two where P is smooth
    return Optimum(min(solved, primal), w, intercept, spread(q), status, solved, primal)


def _project(coef, constraint):
    """Remove the solver's rounding: the nearest point of the constraint set."""
    if constraint is None:
        return coef
    kind, *args = constraint
    if kind == "l2_ball":
        return coef * min(1.0, args[0] / max(np.linalg.norm(coef), 1e-300))
    return np.clip(coef, *(args if kind == "box" else (0.0, None)))


def _primal_constraints(coef, constraint):
    if constraint is None:
        return []
    kind, *args = constraint
    if kind == "l2_ball":
        return [cp.norm(cp.vec(coef, order="C")) <= args[0]]
    if kind == "box":
        return [coef >= args[0], coef <= args[1]]
    if kind == "nonnegative":
        return [coef >= 0]
    raise ValueError(f"unknown constraint {constraint!r}")


def _loss_expression(loss, y, raw):
    name = loss if isinstance(loss, str) else loss[0]
    if name == "squared":
        return cp.square(raw - y) / 2
    if name == "huber":
        return cp.huber(raw - y, loss[1]) / 2
    if name == "logistic":
        return cp.logistic(cp.multiply(1.0 - 2.0 * y, raw))
    if name == "multinomial":
        onehot = np.eye(raw.shape[1])[y.astype(int)]
        return cp.log_sum_exp(raw, axis=1) - cp.sum(cp.multiply(onehot, raw), axis=1)
    raise ValueError(f"unknown loss {loss!r}")


def _first_subsets(set_, p):
    """Subsets whose constraints enter a spectral model (None: the set needs none)."""
    if set_[0] not in twins.SPECTRAL or (p.size > MAX_SUBSETS and _is_uniform(p)):
        return None
    return _subsets(p.size) if p.size <= MAX_SUBSETS else np.eye(p.size)


def _inner_dual(set_, l, divergence, nu, p, subsets):  # noqa: E741
    """The dual of max over q in Q of <l, q> - nu D(q||p): (expression, constraints, q).

    Written as  min over v >= l - m of  sigma(v) + (nu D)^*(m),  sigma the support function of Q
    (of the constraints other than the ball's) and, with x = q/p,
      chi2:  (nu D)^*(m) = sum p_i (m_i + m_i^2/(2 nu))
      KL:    (nu D)^*(m) = sum p_i nu exp(m_i/nu - 1).
    A ball adds its multiplier to nu: kappa = nu + lambda, at a cost of radius * lambda.
    sigma(v) is  min tau + sum p_i a_i/t  over a >= 0, a >= v - tau  for CVaR;
    min tau + sum_A G(p(A)) y_A  over y >= 0, tau + sum_{A contains i} y_A >= v_i  for a spectral
    set; min sum alpha + sum beta  over alpha_i + beta_j >= v_i sigma_j  where p is uniform.
    """
    n, kind = p.size, set_[0]
    tau = cp.Variable()
    constraints = []
    if kind == "cvar":
        a = cp.Variable(n, nonneg=True)
        support, value = tau + a, tau + (p / set_[1]) @ a
    elif kind in ("simplex", "chi2_ball", "kl_ball"):
        support, value = tau * np.ones(n), tau
    elif subsets is not None:
        if n == 1:
            support, value = tau * np.ones(1), tau
        else:
            a = cp.Variable(len(subsets), nonneg=True)
            support = tau + subsets.T @ a
            value = tau + _float_G(set_, subsets @ p) @ a
    else:
        sigma = twins.spectral_masses(set_, p).astype(float)
        alpha, beta, support = cp.Variable(n), cp.Variable(n), cp.Variable(n)
        pairs = cp.reshape(alpha, (n, 1), order="C") @ np.ones((1, n))
        pairs = pairs + np.ones((n, 1)) @ cp.reshape(beta, (1, n), order="C")
        constraints.append(pairs >= cp.reshape(support, (n, 1), order="C") @ sigma.reshape(1, n))
        value = cp.sum(alpha) + cp.sum(beta)

    ball = kind in ("chi2_ball", "kl_ball")
    if nu == 0 and not ball:
        link = support >= l
        return value, [*constraints, link], lambda: link.dual_value
    kappa = nu
    if ball:
        kappa = cp.Variable()
        constraints.append(kappa >= nu)
        value = value + set_[1] * (kappa - nu)
    m = cp.Variable(n)
    link = support + m >= l
    if divergence == "chi2":
        scaled = cp.multiply(np.sqrt(p), m)
        if ball:
            value = value + p @ m + cp.quad_over_lin(scaled, 2 * kappa)
        else:
            value = value + p @ m + cp.sum_squares(scaled) / (2 * nu)
    else:
        e = cp.Variable(n)
        constraints.append(cp.ExpCone(m - kappa, kappa * np.ones(n), e))
        value = value + p @ e
    return value, [*constraints, link], lambda: link.dual_value


def primal_value(X, y, loss, set_, divergence, nu, mu, p, w, b=0.0, baseline=0.0):
    """P(w, b) = max over q in Q of <l(w, b), q> - nu D(q||p), + mu/2 ||w||^2, by the twins."""
    X, w = np.asarray(X, dtype=float), np.asarray(w, dtype=float)
    p = _nominal(p, len(X))
    values = twins.losses(loss, y, X @ w.T + b) - baseline
    q = twins.worst_case(set_, values, nu, divergence, p)
    return float(q @ values - nu * twins.divergence_value(divergence, q, p) + mu / 2 * np.sum(w**2))
