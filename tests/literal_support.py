"""Algorithm 1 with the exact primal gradient, to the letter: slow, all rows in every iteration."""

import numpy as np

import twins


def run(X, y, loss, uncertainty, divergence, nu, ridge, p, blocks, draws, alpha, H):
    """(w, q) after len(draws) iterations from w = 0 and its exact weights.

    Algorithm 1 with v^P replaced by sum_i q_{t-1,i} grad l_i(w_{t-1}); there are no tables of
    gradients then, and no block I. The sequences run as if from long ago. `ridge` is the vector of
    the regularisation of each row of w: an intercept is a last column of ones with ridge 0.
    """
    n, d = X.shape
    M = len(blocks)
    k = 1 if loss != "multinomial" else int(y.max()) + 1
    oracle = uncertainty.oracle(p, divergence)

    def evaluate(w):
        raw = X @ w
        raw = raw if k > 1 else raw[:, 0]
        return twins.losses(loss, y, raw), twins.dlosses(loss, y, raw).reshape(n, k)

    c = 0.0 if M == 1 else 1.0 / (16 * alpha * (1 + alpha) * (M - 1) ** 2)
    history = [np.zeros((d, k))]
    table, _ = evaluate(history[0])
    q, mirror = oracle.step(table, nu, 0.0, np.zeros(n))
    for t, (_, block_j) in enumerate(draws, start=1):
        w = history[-1]
        _, slopes = evaluate(w)
        vP = X.T @ (q[:, None] * slopes)
        past = (1 / alpha - (M - 1) * c) * w
        for s in range(t - M, t - 1):
            past = past + c * history[max(s, 0)]
        w = np.linalg.solve(np.diag(ridge) + H / alpha, H @ past - vP)
        losses, _ = evaluate(w)
        J, K = blocks[block_j], blocks[t % M]
        correction = M / (1 + alpha) * (losses[J] - table[J])
        table = table.copy()
        table[K] = losses[K]
        vD = table.copy()
        vD[J] += correction
        q, mirror = oracle.step(vD, nu, nu / alpha, mirror)
        history.append(w)
    return history[-1], q
