// Products with some of the rows of a matrix, dense or CSR.
#pragma once

#include <algorithm>
#include <cstdint>

#include "math.hpp"
#include "views.hpp"

namespace drago {

// How many rows ahead memory is asked for more where these are picked: fewer where so many would
// not stay in the nearest cache.
template <class T>
inline Index ahead_picked(Mat<const T> X) {
    return std::clamp<Index>(8192 / (Index(sizeof(T)) * X.cols), 4, 16);
}

// Ask memory for some entries. They may lie beyond the end: nothing is read.
template <class T>
inline void ask(const T* first, Index entries) {
    constexpr Index line = 64 / sizeof(T);
    for (Index j = 0; j < entries; j += line) __builtin_prefetch(first + j, 0, 3);
}

// Four rows of a dense matrix, which need not be neighbours.
template <class T>
struct Four {
    const T *x0, *x1, *x2, *x3;
};

// z = the products of four rows with w, plus b.
template <class T>
inline void products(Four<T> x, Index d, const double* __restrict w, double b, double* z) {
    const T *__restrict x0 = x.x0, *__restrict x1 = x.x1;
    const T *__restrict x2 = x.x2, *__restrict x3 = x.x3;
    double z0 = b, z1 = b, z2 = b, z3 = b;
#pragma omp simd reduction(+ : z0, z1, z2, z3)
    for (Index j = 0; j < d; ++j) {
        double v = w[j];
        z0 += x0[j] * v;
        z1 += x1[j] * v;
        z2 += x2[j] * v;
        z3 += x3[j] * v;
    }
    z[0] = z0, z[1] = z1, z[2] = z2, z[3] = z3;
}

template <class T>
inline double product(const T* __restrict x, Index d, const double* __restrict w, double b) {
    double z = b;
#pragma omp simd reduction(+ : z)
    for (Index j = 0; j < d; ++j) z += x[j] * w[j];
    return z;
}

// z = the squares of four rows, each entry in its unit.
template <class T>
inline void squares(Four<T> x, Index d, const double* __restrict unit, double* z) {
    const T *__restrict x0 = x.x0, *__restrict x1 = x.x1;
    const T *__restrict x2 = x.x2, *__restrict x3 = x.x3;
    double z0 = 0.0, z1 = 0.0, z2 = 0.0, z3 = 0.0;
#pragma omp simd reduction(+ : z0, z1, z2, z3)
    for (Index j = 0; j < d; ++j) {
        const double u = unit[j], v0 = x0[j] * u, v1 = x1[j] * u, v2 = x2[j] * u, v3 = x3[j] * u;
        z0 += v0 * v0;
        z1 += v1 * v1;
        z2 += v2 * v2;
        z3 += v3 * v3;
    }
    z[0] = z0, z[1] = z1, z[2] = z2, z[3] = z3;
}

template <class T>
inline double square(const T* __restrict x, Index d, const double* __restrict unit) {
    double z = 0.0;
#pragma omp simd reduction(+ : z)
    for (Index j = 0; j < d; ++j) {
        const double v = x[j] * unit[j];
        z += v * v;
    }
    return z;
}

// The sum of the squares of some entries.
template <class T>
inline double sum_of_squares(const T* __restrict x, Index size) {
    const auto [total] = sums<1>(size, [=](Index j) DRAGO_INLINED {
        const double v = x[j];
        return std::array<double, 1>{v * v};
    });
    return total;
}

// out += the sum of four rows with the weights c.
template <class T>
inline void add_rows(Four<T> x, Index d, const double* c, double* __restrict out) {
    const T *__restrict x0 = x.x0, *__restrict x1 = x.x1;
    const T *__restrict x2 = x.x2, *__restrict x3 = x.x3;
    const double c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];
#pragma omp simd
    for (Index j = 0; j < d; ++j) out[j] += c0 * x0[j] + c1 * x1[j] + c2 * x2[j] + c3 * x3[j];
}

template <class T>
inline void add_row(const T* __restrict x, Index d, double c, double* __restrict out) {
#pragma omp simd
    for (Index j = 0; j < d; ++j) out[j] += c * x[j];
}

// The rows first to last of out = those of X that are listed, each times its factor if there are
// any; the sum of their squares, which is not finite where an entry or a square is not.
template <class T, class S>
inline double gather_rows(Mat<const T> X, Vec<const std::int64_t> index, In factors, Index first,
                          Index last, Mat<S> out) {
    const Index d = X.cols, ahead = 2 * ahead_picked(X);
    double squares = 0.0;
    for (Index r = first; r < last; ++r) {
        if (r + ahead < index.size) ask(X.row(index[r + ahead]), d);
        const T* __restrict from = X.row(index[r]);
        S* __restrict to = out.row(r);
        const double factor = factors.empty() ? 1.0 : factors[r];
#pragma omp simd reduction(+ : squares)
        for (Index j = 0; j < d; ++j) {
            const double here = from[j] * factor;
            to[j] = static_cast<S>(here);
            squares += here * here;
        }
    }
    return squares;
}

// raw = X_block w, for the rows first, first + stride, ...
template <class T, class I>
inline void csr_predict(Csr<T, I> X, Index first, Index stride, Mat<const double> w,
                        Mat<double> raw) {
    const T* __restrict data = X.data.data;
    const I* __restrict indices = X.indices.data;
    const double* __restrict v = w.data;
    const Index outputs = w.cols;
    for (Index r = 0; r < raw.rows; ++r) {
        const Index row = first + r * stride;
        const Index begin = X.indptr[row], end = X.indptr[row + 1];
        for (Index c = 0; c < outputs; ++c) {
            double total = 0.0;
#pragma omp simd reduction(+ : total)
            for (Index j = begin; j < end; ++j) total += data[j] * v[indices[j] * outputs + c];
            raw(r, c) = total;
        }
    }
}

// out += X_block' weights, for the same rows; a weight of 0 adds nothing.
template <class T, class I>
inline void csr_accumulate(Csr<T, I> X, Index first, Index stride, Mat<const double> weights,
                           Mat<double> out) {
    const T* __restrict data = X.data.data;
    const I* __restrict indices = X.indices.data;
    double* __restrict to = out.data;
    const Index outputs = weights.cols;
    for (Index r = 0; r < weights.rows; ++r) {
        const Index row = first + r * stride;
        const Index begin = X.indptr[row], end = X.indptr[row + 1];
        for (Index c = 0; c < outputs; ++c) {
            const double weight = weights(r, c);
            if (weight == 0.0) continue;
            for (Index j = begin; j < end; ++j) to[indices[j] * outputs + c] += data[j] * weight;
        }
    }
}

}  // namespace drago
