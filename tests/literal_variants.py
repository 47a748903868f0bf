"""The paper's Algorithm 2 and its variant for mu >= 0, nu >= 0, to the letter: slow, full tables.

`run_lagged` is Algorithm 2 ("Implementation Version"). How it differs from Algorithm 1, which is
`literal_drago.run(stationary=False)` and which it means to implement:

1. Tables. Algorithm 1 subtracts ghat_{t-2}, qhat_{t-2} (today's tables but for block K_{t-1}) and
   lhat_{t-1} (today's table). Algorithm 2 subtracts second tables ghat_2, qhat_2, lhat_1, into
   which a block is copied only when it is overwritten, so every block of them is one cycle of M
   iterations older than today's. Only block K_{t-1} of ghat_2, qhat_2 has the age it should have;
   no block of lhat_1 has. The expected correction is no longer fresh minus aggregate.
2. beta_t. A_{t-1}/a_t = (1 - (1+alpha)^{1-t})/alpha is divided by a further 1 + alpha, in the
   primal step and in DualProx. beta_bar = c_{t-1}/a_t is the same.
3. Window. what_agg - what_{K_t} = sum of w_s over s = t-M+1..t-1, not t-M..t-2 (w_s = w_0, s < 0):
   w_{t-1} is in, w_{t-M} is out.
4. First iteration. a_0/a_1 is 1/(1 + alpha), not 0. The primal correction vanishes all the same,
   fresh being equal to the second tables; the dual one, M (l_j(w_1) - l_j(w_0))/(1 + alpha), does
   not. beta_bar is not set to 0, but all points are w_0 then, so that this changes nothing.

Readings of what is printed: delta^P is never assigned; by analogy with delta^D it is
M (g^T q[B_I] - ghat_2[B_I]^T qhat_2[B_I]). "lhat_1[J_t]" is lhat_1[B_{J_t}]. The l in
"(l - lhat[B_{K_t}]) e_{B_{K_t}}" is l_t, the losses on B_{K_t}; those on B_{J_t} are meant
elsewhere. n/b is the number M of blocks.

`run_unregularised` is the appendix "Modification for Unregularized Objectives"; see its docstring.
"""

import numpy as np

import twins


def _evaluator(X, y, loss):
    """(d, k) -> losses (n,) and gradients (n, d, k); and k."""
    n, k = X.shape[0], 1 if loss != "multinomial" else int(y.max()) + 1

    def evaluate(w):
        raw = X @ w
        raw = raw if k > 1 else raw[:, 0]
        slopes = twins.dlosses(loss, y, raw).reshape(n, k)
        return twins.losses(loss, y, raw), np.einsum("ij,ic->ijc", X, slopes)

    return evaluate, k


def _dot(weights, grads):
    return np.einsum("i,ijc->jc", weights, grads)


def _mirror(p, divergence):
    """The mirror coordinate of q = p."""
    return np.ones(len(p)) if divergence == "chi2" else np.zeros(len(p))


