// Newton steps on a stage of the proximal method, for one output and a capped simplex with chi2.
//
// The stage's objective is P_c(w) = max over q of <q, l(w) + shift> - c Omega(q) and the ridge
// (`drago.solvers.newton` says where the shift comes from). The unknowns are theta = (w, b); the
// last entry stays 0 where no intercept is fitted. The general, slower way through Python is
// `drago.certificate.hessian`.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "blas.hpp"
#include "dual_capped.hpp"
#include "losses.hpp"
#include "square.hpp"
#include "views.hpp"

namespace drago {

// Rows that are gathered at a time, for one product of matrices.
inline constexpr Index gathered = 256;
// Relative distance to the cap below which a weight counts as lying on it.
inline constexpr double on_bound = 1e-12;
// Rounding of the objective.
inline constexpr double newton_rounding = 1e-15;

// A stage; `baseline` may be empty.
struct NewtonStage {
    In y, baseline;
    int code;
    double parameter;
    In p;
    double cap, c, nu;
    In shift;
    double mu;
};

// A point: theta = (w, b), the raw predictions there, losses, slopes and weights.
struct NewtonPoint {
    Out theta, raw, losses, slopes, q;
};

// The losses and their slopes, and the losses with the shift added; returns their sum.
//
// The losses are those less the `baseline`.
inline double newton_losses(const NewtonStage& of, const NewtonPoint& at, double* u_) {
    double total = 0.0;
    with_code(of.code, [&](auto tag) {
        constexpr int code = decltype(tag)::value;
        double *__restrict losses = at.losses.data, *__restrict slopes = at.slopes.data;
        double* __restrict u = u_;
        const bool has_baseline = !of.baseline.empty();
        // A load that is masked away from address 0 is as slow as one that faults.
        const double *y = of.y.data, *baseline = has_baseline ? of.baseline.data : y;
        const double *shift = of.shift.data, *raw = at.raw.data;
        const double parameter = of.parameter;
        const Index n = of.y.size;
#pragma omp simd reduction(+ : total)
        for (Index i = 0; i < n; ++i) {
            const LossSlope here = one_loss<code>(parameter, y[i], raw[i]);
            const double loss = has_baseline ? here.loss - baseline[i] : here.loss;
            losses[i] = loss;
            slopes[i] = here.slope;
            u[i] = loss + shift[i];
            total += loss;
        }
    });
    return total;
}

struct NewtonSums {
    double loss, shifted, square;
};

// <q, losses>, <q, u> and sum q^2 / p, over the rows of weight.
inline NewtonSums newton_sums(Index n, const double* losses, const double* u, const double* q,
                              const double* p) {
    double first = 0.0, second = 0.0, third = 0.0;
#pragma omp simd reduction(+ : first, second, third)
    for (Index i = 0; i < n; ++i) {
        const bool has = q[i] > 0.0;
        first += has ? q[i] * losses[i] : 0.0;
        second += has ? q[i] * u[i] : 0.0;
        third += has ? q[i] * q[i] / p[i] : 0.0;
    }
    return {first, second, third};
}

struct NewtonValue {
    double value, level, tau;
};

// P_c at a point, L(w, q) at its weights, and the threshold of these.
//
// Fills the losses, slopes and weights. The divergence is from p, as in the problem. Infinitely
// high where the losses are no numbers.
[[gnu::noinline]] inline NewtonValue newton_value(const NewtonStage& of, const NewtonPoint& at,
                                                  double tau, Out u) {
    if (!std::isfinite(newton_losses(of, at, u.data))) {
        std::copy(of.p.data, of.p.data + of.p.size, at.q.data);  // the steps read them
        return {infinity, infinity, tau};
    }
    tau = capped_chi2(u, of.p, of.c, of.cap, tau, at.q);
    const NewtonSums sums =
        newton_sums(of.y.size, at.losses.data, u.data, at.q.data, of.p.data);
    const double away = 0.5 * (sums.square - 1.0);
    double ridge = 0.0;
    for (Index j = 0; j < at.theta.size - 1; ++j)
        ridge += 0.5 * of.mu * at.theta[j] * at.theta[j];
    return {sums.shifted - of.c * away + ridge, sums.loss - of.nu * away + ridge, tau};
}

// Room for `newton_system`; the last columns may be there to fill up, and stay 0.
struct NewtonRoom {
    Index width;
    Scratch rows, square;

