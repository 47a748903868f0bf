// The Hessian of P for the softmax loss, over the rows of weight: what Newton steps are made of,
// and certificates, where there are few unknowns.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "narrow.hpp"
#include "views.hpp"

namespace drago {

// sum_i q_i l_i'' + mu + Z' (dq/dl) Z at a point, where Z are the gradients of the losses and all
// weights that respond do so at a rate, less its share of what all of them gain.
class ClassHessian {
  public:
    // With an intercept, features are measured from `mean`.
    ClassHessian(Mat<const double> X, Vec<const std::int64_t> y, In mean, bool intercept, double mu,
                 Index k)
        : X(X), y(y), mean(mean), intercept(intercept), mu(mu), d(X.cols), k(k),
          common(static_cast<std::size_t>(k * (d + (intercept ? 1 : 0)))) {}

    // At a point: the weights, the slopes, and the rate of each row that has one.
    void set(In weights, Mat<const double> at, In rates) {
        q = weights, slopes = at, rate = rates, rates_total = 0.0;
        rows.clear();
        for (Index i = 0; i < q.size; ++i) {
            if (q[i] > 0.0) rows.push_back(i);
            rates_total += rate[i];
        }
        if (!(rates_total > 0.0)) return;
        Scratch along(static_cast<std::size_t>(k));
        narrow_gradient(X, rate, slopes, {common.data(), d, k}, {along.data(), k});
        if (!intercept) return;
        for (Index j = 0; j < d; ++j)
            for (Index c = 0; c < k; ++c) common[j * k + c] -= mean[j] * along[c];
        std::copy(along.begin(), along.end(), common.begin() + d * k);
    }

    // The lower triangle of H, with the unknowns in the order of the gradient: features x classes,
    // then the intercepts.
    //
    // The product of two features is summed for each pair of classes, so that the pairs of both are
    // a product of two matrices, in blocks of rows.
    void fill(Mat<double> H) {
        const Index m = d + (intercept ? 1 : 0), pairs = k * (k + 1) / 2;
        const Index products = m * (m + 1) / 2, wide = narrow_width(pairs);
        Scratch held(static_cast<std::size_t>((products + narrow_block) * wide +
                                              narrow_block * products + m + k));
        double *sum = held.data(), *of_pairs = sum + products * wide;
        double *of_features = of_pairs + narrow_block * wide;
        double *f = of_features + narrow_block * products, *pi = f + m;
        const double* x[narrow_block];
        for (Index i = 0; i < narrow_block; ++i) x[i] = of_features + i * products;
        const Index count = static_cast<Index>(rows.size());
        for (Index first = 0; first < count; first += narrow_block) {
            const Index size = std::min(narrow_block, count - first);
            for (Index i = 0; i < size; ++i) {
                const Index row = rows[first + i];
                fill_products(row, f, of_features + i * products);
                fill_pairs(row, pi, of_pairs + i * wide);
            }
            detail::add_rows(x, size, products, of_pairs, wide, sum);
        }
        const double share = rates_total > 0.0 ? 1.0 / rates_total : 0.0;
        for (Index j = 0; j < m; ++j) {
            for (Index l = 0; l <= j; ++l) {
                const double* from = sum + (j * (j + 1) / 2 + l) * wide;
                for (Index a = 0; a < k; ++a) {
                    for (Index c = 0; c <= a; ++c, ++from) {
                        const double low = share * common[j * k + a] * common[l * k + c];
                        const double high = share * common[j * k + c] * common[l * k + a];
                        H(j * k + a, l * k + c) = *from - (share > 0.0 ? low : 0.0);
                        H(j * k + c, l * k + a) = *from - (share > 0.0 ? high : 0.0);
                    }
                }
            }
        }
        for (Index j = 0; j < d * k; ++j) H(j, j) += mu;
    }

  private:
    Mat<const double> X;
    Vec<const std::int64_t> y;
    In mean;
    const bool intercept;
    const double mu;
    const Index d, k;
    Scratch common;
    std::vector<Index> rows;
    In q, rate;
    Mat<const double> slopes;
    double rates_total = 0.0;

    // The products of a row's features with each other.
    void fill_products(Index row, double* f, double* to) const {
        const double* from = X.row(row);
        for (Index j = 0; j < d; ++j) f[j] = from[j] - (intercept ? mean[j] : 0.0);
        if (intercept) f[d] = 1.0;
        const Index m = d + (intercept ? 1 : 0);
        for (Index j = 0; j < m; ++j) {
            const double factor = f[j];
            for (Index l = 0; l <= j; ++l) *to++ = factor * f[l];
        }
    }

    // q (diag(pi) - pi pi') + rate s s' of a row.
    void fill_pairs(Index row, double* pi, double* to) const {
        const double *s = slopes.row(row), weight = q[row], gain = rate[row];
        std::copy(s, s + k, pi);
        pi[y[row]] += 1.0;
        for (Index a = 0; a < k; ++a) {
            const double by_pi = -weight * pi[a], by_slope = gain * s[a];
            for (Index c = 0; c <= a; ++c) to[c] = by_pi * pi[c] + by_slope * s[c];
            // A probability near 1 would cancel: at the label, 1 - pi is what the slope is.
            const double left = a == y[row] ? -s[a] : 1.0 - pi[a];
            to[a] = weight * pi[a] * left + by_slope * s[a];
            to += a + 1;
        }
    }
};

}  // namespace drago
