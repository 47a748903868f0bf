// Products of a tall matrix with a narrow one, by tiles that stay in the registers: what the rows
// cost with a few outputs. A BLAS is made for wider ones.
#pragma once

#include <algorithm>
#include <cstdint>

#include "views.hpp"

namespace drago {

// Columns of a tile, and rows of it; columns are filled up with zeros.
inline constexpr Index narrow_step = 8;
inline constexpr int narrow_rows = 4;
// Rows at a time whose features stay in the cache.
inline constexpr Index narrow_block = 64;

inline Index narrow_width(Index k) { return (k + narrow_step - 1) / narrow_step * narrow_step; }

namespace detail {

// raw = X w + b for `count` rows of X (at most a tile) and `wide` columns.
template <int wide>
inline void predict_tile(const double* const* x, int count, Index d, const double* w, Index width,
                         const double* b, double* raw, Index k, Index left) {
    double sum[narrow_rows][wide];
    for (int r = 0; r < narrow_rows; ++r)
        for (int c = 0; c < wide; ++c) sum[r][c] = b[c];
    for (Index j = 0; j < d; ++j) {
        const double* __restrict column = w + j * width;
        for (int r = 0; r < narrow_rows; ++r) {
            const double factor = x[r][j];
#pragma omp simd
            for (int c = 0; c < wide; ++c) sum[r][c] += factor * column[c];
        }
    }
    if (left >= wide) {
        for (int r = 0; r < count; ++r)
            for (int c = 0; c < wide; ++c) raw[r * k + c] = sum[r][c];
        return;
    }
    for (int r = 0; r < count; ++r)
        for (int c = 0; c < wide; ++c)
            if (c < left) raw[r * k + c] = sum[r][c];
}

// out (d x width) += x' s for `rows` rows: the features j.. and the columns from `first` on.
template <int wide>
inline void gradient_tile(const double* const* x, Index rows, Index j, int features,
                          const double* s, Index width, double* out) {
    double sum[narrow_rows][wide] = {};
    if (features == narrow_rows) {
        for (Index i = 0; i < rows; ++i) {
            const double *__restrict row = x[i] + j, *__restrict own = s + i * width;
            for (int r = 0; r < narrow_rows; ++r) {
#pragma omp simd
                for (int c = 0; c < wide; ++c) sum[r][c] += row[r] * own[c];
            }
        }
    } else {
        for (Index i = 0; i < rows; ++i) {
            const double *__restrict row = x[i] + j, *__restrict own = s + i * width;
            for (int r = 0; r < features; ++r) {
#pragma omp simd
                for (int c = 0; c < wide; ++c) sum[r][c] += row[r] * own[c];
            }
        }
    }
    for (int r = 0; r < features; ++r)
        for (int c = 0; c < wide; ++c) out[r * width + c] += sum[r][c];
}

// total (d x width) += x' s for some rows.
[[gnu::noinline]] inline void add_rows(const double* const* x, Index count, Index d,
                                       const double* s, Index width, double* total) {
    for (Index j = 0; j < d; j += narrow_rows) {
        const int features = static_cast<int>(std::min<Index>(narrow_rows, d - j));
        Index c = 0;
        for (; c + 2 * narrow_step <= width; c += 2 * narrow_step)
            gradient_tile<2 * narrow_step>(x, count, j, features, s + c, width,
                                           total + j * width + c);
        if (c < width)
            gradient_tile<narrow_step>(x, count, j, features, s + c, width,
                                       total + j * width + c);
    }
}

}  // namespace detail

// raw = X w + b, for some rows at a time.
class NarrowProduct {
  public:
    // `beyond` is what stands in columns beyond the last.
    NarrowProduct(Mat<const double> w, In b, double beyond = 0.0)
        : d(w.rows), k(w.cols), width(narrow_width(k)),
          filled(static_cast<std::size_t>((d + 1) * width)) {
        for (Index j = 0; j < d; ++j) std::copy(w.row(j), w.row(j) + k, filled.data() + j * width);
        std::copy(b.data, b.data + k, filled.data() + d * width);
        std::fill(filled.data() + d * width + k, filled.data() + (d + 1) * width, beyond);
    }