def run_lagged(X, y, loss, uncertainty, divergence, nu, mu, p, blocks, draws, alpha, H=None):
    """(w, q) after len(draws) iterations of Algorithm 2 from w = 0, q = p.

    `blocks` is a list of index arrays, `draws` a list of (I, J). With `H` (d x d) the proximal
    terms use its norm instead of mu times the euclidean one. The module says how this differs from
    Algorithm 1. The dual steps are the library's own oracle.
    """
    d = X.shape[1]
    M = len(blocks)
    H = mu * np.eye(d) if H is None else H
    oracle = uncertainty.oracle(p, divergence)
    evaluate, k = _evaluator(X, y, loss)

    w, q, mirror = np.zeros((d, k)), p.copy(), _mirror(p, divergence)
    losses, grads = evaluate(w)
    loss_table, loss_table_1 = losses.copy(), losses.copy()
    grad_table_1, grad_table_2 = grads.copy(), grads.copy()
    weight_table_1, weight_table_2 = q.copy(), q.copy()
    w_slots = [w.copy() for _ in range(M)]
    grad_agg = _dot(weight_table_1, grad_table_1)
    w_agg = sum(w_slots)
    beta_bar = 0.0 if M == 1 else 1.0 / (16 * alpha * (1 + alpha) * (M - 1) ** 2)

    for t, (block_i, block_j) in enumerate(draws, start=1):
        block_k = t % M
        I, J, K = blocks[block_i], blocks[block_j], blocks[block_k]  # noqa: E741
        beta = (1 - (1 + alpha) ** (1.0 - t)) / (alpha * (1 + alpha))
        # Primal update; with H = mu I it is the printed
        # w = ((beta - beta_bar (M-1)) w + beta_bar (w_agg - w_K) - vP/mu) / (1 + beta).
        _, grads = evaluate(w)
        delta_p = M * (_dot(q[I], grads[I]) - _dot(weight_table_2[I], grad_table_2[I]))
        vP = grad_agg + delta_p / (1 + alpha)
        past = (beta - beta_bar * (M - 1)) * w + beta_bar * (w_agg - w_slots[block_k])
        w = np.linalg.solve(mu * np.eye(d) + beta * H, H @ past - vP)
        w_agg = w_agg + w - w_slots[block_k]
        w_slots[block_k] = w
        # What will fill the tables.
        losses, grads = evaluate(w)
        # Dual update.
        delta_d = M * (losses[J] - loss_table_1[J])
        vD = loss_table.copy()
        vD[K] = vD[K] + (losses[K] - loss_table[K])
        vD[J] = vD[J] + delta_d / (1 + alpha)
        q, mirror = oracle.step(vD, nu, beta * nu, mirror)
        # All tables.
        grad_table_2[K] = grad_table_1[K]
        grad_table_1[K] = grads[K]
        loss_table_1[K] = loss_table[K]
        loss_table[K] = losses[K]
        weight_table_2[K] = weight_table_1[K]
        weight_table_1[K] = q[K]
        grad_agg = grad_agg + _dot(weight_table_1[K], grad_table_1[K])
        grad_agg = grad_agg - _dot(weight_table_2[K], grad_table_2[K])
    return w, q


