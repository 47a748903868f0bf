// Single rows of a dense or a CSR matrix, and the steps of variance-reduced methods along them.
#pragma once

#include <cstdint>
#include <vector>

#include "views.hpp"

namespace drago {

// The entries of a dense matrix row by row; coefficients are one output after the other.
template <class T>
struct DenseRows {
    const T* values;
    Index d;

    // raw = x'w for one row.
    void predict(Index i, Index k, const double* w, double* raw) const {
        const T* x = values + i * d;
        for (Index c = 0; c < k; ++c, w += d) {
            double total = 0.0;
#pragma omp simd reduction(+ : total)
            for (Index j = 0; j < d; ++j) total += static_cast<double>(x[j]) * w[j];
            raw[c] = total;
        }
    }

    // out += x weights' for one row.
    void add(Index i, Index k, const double* weights, double* out_) const {
        const T* x = values + i * d;
        double* __restrict out = out_;
        for (Index c = 0; c < k; ++c, out += d) {
            const double weight = weights[c];
#pragma omp simd
            for (Index j = 0; j < d; ++j) out[j] += static_cast<double>(x[j]) * weight;
        }
    }
};

// A CSR matrix; coefficients are one feature after the other.
template <class T, class I>
struct SparseRows {
    const T* values;
    const I *indices, *starts;

    void predict(Index i, Index k, const double* w, double* raw) const {
        const Index lo = static_cast<Index>(starts[i]), hi = static_cast<Index>(starts[i + 1]);
        if (k == 1) {
            double total = 0.0;
            for (Index e = lo; e < hi; ++e) total += static_cast<double>(values[e]) * w[indices[e]];
            raw[0] = total;
            return;
        }
        for (Index c = 0; c < k; ++c) raw[c] = 0.0;
        for (Index e = lo; e < hi; ++e) {
            const double x = static_cast<double>(values[e]);
            const double* at = w + static_cast<Index>(indices[e]) * k;
            for (Index c = 0; c < k; ++c) raw[c] += x * at[c];
        }
    }

    void add(Index i, Index k, const double* weights, double* out) const {
        const Index lo = static_cast<Index>(starts[i]), hi = static_cast<Index>(starts[i + 1]);
        for (Index e = lo; e < hi; ++e) {
            const double x = static_cast<double>(values[e]);
            double* at = out + static_cast<Index>(indices[e]) * k;
            for (Index c = 0; c < k; ++c) at[c] += x * weights[c];
        }
    }
};

// Steps w <- r w - eta (g + x change'), for a sparse row on its own coordinates alone.
template <class Rows>
class Lagging;

template <class T>
class Lagging<DenseRows<T>> {
  public:
    Lagging(const DenseRows<T>& rows, Index k, Index, Index, double shrink, double eta)
        : rows(rows), k(k), shrink(shrink), eta(eta) {}

    void catch_up(Index, Index, const double*, double*) {}
    void catch_up_all(Index, const double*, double*) {}

    void step(Index i, Index, const double* g, const double* change, double* w_) {
        const Index d = rows.d;
        const T* x = rows.values + i * d;
        double* __restrict w = w_;
        for (Index c = 0; c < k; ++c, w += d, g += d) {
            const double factor = change[c];
#pragma omp simd
            for (Index j = 0; j < d; ++j)
                w[j] = shrink * w[j] - eta * (g[j] + static_cast<double>(x[j]) * factor);
        }
    }

  private:
    const DenseRows<T> rows;
    const Index k;
    const double shrink, eta;
};

template <class T, class I>
class Lagging<SparseRows<T, I>> {
  public:
    Lagging(const SparseRows<T, I>& rows, Index k, Index d, Index steps, double shrink, double eta)
        : rows(rows),
          k(k),
          shrink(shrink),
          eta(eta),
          last(static_cast<std::size_t>(d)),
          power(static_cast<std::size_t>(steps + 1)),
          series(static_cast<std::size_t>(steps + 1)) {
        // r^m and 1 + r + ... + r^(m-1) for m up to `steps`.
        power[0] = 1.0, series[0] = 0.0;
        for (Index m = 0; m < steps; ++m) {
            power[m + 1] = power[m] * shrink;
            series[m + 1] = series[m] * shrink + 1.0;
        }
    }

    // Bring the coordinates of a row up to step t.
    void catch_up(Index i, Index t, const double* g, double* w) {
        const Index hi = static_cast<Index>(rows.starts[i + 1]);
        for (Index e = static_cast<Index>(rows.starts[i]); e < hi; ++e) {
            const Index j = static_cast<Index>(rows.indices[e]);
            if (t > last[j]) renew(j, t, g, w);
        }
    }

    void catch_up_all(Index t, const double* g, double* w) {
        for (Index j = 0; j < static_cast<Index>(last.size()); ++j) renew(j, t, g, w);
    }

    void step(Index i, Index t, const double* g, const double* change, double* w) {
        const Index hi = static_cast<Index>(rows.starts[i + 1]);
        for (Index e = static_cast<Index>(rows.starts[i]); e < hi; ++e) {
            const double x = static_cast<double>(rows.values[e]);
            const Index j = static_cast<Index>(rows.indices[e]);
            const double* here = g + j * k;
            double* at = w + j * k;
            for (Index c = 0; c < k; ++c)
                at[c] = shrink * at[c] - eta * (here[c] + x * change[c]);
            last[j] = t + 1;
        }
    }

  private:
    void renew(Index j, Index t, const double* g, double* w) {
        const double factor = power[t - last[j]], sum = eta * series[t - last[j]];
        for (Index c = j * k; c < (j + 1) * k; ++c) w[c] = factor * w[c] - sum * g[c];
        last[j] = t;
    }

    const SparseRows<T, I> rows;
    const Index k;
    const double shrink, eta;
    std::vector<Index> last;
    Scratch power, series;
};

}  // namespace drago
