"""The methods that DRAGO is compared with, to the letter: slow, full tables, full oracle solves.

One oracle call is one pair (l_i, grad l_i). Each docstring says how many its method makes, and
`_Dense.evaluate` is where they are made, so that a test can count them.

The random choices are arguments, so that a fast implementation can be compared draw by draw. The
coefficients are `w` of shape (d, k) and `b` of shape (k,). Inside they are one array of shape
(d + 1, k): the features have a last column of ones, or of zeros where no intercept is fitted, and
the regularisation of the last row is 0. W is the problem's constraint; where there is one, every
new point is projected onto it. The losses are those of `twins`; the weights are the library's own
oracle, which has witnesses elsewhere.
"""

import numpy as np

import twins


class _Dense:
    """What all methods use of a problem, with nothing but plain dense arrays."""

    def __init__(self, problem):
        self.problem, self.n, self.d = problem, problem.n_samples, problem.n_features
        ones = np.full((self.n, 1), float(problem.fit_intercept))
        self.X = np.hstack([problem.rows.dense(np.arange(self.n)), ones])
        self.ridge = np.full((self.d + 1, 1), problem.mu)
        self.ridge[-1] = 0.0
        name = problem.loss.name
        self.loss = ("huber", problem.loss.delta) if name == "huber" else name

    def evaluate(self, x, rows=None):
        """Losses (m,) and gradients (m, d + 1, k) of some rows, or of all."""
        rows = np.arange(self.n) if rows is None else rows
        X, y = self.X[rows], self.problem.y[rows]
        raw = X @ x
        slopes = twins.dlosses(self.loss, y, raw)
        return twins.losses(self.loss, y, raw), np.einsum("ij,ic->ijc", X, slopes)

    def weights(self, u, c, rows=None):
        """argmax of <u, q> - c Omega(q) over the set, on some rows of equal p or on all."""
        problem, p, groups = self.problem, self.problem.p, self.problem.groups
        if rows is not None:
            p = np.full(len(rows), 1.0 / len(rows))
            groups = None if groups is None else np.unique(groups[rows], return_inverse=True)[1]
        return problem.uncertainty.oracle(p, problem.divergence, groups).weights(u, c)

    def project(self, x):
        """The nearest point with coefficients in W."""
        return np.vstack([self.problem.constraint.project(x[: self.d]), x[self.d :]])


def _join(w, b):
    return np.vstack([w, b[None, :]]).astype(float)


def _split(x):
    return x[:-1], x[-1]


def _dot(weights, grads):
    return np.einsum("i,ijc->jc", weights, grads)


def sgd(problem, w, b, batches, step_size):
    """(w, b) after one step of minibatch SGD (Levy et al. 2020) for each of `batches`.

    q_B = oracle(l_B(w)) on |B| atoms of equal nominal weight, with the problem's nu;
    w <- w - eta (sum_B q_i grad l_i(w) + mu w). Biased: it comes near the optimum only. |B| calls a
    step.
    """
    data = _Dense(problem)
    x = _join(w, b)
    for batch in batches:
        losses, grads = data.evaluate(x, batch)
        q = data.weights(losses, problem.nu, batch)
        x = data.project(x - step_size * (_dot(q, grads) + data.ridge * x))
    return _split(x)


def lsvrg(problem, w, b, draws, step_size, epoch):
    """(w, b) after one step of LSVRG for each row i in `draws`.

    Before steps 0, epoch, 2 epoch, ...: wbar = w, qbar = oracle(l(wbar)), gbar = sum qbar_i grad
    l_i(wbar). Then w <- w - eta (n qbar_i (grad l_i(w) - grad l_i(wbar)) + gbar + mu w). n calls a
    checkpoint and 1 a step: grad l_i(wbar) is known from the checkpoint.
    """
    data = _Dense(problem)
    x = _join(w, b)
    for t, i in enumerate(draws):
        if t % epoch == 0:
            losses, grads_bar = data.evaluate(x)
            q_bar = data.weights(losses, problem.nu)
            g_bar = _dot(q_bar, grads_bar)
        _, grads = data.evaluate(x, [i])
        v = data.n * q_bar[i] * (grads[0] - grads_bar[i]) + g_bar
        x = data.project(x - step_size * (v + data.ridge * x))
    return _split(x)


def prospect(problem, w, b, draws, step_size):
    """(w, b) after one step of Prospect for each row i in `draws`.

    The tables lhat, ghat start with the values at (w, b), qhat = q = oracle(lhat). Then
    w <- w - eta (n q_i grad l_i(w) - n qhat_i ghat_i + sum qhat_j ghat_j + mu w), and for the same
    i: lhat_i, ghat_i <- the values that this step used, those before w moved; q = oracle(lhat);
    qhat_i <- the new q_i. n calls at the start and 1 a step.
    """
    data = _Dense(problem)
    x = _join(w, b)
    loss_table, grad_table = data.evaluate(x)
    q = data.weights(loss_table, problem.nu)
    weight_table = q.copy()
    for i in draws:
        losses, grads = data.evaluate(x, [i])
        g_bar = _dot(weight_table, grad_table)
        v = data.n * q[i] * grads[0] - data.n * weight_table[i] * grad_table[i] + g_bar
        x = data.project(x - step_size * (v + data.ridge * x))
        loss_table[i], grad_table[i] = losses[0], grads[0]
        q = data.weights(loss_table, problem.nu)
        weight_table[i] = q[i]
    return _split(x)


