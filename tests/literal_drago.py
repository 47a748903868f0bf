"""Algorithm 1 of the paper, to the letter: slow, with full n x d tables and their history."""

import numpy as np

import twins


def run(
    X,
    y,
    loss,
    uncertainty,
    divergence,
    nu,
    mu,
    p,
    blocks,
    draws,
    alpha,
    stationary,
    H=None,
    dual_alpha=None,
):
    """(w, q) after len(draws) iterations from w = 0.

    `blocks` is a list of index arrays, `draws` a list of (I, J). `stationary` starts the sequences
    a, A as if from long ago and q at the exact weights. With `H` (d x d) the proximal terms use its
    norm instead of mu times the euclidean one. With `dual_alpha` the dual proximal term has its own
    a, A, and both estimators take the a_{t-1}/a_t of the slower ones. The dual steps are
    the library's own oracle, which has witnesses elsewhere.
    """
    n, d = X.shape
    M = len(blocks)
    k = 1 if loss != "multinomial" else int(y.max()) + 1
    H = mu * np.eye(d) if H is None else H

    def evaluate(w):
        raw = X @ w
        raw = raw if k > 1 else raw[:, 0]
        slopes = twins.dlosses(loss, y, raw).reshape(n, k)
        return twins.losses(loss, y, raw), np.einsum("ij,ic->ijc", X, slopes)

    # a_t = (1 + alpha)^t; A_0 = 0 in the paper, or what a geometric past sums up to.
    T = len(draws)

    def sequences(alpha):
        a = np.concatenate([[0.0], (1.0 + alpha) ** np.arange(T)])
        A = np.cumsum(a)
        if stationary:
            a[0] = 1.0 / (1.0 + alpha)
            A = a[1] / alpha + np.concatenate([[0.0], np.cumsum(a[1:])])
        return a, A

    a, A = sequences(alpha)
    dual_a, dual_A = (a, A) if dual_alpha is None else sequences(dual_alpha)
    w_history = [np.zeros((d, k))]
    losses, grads = evaluate(w_history[0])
    q, mirror = p.copy(), (p / p if divergence == "chi2" else np.zeros(n))
    if stationary:
        q, mirror = uncertainty.oracle(p, divergence).step(losses, nu, 0.0, np.zeros(n))
    q_history = [q]
    loss_tables, grad_tables, weight_tables = [losses], [grads], [q.copy()]

    def table(tables, t):
        return tables[max(t, 0)]

    for t in range(1, T + 1):
        block_i, block_j = draws[t - 1]
        w, q = w_history[t - 1], q_history[t - 1]
        _, grads = evaluate(w)
        ratio = max(a[t - 1] / a[t], dual_a[t - 1] / dual_a[t])
        vP = np.einsum("i,ijc->jc", weight_tables[t - 1], grad_tables[t - 1])
        B = blocks[block_i]
        fresh = np.einsum("i,ijc->jc", q[B], grads[B])
        old = np.einsum("i,ijc->jc", table(weight_tables, t - 2)[B], table(grad_tables, t - 2)[B])
        vP = vP + ratio * M * (fresh - old)
        # c_{t-1}/a_t and C_{t-1}/a_t = A_{t-1}/a_t - (M - 1) c_{t-1}/a_t
        c = 0.0 if M == 1 else 1.0 / (16 * alpha * (1 + alpha) * (M - 1) ** 2)
        if t == 1 and not stationary:
            c = 0.0
        C = A[t - 1] / a[t] - (M - 1) * c
        past = C * w
        for s in range(t - M, t - 1):
            past = past + c * w_history[max(s, 0)]
        left = mu * np.eye(d) + (C + (M - 1) * c) * H
        w = np.linalg.solve(left, H @ past - vP)
        losses, grads = evaluate(w)
        K = blocks[t % M]
        new_losses, new_grads = loss_tables[t - 1].copy(), grad_tables[t - 1].copy()
        new_losses[K], new_grads[K] = losses[K], grads[K]
        vD = new_losses.copy()
        B = blocks[block_j]
        vD[B] += ratio * M * (losses[B] - loss_tables[t - 1][B])
        s = dual_A[t - 1] / dual_a[t] * nu
        q, mirror = uncertainty.oracle(p, divergence).step(vD, nu, s, mirror)
        new_weights = weight_tables[t - 1].copy()
        new_weights[K] = q[K]
        w_history.append(w)
        q_history.append(q)
        loss_tables.append(new_losses)
        grad_tables.append(new_grads)
        weight_tables.append(new_weights)
    return w_history[-1], q_history[-1]
