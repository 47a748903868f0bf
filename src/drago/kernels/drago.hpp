// Primal step, dual step's argument, tables.
#pragma once

#include <algorithm>

#include "rows.hpp"
#include "views.hpp"

namespace drago {

// u = table + s mirror.
inline void proximal_argument(In table, double s, In mirror, Out u) {
    const double *__restrict t = table.data, *__restrict m = mirror.data;
    double* __restrict out = u.data;
    for (Index i = 0; i < u.size; ++i) out[i] = t[i] + s * m[i];
}

// u = table + s q/p.
inline void proximal_argument_chi2(In table, double s, In q, In p, Out u) {
    const double *__restrict t = table.data, *__restrict a = q.data, *__restrict c = p.data;
    double* __restrict out = u.data;
    for (Index i = 0; i < u.size; ++i) out[i] = t[i] + s * (a[i] / c[i]);
}

// argmin <grad, w> + (mu/2)||w||^2 and proximal terms, in the norm of the metric.
//
// These pull with `near` to the point `here` and with `far` to each of those whose sum is the
// `window`; `weight` is all of it. Rows beyond the features, an intercept's, are left alone.
// Without a basis it is the standard one.
inline void proximal_point(Mat<const double> here, Mat<const double> window, double near,
                           double far, Mat<const double> grad, In eigenvalues,
                           Mat<const double> basis, double mu, double weight, Mat<double> out) {
    const Index d = out.rows, outputs = out.cols;
    if (basis.empty() && outputs == 1) {
        const double *__restrict at = here.data, *__restrict past = window.data;
        const double *__restrict slope = grad.data, *__restrict h = eigenvalues.data;
        double* __restrict to = out.data;
        for (Index j = 0; j < d; ++j)
            to[j] = (h[j] * (near * at[j] + far * past[j]) - slope[j]) / (mu + weight * h[j]);
        return;
    }
    if (basis.empty()) {
        for (Index j = 0; j < d; ++j) {
            const double h = eigenvalues[j];
            for (Index c = 0; c < outputs; ++c) {
                const double past = near * here(j, c) + far * window(j, c);
                out(j, c) = (h * past - grad(j, c)) / (mu + weight * h);
            }
        }
        return;
    }
    Scratch room(static_cast<std::size_t>(2 * d));
    double *__restrict past = room.data(), *__restrict slope = past + d;
    const auto pull = [&](Index i, Index c) { return near * here(i, c) + far * window(i, c); };
    for (Index c = 0; c < outputs; ++c) {
        std::fill_n(past, 2 * d, 0.0);
        Index i = 0;
        for (; i + 4 <= d; i += 4) {
            const Four<double> rows{basis.row(i), basis.row(i + 1), basis.row(i + 2),
                                    basis.row(i + 3)};
            const double v[4] = {pull(i, c), pull(i + 1, c), pull(i + 2, c), pull(i + 3, c)};
            const double g[4] = {grad(i, c), grad(i + 1, c), grad(i + 2, c), grad(i + 3, c)};
            add_rows(rows, d, v, past);
            add_rows(rows, d, g, slope);
        }
        for (; i < d; ++i) {
            add_row(basis.row(i), d, pull(i, c), past);
            add_row(basis.row(i), d, grad(i, c), slope);
        }
        for (Index j = 0; j < d; ++j) {
            const double h = eigenvalues[j];
            past[j] = (h * past[j] - slope[j]) / (mu + weight * h);
        }
        for (i = 0; i + 4 <= d; i += 4) {
            double z[4];
            products<double>(
                {basis.row(i), basis.row(i + 1), basis.row(i + 2), basis.row(i + 3)}, d, past, 0.0,
                z);
            for (Index r = 0; r < 4; ++r) out(i + r, c) = z[r];
        }
        for (; i < d; ++i) out(i, c) = product(basis.row(i), d, past, 0.0);
    }
}

// losses = scale (losses - before).
inline void scaled_change(Out losses, In before, double scale) {
    double* __restrict out = losses.data;
    const double* __restrict from = before.data;
    for (Index i = 0; i < losses.size; ++i) out[i] = scale * (out[i] - from[i]);
}

// slopes = q slopes - product, which is added to `product`; returns the sum of it.
inline double renew(Out slopes, In q, Out product) {
    double *__restrict s = slopes.data, *__restrict kept = product.data;
    const double* __restrict weights = q.data;
    double total = 0.0;
#pragma omp simd reduction(+ : total)
    for (Index i = 0; i < q.size; ++i) {
        const double change = weights[i] * s[i] - kept[i];
        s[i] = change;
        kept[i] += change;
        total += change;
    }
    return total;
}

}  // namespace drago