def gradient_descent(problem, w, b, step_size, n_steps):
    """(w, b) after `n_steps` of w <- Proj_W [w - eta grad P(w)].

    grad P(w) = sum q_i grad l_i(w) + mu w at the exact weights q. n calls a step.
    """
    data = _Dense(problem)
    x = _join(w, b)
    for _ in range(n_steps):
        losses, grads = data.evaluate(x)
        q = data.weights(losses, problem.nu)
        x = data.project(x - step_size * (_dot(q, grads) + data.ridge * x))
    return _split(x)


def agog(problem, w, b, step_sizes, n_steps, restart_every, q=None):
    """(w, b, q) after `n_steps` of AG-OG with scheduled restarts, chi2 only.

    Li, Yuan, Gidel, Gu and Jordan (ICML 2023), "Nesterov Meets Optimism", arXiv:2210.17550. For
    min over w max over q of f(w) + I(w, q) - h(q), F = f + h and H = (grad_w I, -grad_q I), an
    epoch from z_0 = z_{-1/2} = zag_0 is, k = 0, 1, ..., alpha_k = 2/(k + 2):

        zmd_k     = (1 - alpha_k) zag_k + alpha_k z_k
        z_{k+1/2} = z_k - eta_k (H(z_{k-1/2}) + grad F(zmd_k))
        zag_{k+1} = (1 - alpha_k) zag_k + alpha_k z_{k+1/2}
        z_{k+1}   = z_k - eta_k (H(z_{k+1/2}) + grad F(zmd_k))

    with eta_k = (k + 2)/(2 L + sqrt(3 + sqrt(3)) L_H (k + 2)), L and L_H the Lipschitz constants of
    grad F and H. The next epoch starts from the last zag. Here f = mu/2 ||w||^2, I = sum q_i l_i(w)
    and h = nu D(q||p). What was adapted:

    1. Projection. The paper has no constraints; here both steps end with a projection, of w onto
       W and of q onto Q, the latter by the oracle.
    2. Scaling. The norm is mu ||w||^2 + nu sum q_i^2/p_i, in which f and h have curvature 1 and
       L = 1 (the paper scales one of the variables until the moduli agree). In it w moves by
       eta/mu times its gradient, and the step of q is
       argmax over Q of <l - nu grad D(qmd), q> - (nu/eta) 1/2 sum (q_i - q_prev,i)^2/p_i.
    3. The intercept has no part in f and moves by eta/mu times its gradient.
    4. I is not linear in w. The paper allows that; L_H then has a part from the curvature.

    `step_sizes[k]` is eta_k, k counted from the last restart; restarts are before the steps
    restart_every, 2 restart_every, ... The start is q, the exact weights at (w, b) by default.
    Returned is the last zag. n calls at the start and at each restart, and n a step: H(z_{k+1/2})
    is kept for the next one.
    """
    assert problem.divergence.name == "chi2"
    data = _Dense(problem)
    mu, nu, p = problem.mu, problem.nu, problem.p

    def coupling(x, q):
        """H, as the gradient in w and minus the gradient in q, which are the losses."""
        losses, grads = data.evaluate(x)
        return _dot(q, grads), losses

    def move(x, q, eta, H, x_md, q_md):
        slope, losses = H
        new_x = data.project(x - eta / mu * (slope + data.ridge * x_md))
        gain = losses - nu * (q_md / p - 1.0)
        return new_x, data.weights(gain + nu / eta * (q / p), nu / eta)

    x_ag = _join(w, b)
    q_ag = data.weights(data.evaluate(x_ag)[0], nu) if q is None else np.array(q, dtype=float)
    for t in range(n_steps):
        k = t % restart_every
        if k == 0:
            x, q, x_half, q_half = x_ag, q_ag, x_ag, q_ag
        alpha, eta = 2.0 / (k + 2.0), step_sizes[k]
        x_md = (1.0 - alpha) * x_ag + alpha * x
        q_md = (1.0 - alpha) * q_ag + alpha * q
        x_half, q_half = move(x, q, eta, coupling(x_half, q_half), x_md, q_md)
        x_ag = (1.0 - alpha) * x_ag + alpha * x_half
        q_ag = (1.0 - alpha) * q_ag + alpha * q_half
        x, q = move(x, q, eta, coupling(x_half, q_half), x_md, q_md)
    return *_split(x_ag), q_ag