    explicit NewtonRoom(Index m)
        : width((m + 2 + square_step - 1) / square_step * square_step),
          rows(static_cast<std::size_t>(gathered * width)),
          square(static_cast<std::size_t>(width * width)) {}
};

// The generalised Hessian (its lower triangle) and the gradient, both without the ridge.
//
// H = sum_i q_i l_i'' f_i f_i' + Z' (dq/dl) Z, with dq_i/dl = p_i / c on the rows between 0 and the
// cap, less what keeps their sum. With a_i f_i f_i' the terms of the first two sums, the rows
// sqrt(a_i) (f_i, gradient's factor / a_i, move's factor / a_i) hold all that is needed in one
// square.
inline void newton_system(Mat<const double> X, const NewtonStage& of, const NewtonPoint& at,
                          bool intercept, NewtonRoom& room, Mat<double> H, Out r) {
    const Index n = X.rows, d = X.cols, m = H.rows, width = room.width;
    const Mat<double> square(room.square.data(), width, width);
    std::fill(room.square.begin(), room.square.end(), 0.0);
    std::fill(r.data, r.data + m, 0.0);
    double mass = 0.0;
    const double *q = at.q.data, *p = of.p.data, edge = of.cap;
    with_code(of.code, [&](auto tag) {
        constexpr int code = decltype(tag)::value;
        double* rows = room.rows.data();
        Index size = 0;
        for (Index i = 0; i < n; ++i) {
            if (!(q[i] > 0.0)) continue;
            const double s = at.slopes[i], *x = X.row(i);
            const double rate = q[i] < edge * p[i] * (1.0 - on_bound) ? p[i] / of.c : 0.0;
            const double bend = one_second(code, of.parameter, of.y[i], at.raw[i]);
            const double root = std::sqrt(q[i] * bend + rate * s * s);
            mass += rate;
            if (!(root > 0.0)) {  // no curvature
                for (Index j = 0; j < d; ++j) r[j] += q[i] * s * x[j];
                if (intercept) r[d] += q[i] * s;
                continue;
            }
            double* __restrict row = rows + size * width;
#pragma omp simd
            for (Index j = 0; j < d; ++j) row[j] = root * x[j];
            if (intercept) row[d] = root;
            row[m] = q[i] * s / root;
            row[m + 1] = rate * s / root;
            if (++size == gathered) {
                add_narrow_square({rows, size, width}, square);
                size = 0;
            }
        }
        if (size > 0) add_narrow_square({rows, size, width}, square);
    });
    const double share = mass > 0.0 ? 1.0 / mass : 0.0;
    const double *gradient = square.row(m), *move = square.row(m + 1);
    for (Index j = 0; j < m; ++j) {
        r[j] += gradient[j];
        for (Index k = 0; k <= j; ++k) H(j, k) = square(j, k) - move[j] * (move[k] * share);
    }
}

// extra_j += scale sum_i q_i x_ij^2: what curvature there could be.
inline void add_moments(Mat<const double> X, In q, double scale, double* extra_) {
    double* __restrict extra = extra_;
    for (Index i = 0; i < X.rows; ++i) {
        if (!(q[i] > 0.0)) continue;
        const double *x = X.row(i), weight = scale * q[i];
#pragma omp simd
        for (Index j = 0; j < X.cols; ++j) extra[j] += weight * x[j] * x[j];
    }
}

// (H + diag(extra)) x = -r by Cholesky's factors in `L`; whether that went well.
//
// H is given by its lower triangle. Row j of L is the j-th column of the factor, so that the
// innermost loops go along rows.
inline bool newton_solve(Mat<double> H, In extra, In r, Mat<double> L, Out x) {
    const Index m = r.size;
    for (Index j = 0; j < m; ++j) {
        for (Index i = j; i < m; ++i) L(j, i) = H(i, j);
        L(j, j) += extra[j];
        x[j] = -r[j];
    }
    for (Index j = 0; j < m; ++j) {
        double* __restrict row = L.row(j);
        if (!(row[j] > 0.0)) return false;
        const double root = std::sqrt(row[j]);
        row[j] = root;
        for (Index i = j + 1; i < m; ++i) row[i] /= root;
        for (Index k = j + 1; k < m; ++k) {
            double* __restrict other = L.row(k);
            const double factor = row[k];
#pragma omp simd
            for (Index i = k; i < m; ++i) other[i] -= factor * row[i];
        }
        const double known = x[j] / root;
        x[j] = known;
        for (Index i = j + 1; i < m; ++i) x[i] -= row[i] * known;
    }
    double total = 0.0;
    for (Index i = m - 1; i >= 0; --i) {
        const double* row = L.row(i);
        double value = x[i];
        for (Index k = i + 1; k < m; ++k) value -= row[k] * x[k];
        x[i] = value / row[i];
        total += std::abs(x[i]);
    }
    return std::isfinite(total);
}

// What the steps depend on beside the stage: `size` is that of what cancels in the objective, 0
// without a baseline.
struct NewtonRule {
    double size, curvature, constant;
    bool intercept;
    In dampings;
    Index halvings;
    double done, enough;
    Index most;
};

// How many steps and trials, the threshold of the weights; half the decrement of the last step, P_c
// and L(w, q) behind it. The state is 0 when there is more to do, 1 when the promise is small, 2
// when no step helps.
struct NewtonAnswer {
    Index steps, trials;
    double tau, promise, value, level;
    int state;
};

// Up to `most` steps from the point `at`, of which theta and raw are given; it is where they end.
// The point `other` is scratch with the same theta.
//
// Ends early when a step promises no more than `done` times what the move of the weights costs, or
// no more than `enough`, or when none lowers the objective.
inline NewtonAnswer capped_newton(Mat<const double> X, const NewtonStage& of,
                                  const NewtonRule& rule, double tau, NewtonPoint& at,
                                  NewtonPoint& other) {
    const Index n = X.rows, d = X.cols, m = rule.intercept ? d + 1 : d;
    const double mu = of.mu;
    Scratch vectors(static_cast<std::size_t>(2 * n + 2 * m * m + 3 * m));
    const Out u(vectors.data(), n);
    double* move = u.data + n;
    const Mat<double> H(move + n, m, m), L(H.data + m * m, m, m);
    const Out r(L.data + m * m, m), x(r.data + m, m), extra(x.data + m, m);
    NewtonRoom room(m);
    NewtonValue here = newton_value(of, at, tau, u), there{};
    here.value += rule.constant;
    NewtonAnswer answer{0, 1, 0.0, infinity, 0.0, 0.0, 0};
    while (answer.steps < rule.most && answer.state == 0) {
        newton_system(X, of, at, rule.intercept, room, H, r);
        for (Index j = 0; j < d; ++j) {
            H(j, j) += mu;
            r[j] += mu * at.theta[j];
        }
        const double rounding = newton_rounding * std::max(std::abs(here.value), rule.size);
        answer.state = 2;
        double slope = 0.0;
        for (Index k = 0; k < rule.dampings.size && answer.state == 2; ++k) {
            const double damping = rule.dampings[k];
            for (Index j = 0; j < m; ++j) extra[j] = (1e-13 + damping) * H(j, j);
            if (rule.intercept) extra[d] += (1e-12 + damping) * rule.curvature;
            if (damping > 0.0) add_moments(X, at.q, damping * rule.curvature, extra.data);
            if (!newton_solve(H, extra, r, L, x)) continue;
            slope = 0.0;
            for (Index j = 0; j < m; ++j) slope += r[j] * x[j];
            gemv(X, false, x.data, move);
            double length = 1.0;
            for (Index trial = 0; trial < rule.halvings; ++trial) {
                const double constant_part = rule.intercept ? length * x[d] : 0.0;
                double* __restrict raw = other.raw.data;
                const double* from = at.raw.data;
#pragma omp simd
                for (Index i = 0; i < n; ++i) raw[i] = from[i] + (length * move[i] + constant_part);
                for (Index j = 0; j < m; ++j) other.theta[j] = at.theta[j] + length * x[j];
                there = newton_value(of, other, here.tau, u);
                there.value += rule.constant;
                ++answer.trials;
                if (there.value <= here.value + 1e-4 * length * std::min(slope, 0.0) + rounding) {
                    answer.state = 0;
                    break;
                }
                length *= 0.5;
                if (-length * slope <= 0.1 * rounding) break;
            }
        }
        if (answer.state == 0) {
            std::swap(at, other);
            here = there;
            answer.promise = -0.5 * slope;
            ++answer.steps;
            if (answer.promise <= std::max(rule.done * (here.level - here.value), rule.enough))
                answer.state = 1;
        }
    }
    answer.tau = here.tau, answer.value = here.value, answer.level = here.level;
    return answer;
}

}  // namespace drago
