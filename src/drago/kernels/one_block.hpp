// DRAGO's iterations where all rows are one block: one output, a capped simplex with chi2.
//
// The same as `drago.solvers.drago.variants.SupportIterations` with `SecantSteps`, which says what
// they do and takes a hundred calls to NumPy for each of them.
#pragma once

#include <algorithm>
#include <cmath>

#include "blas.hpp"
#include "dual_capped.hpp"
#include "losses.hpp"
#include "views.hpp"

namespace drago {

// raw = X w, four columns at a time where there is a copy of X by columns.
[[gnu::noinline]] inline void one_block_predict(Mat<const double> X, Mat<const double> columns,
                                                const double* w, double* raw_) {
    if (columns.empty()) return gemv(X, false, w, raw_);
    double* __restrict raw = raw_;
    const Index n = X.rows, d = X.cols, fours = d - d % 4;
    if (fours == 0) std::fill(raw, raw + n, 0.0);
    for (Index j = 0; j < fours; j += 4) {
        const double *c0 = columns.row(j), *c1 = c0 + n, *c2 = c1 + n, *c3 = c2 + n;
        const double w0 = w[j], w1 = w[j + 1], w2 = w[j + 2], w3 = w[j + 3];
        if (j == 0) {
#pragma omp simd
            for (Index i = 0; i < n; ++i)
                raw[i] = (w0 * c0[i] + w1 * c1[i]) + (w2 * c2[i] + w3 * c3[i]);
        } else {
#pragma omp simd
            for (Index i = 0; i < n; ++i)
                raw[i] += (w0 * c0[i] + w1 * c1[i]) + (w2 * c2[i] + w3 * c3[i]);
        }
    }
    for (Index j = fours; j < d; ++j) {
        const double* column = columns.row(j);
        const double weight = w[j];
#pragma omp simd
        for (Index i = 0; i < n; ++i) raw[i] += weight * column[i];
    }
}

// out = X' (q slopes); returns q' slopes.
[[gnu::noinline]] inline double one_block_gradient(Mat<const double> X, Mat<const double> columns,
                                                   const double* q, const double* slopes,
                                                   double* weighted_, double* out) {
    double* __restrict weighted = weighted_;
    const Index n = X.rows, d = X.cols, fours = d - d % 4;
    double total = 0.0;
#pragma omp simd reduction(+ : total)
    for (Index i = 0; i < n; ++i) {
        weighted[i] = q[i] * slopes[i];
        total += weighted[i];
    }
    if (columns.empty()) {
        gemv(X, true, weighted, out);
        return total;
    }
    for (Index j = 0; j < fours; j += 4) {
        const double *c0 = columns.row(j), *c1 = c0 + n, *c2 = c1 + n, *c3 = c2 + n;
        double s0 = 0.0, s1 = 0.0, s2 = 0.0, s3 = 0.0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
        for (Index i = 0; i < n; ++i) {
            s0 += c0[i] * weighted[i];
            s1 += c1[i] * weighted[i];
            s2 += c2[i] * weighted[i];
            s3 += c3[i] * weighted[i];
        }
        out[j] = s0, out[j + 1] = s1, out[j + 2] = s2, out[j + 3] = s3;
    }
    for (Index j = fours; j < d; ++j) {
        const double* column = columns.row(j);
        double s = 0.0;
#pragma omp simd reduction(+ : s)
        for (Index i = 0; i < n; ++i) s += column[i] * weighted[i];
        out[j] = s;
    }
    return total;
}

// out = basis' v, or basis v on the way back; a copy without a basis.
[[gnu::noinline]] inline void turn(Mat<const double> basis, Index d, const double* v, bool back,
                                   double* out_) {
    double* __restrict out = out_;
    if (basis.empty()) {
        std::copy(v, v + d, out);
    } else if (back) {
        for (Index j = 0; j < d; ++j) {
            const double* row = basis.row(j);
            double total = 0.0;
            for (Index k = 0; k < d; ++k) total += row[k] * v[k];
            out[j] = total;
        }
    } else {  // by rows too, so that memory is read from end to end
        std::fill(out, out + d, 0.0);
        for (Index k = 0; k < d; ++k) {
            const double* row = basis.row(k);
            const double weight = v[k];
#pragma omp simd
            for (Index j = 0; j < d; ++j) out[j] += row[j] * weight;
        }
    }
}

// The next step size, from the change of the gradient along the last step.
//
// `size` is the square of the step's length, `product` its product with that change; `curvatures`
// are those of the last steps, NaN where there are fewer: the oldest is dropped.
inline double learn(double size, double product, Out curvatures, double alpha, double largest,
                    double boldness, double growth) {
    const double curvature = size > 0.0 ? product / size : nan;
    if (!std::isfinite(curvature)) return alpha;
    const Index last = curvatures.size - 1;
    double worst = curvature;
    for (Index k = 0; k < last; ++k) {
        curvatures[k] = curvatures[k + 1];
        if (curvatures[k] > worst) worst = curvatures[k];
    }
    curvatures[last] = curvature;
    if (!(worst > 0.0)) return alpha;
    return std::min({boldness / worst, largest, growth * alpha});
}

struct TwoValues {
    double one, other;
};

// <l, q> - nu D(q || p) of two kinds of weights; `inverse` is 1/p.
inline TwoValues two_values(Index n, const double* losses, const double* p, const double* inverse,
                            double nu, const double* x, const double* y) {
    double one = 0.0, other = 0.0;
#pragma omp simd reduction(+ : one, other)
    for (Index i = 0; i < n; ++i) {
        const double u = x[i] * inverse[i] - 1.0, v = y[i] * inverse[i] - 1.0;
        const double half = 0.5 * nu * p[i];
        one += x[i] * losses[i] - half * u * u;
        other += y[i] * losses[i] - half * v * v;
    }
    return {one, other};
}

// The data of the iterations: `columns` and `baseline` may be empty.
struct OneBlock {
    Mat<const double> X, columns;
    In y, baseline;
    int code;
    double parameter;
    In p;
    double cap, nu;
};

struct OneBlockStart {
    double gradient_b, tau, moment;
    bool finite;
};

// Losses and slopes at (w, b), the exact weights and the gradient there.
//
// The losses are those less the `baseline`. Returns the gradient's part for the intercept, the
// weights' threshold and their second moment; and whether all losses and slopes are numbers.
inline OneBlockStart one_block_start(const OneBlock& of, const double* w, double b, Out losses_,
                                     Out slopes_, Out q, double* gradient) {
    const Index n = of.X.rows;
    Scratch room(static_cast<std::size_t>(n));
    double* __restrict raw = room.data();
    one_block_predict(of.X, of.columns, w, raw);
    // A product with 0 is 0, and NaN for what is no number.
    double doubt = 0.0;
    with_code(of.code, [&](auto tag) {
        constexpr int code = decltype(tag)::value;
        double *__restrict losses = losses_.data, *__restrict slopes = slopes_.data;
        const bool has_baseline = !of.baseline.empty();
        const double *y = of.y.data, *baseline = has_baseline ? of.baseline.data : y;
        const double parameter = of.parameter;
#pragma omp simd reduction(+ : doubt)
        for (Index i = 0; i < n; ++i) {
            const LossSlope here = one_loss<code>(parameter, y[i], raw[i] + b);
            losses[i] = has_baseline ? here.loss - baseline[i] : here.loss;
            slopes[i] = here.slope;
            doubt += losses[i] * 0.0 + slopes[i] * 0.0;
        }
    });
    if (doubt != 0.0) return {nan, nan, nan, false};
    const double tau = capped_chi2(losses_, of.p, of.nu, of.cap, nan, q);
    double moment = 0.0;
    const double* p = of.p.data;
#pragma omp simd reduction(+ : moment)
    for (Index i = 0; i < n; ++i) moment += q.data[i] * q.data[i] / p[i];
    const double b_part =
        one_block_gradient(of.X, of.columns, q.data, slopes_.data, raw, gradient);
    return {b_part, tau, moment, true};
}

// The norm of the steps, and the ridge; `basis` may be empty.
struct OneBlockMetric {
    double mu;
    In mean, eigenvalues;
    Mat<const double> basis;
    double along;
    bool intercept;
};

// How the step sizes are learned.
struct SecantRule {
    double largest, boldness, growth;
    Out curvatures;
};

struct OneBlockPast {
    double *point, *slope;
    bool is_known;
};

// Where the iterations stand: all of it is overwritten.
struct OneBlockState {
    double* w;
    double b;
    double* raw;
    Out losses, slopes, q;
    double* gradient;
    double gradient_b, alpha, tau;
};

struct OneBlockAnswer {
    double cost, gap, primal;
};

// The losses at `raw`, to which b is added, and what the weights are sought for in `u`.
inline void one_block_losses(const OneBlock& of, const OneBlockState& at, const double* inverse,
                             double s, double ratio, double* u_) {
    with_code(of.code, [&](auto tag) {
        constexpr int code = decltype(tag)::value;
        double *__restrict raw = at.raw, *__restrict losses = at.losses.data;
        double *__restrict slopes = at.slopes.data, *__restrict u = u_;
        const bool has_baseline = !of.baseline.empty();
        // A load that is masked away from address 0 is as slow as one that faults.
        const double *y = of.y.data, *baseline = has_baseline ? of.baseline.data : y;
        const double* q = at.q.data;
        const double parameter = of.parameter, b = at.b;
        const Index n = of.X.rows;
#pragma omp simd
        for (Index i = 0; i < n; ++i) {
            const double before = losses[i];
            raw[i] += b;
            const LossSlope here = one_loss<code>(parameter, y[i], raw[i]);
            const double loss = has_baseline ? here.loss - baseline[i] : here.loss;
            losses[i] = loss;
            slopes[i] = here.slope;
            u[i] = loss + s * (q[i] * inverse[i]) + ratio * (loss - before);
        }
    });
}

// `n_steps` iterations; the state and the past are overwritten.
//
// Points and gradients are those of centred features, with the intercept's as last entry. Returns
// the cost that the threshold belongs to, and the estimates of the gap and of the objective.
inline OneBlockAnswer one_block_steps(const OneBlock& of, const OneBlockMetric& metric,
                                      Index n_steps, bool is_fresh, const SecantRule& rule,
                                      OneBlockPast& past, OneBlockState& at) {
    const Index n = of.X.rows, d = of.X.cols;
    const double nu = of.nu, mu = metric.mu, along = metric.along;
    const bool intercept = metric.intercept;
    const In mean = metric.mean, eigenvalues = metric.eigenvalues;
    Scratch room(static_cast<std::size_t>(3 * n + 4 * d + 2));
    double *u = room.data(), *weighted = u + n, *__restrict inverse = weighted + n;
    double *point = inverse + n, *slope = point + d + 1, *turned = slope + d + 1;
    double *downhill = turned + d, *w = at.w, *gradient = at.gradient;
#pragma omp simd
    for (Index i = 0; i < n; ++i) inverse[i] = 1.0 / of.p.data[i];
    double cost = nu;
    for (Index step = 0; step < n_steps; ++step) {
        if (step > 0 || !is_fresh)
            at.gradient_b = one_block_gradient(of.X, of.columns, at.q.data, at.slopes.data,
                                               weighted, gradient);
        point[d] = at.b, slope[d] = intercept ? at.gradient_b : 0.0;
        for (Index j = 0; j < d; ++j) {
            point[j] = w[j], slope[j] = gradient[j];
            if (intercept) {
                point[d] += mean[j] * w[j];
                slope[j] -= mean[j] * at.gradient_b;
            }
        }
        if (past.is_known) {
            const double apart = point[d] - past.point[d];
            double product = apart * (slope[d] - past.slope[d]);
            for (Index j = 0; j < d; ++j) {
                turned[j] = point[j] - past.point[j];
                product += turned[j] * (slope[j] - past.slope[j]);
            }
            turn(metric.basis, d, turned, false, downhill);
            double size = along * (apart * apart);
            for (Index j = 0; j < d; ++j) size += eigenvalues[j] * downhill[j] * downhill[j];
            at.alpha = learn(size, product, rule.curvatures, at.alpha, rule.largest,
                             rule.boldness, rule.growth);
        }
        std::copy(point, point + d + 1, past.point);
        std::copy(slope, slope + d + 1, past.slope);
        past.is_known = true;
        const double near = 1.0 / at.alpha, s = nu / at.alpha, ratio = 1.0 / (1.0 + at.alpha);
        turn(metric.basis, d, w, false, turned);
        turn(metric.basis, d, slope, false, downhill);
        for (Index j = 0; j < d; ++j) {
            const double h = eigenvalues[j];
            turned[j] = (h * near * turned[j] - downhill[j]) / (mu + near * h);
        }
        turn(metric.basis, d, turned, true, w);
        if (intercept) {
            at.b = point[d] - at.alpha * at.gradient_b / along;
            for (Index j = 0; j < d; ++j) at.b -= mean[j] * w[j];
        }
        one_block_predict(of.X, of.columns, w, at.raw);
        one_block_losses(of, at, inverse, s, ratio, u);
        // With u at a fixed point, l + s q/p, the threshold is the same for every s: also for 0.
        cost = nu + s;
        at.tau = capped_chi2(In(u, n), of.p, cost, of.cap, at.tau, at.q);
    }
    capped_chi2(at.losses, of.p, nu, of.cap, at.tau, Out(u, n));
    const auto [best, value] =
        two_values(n, at.losses.data, of.p.data, inverse, nu, u, at.q.data);
    double gap = std::max(best - value, 0.0), primal = best;
    for (Index j = 0; j < d; ++j) {
        slope[j] = gradient[j] + mu * w[j] - (intercept ? mean[j] * at.gradient_b : 0.0);
        primal += 0.5 * mu * w[j] * w[j];
    }
    turn(metric.basis, d, slope, false, downhill);
    for (Index j = 0; j < d; ++j) gap += 0.5 * downhill[j] * downhill[j] / eigenvalues[j];
    if (intercept) gap += 0.5 * at.gradient_b * at.gradient_b / along;
    return {cost, gap, primal};
}

}  // namespace drago