    // With so many columns in a row of `raw`.
    [[gnu::noinline]] void rows(Mat<const double> X, double* raw, Index stride) const {
        const double *w = filled.data(), *shift = w + d * width;
        for (Index i = 0; i < X.rows; i += narrow_rows) {
            const int count = static_cast<int>(std::min<Index>(narrow_rows, X.rows - i));
            const double* x[narrow_rows];
            for (int r = 0; r < narrow_rows; ++r) x[r] = X.row(i + std::min(r, count - 1));
            double* to = raw + i * stride;
            Index c = 0;
            for (; c + 2 * narrow_step <= width; c += 2 * narrow_step)
                detail::predict_tile<2 * narrow_step>(x, count, d, w + c, width, shift + c, to + c,
                                                      stride, stride - c);
            if (c < width)
                detail::predict_tile<narrow_step>(x, count, d, w + c, width, shift + c, to + c,
                                                  stride, stride - c);
        }
    }

  private:
    const Index d, k, width;
    Scratch filled;
};

inline void narrow_predict(Mat<const double> X, Mat<const double> w, In b, Mat<double> raw) {
    NarrowProduct(w, b).rows(X, raw.data, raw.cols);
}

// out = X' (q slopes), and the sums of q slopes; only rows of weight are visited.
inline void narrow_gradient(Mat<const double> X, In q, Mat<const double> slopes, Mat<double> out,
                            Out sums) {
    const Index n = X.rows, d = X.cols, k = slopes.cols, width = narrow_width(k);
    Scratch room(static_cast<std::size_t>((d + 1 + narrow_block) * width));
    double *total = room.data(), *last = total + d * width, *s = last + width;
    const double* x[narrow_block];
    Index size = 0;
    const auto add = [&] {
        detail::add_rows(x, size, d, s, width, total);
        size = 0;
    };
    for (Index i = 0; i < n; ++i) {
        const double weight = q[i];
        if (weight == 0.0) continue;
        const double* __restrict from = slopes.row(i);
        double *__restrict to = s + size * width, *__restrict sum = last;
#pragma omp simd
        for (Index c = 0; c < k; ++c) {
            to[c] = weight * from[c];
            sum[c] += to[c];
        }
        x[size] = X.row(i);
        if (++size == narrow_block) add();
    }
    if (size > 0) add();
    for (Index j = 0; j < d; ++j) std::copy(total + j * width, total + j * width + k, out.row(j));
    std::copy(last, last + k, sums.data);
}

// sum_i q_i (diag(pi_i) - pi_i pi_i'), with pi the slopes and 1 more at the label.
inline void class_curvature(Vec<const std::int64_t> y, Mat<const double> slopes, In q,
                            Mat<double> out) {
    const Index n = slopes.rows, k = slopes.cols;
    Scratch sums(static_cast<std::size_t>(k)), of_label(static_cast<std::size_t>(k * k));
    narrow_gradient(slopes, q, slopes, out, {sums.data(), k});
    for (Index i = 0; i < n; ++i) {
        if (q[i] == 0.0) continue;
        const double *__restrict s = slopes.row(i), weight = q[i];
        double* __restrict to = of_label.data() + y[i] * k;
#pragma omp simd
        for (Index c = 0; c < k; ++c) to[c] += weight * s[c];
    }
    for (Index a = 0; a < k; ++a) {
        for (Index c = 0; c < k; ++c) {
            const double both = of_label[a * k + c] + of_label[c * k + a];
            out(a, c) = (a == c ? sums[a] : 0.0) - out(a, c) - both;
        }
    }
}

}  // namespace drago