def run_unregularised(
    X, y, loss, uncertainty, divergence, nu, mu, p, blocks, draws, G, L, kappa, mu_1, mu_2, nu_1, m
):
    """(w_T, sum_t a_t w_t / A_T, q_T), T = len(draws), from w_0 = 0, q_0 = p, for mu, nu >= 0.

    a_0 = A_0 = c_0 = C_0 = 0, M the number of blocks, and for t = 1, 2, ...

        a_t = min{ (C_{t-1} mu + mu_1) / (12 e kappa L),  (1 + 1/M) a_{t-1},
                   sqrt((A_{t-1} nu + nu_1) min{C_{t-1} mu + mu_1, c_{t-1} mu + mu_2}) / (32 M G) }
        A_t = A_{t-1} + a_t,  c_t = a_t/m,  C_t = A_t - (M-1) c_t
        vP  = ghat_{t-1}^T qhat_{t-1} + (a_{t-1}/a_t) M sum_{i in B_I} (
              q_{t-1,i} grad l_i(w_{t-1}) - qhat_{t-2,i} ghat_{t-2,i} )
        w_t = argmin <vP,w> + (mu/2)||w||^2 + (C_{t-1} mu + mu_1)/(2 a_t) ||w - w_{t-1}||^2
              + (c_{t-1} mu + mu_2)/(2 a_t) sum_{s=t-M}^{t-2} ||w - w_{max(s,0)}||^2
        lhat, ghat <- values at w_t on block K_t = t mod M
        vD  = lhat_t + (a_{t-1}/a_t) M sum_{j in B_J} (l_j(w_t) - lhat_{t-1,j}) e_j
        q_t = argmax_Q <vD,q> - nu D(q||p) - ((A_{t-1} nu + nu_1)/a_t) Bregman_D(q, q_{t-1})
        qhat <- q_t on block K_t

    Scale: the paper's D is 1-strongly convex in the euclidean norm, ours (chi2, uniform p) is n
    times that, so its nu and nu_1 are n times ours: its sqrt(n) G becomes G, its n q_max is kappa.

    Where the text is ambiguous or inconsistent:

    - a_1: as printed the middle term, (1 + 1/M) a_0 = 0, would make it 0: left out. The others are
      0 too where mu_1, mu_2 or nu_1 are, which the text allows for mu > 0 or nu > 0: those that are
      0 are left out as well, and a_1 = 1 (the theorem's) if none is left. The lemmas ask for the
      bounds from t = 2 on only.
    - m: "some parameter"; the text points to the other proof's, where it depends on alpha, for
      which there is no counterpart here. It is an argument; m >= M - 1 keeps C_t >= 0, m >= 5 (M-1)
      gives the telescoping sum that the proof asks for at the fastest growth 1 + 1/M. Only mu > 0
      feels it.
    - M = 1: no sum of past points, hence c = 0 and no c mu + mu_2 in a_t (the text says that its
      condition need not be checked; it writes n/b < 1).
    - lemma lower_initu bounds a_t by C_{t-1}, one_step_u a_{t-1} by the same C_{t-1}: the update
      printed has the former, and so has this.
    - v^P is v^P_t here and v^P_{t-1} in Algorithm 1: the same vector. gamma_t has the factor a_t
      inside, and once more in "sum a_t gamma_t": taken as once, whence the average by a_t.
    - "When mu = 0, we set a_t = mu_1/(12 e n q_max L)" forgets the third term: kept.
    """
    d = X.shape[1]
    M = len(blocks)
    if m < M - 1:
        raise ValueError("m < M - 1 makes C_1 negative")
    oracle = uncertainty.oracle(p, divergence)
    evaluate, k = _evaluator(X, y, loss)

    a, A, c, C = [0.0], [0.0], [0.0], [0.0]
    w_history = [np.zeros((d, k))]
    losses, grads = evaluate(w_history[0])
    q_history, mirror = [p.copy()], _mirror(p, divergence)
    loss_tables, grad_tables, weight_tables = [losses], [grads], [p.copy()]

    for t, (block_i, block_j) in enumerate(draws, start=1):
        near = C[t - 1] * mu + mu_1
        far = c[t - 1] * mu + mu_2 if M > 1 else 0.0
        dual = A[t - 1] * nu + nu_1
        smooth = near / (12 * np.e * kappa * L)
        coupled = np.sqrt(dual * (min(near, far) if M > 1 else near)) / (32 * M * G)
        if t > 1:
            a.append(min(smooth, (1 + 1 / M) * a[t - 1], coupled))
        else:
            a.append(min([bound for bound in (smooth, coupled) if bound > 0], default=1.0))
        A.append(A[t - 1] + a[t])
        c.append(a[t] / m if M > 1 else 0.0)
        C.append(A[t] - (M - 1) * c[t])
        ratio = a[t - 1] / a[t]
        # Primal update.
        w, q = w_history[t - 1], q_history[t - 1]
        _, grads = evaluate(w)
        before = max(t - 2, 0)
        B = blocks[block_i]
        fresh, old = _dot(q[B], grads[B]), _dot(weight_tables[before][B], grad_tables[before][B])
        vP = _dot(weight_tables[t - 1], grad_tables[t - 1]) + ratio * M * (fresh - old)
        pull = near / a[t] * w
        for s in range(t - M, t - 1):
            pull = pull + far / a[t] * w_history[max(s, 0)]
        w = (pull - vP) / (mu + (near + (M - 1) * far) / a[t])
        # Tables of losses and gradients.
        losses, grads = evaluate(w)
        K = blocks[t % M]
        new_losses, new_grads = loss_tables[t - 1].copy(), grad_tables[t - 1].copy()
        new_losses[K], new_grads[K] = losses[K], grads[K]
        # Dual update.
        B = blocks[block_j]
        vD = new_losses.copy()
        vD[B] += ratio * M * (losses[B] - loss_tables[t - 1][B])
        q, mirror = oracle.step(vD, nu, dual / a[t], mirror)
        new_weights = weight_tables[t - 1].copy()
        new_weights[K] = q[K]
        w_history.append(w)
        q_history.append(q)
        loss_tables.append(new_losses)
        grad_tables.append(new_grads)
        weight_tables.append(new_weights)
    w_bar = sum(a[t] * w_history[t] for t in range(1, len(w_history))) / A[-1]
    return w_history[-1], w_bar, q_history[-1]
