// The metric of a few features; by way of LAPACK it takes longer (bench_drago.py small).
#pragma once

#include <cmath>
#include <memory>

#include "math.hpp"
#include "views.hpp"

namespace drago {

// Sweeps of Jacobi's method at most: from some sweep on it squares what is left with each.
inline constexpr int SWEEPS = 30;

// Fills in sum_i p_i (x_i - mean)(x_i - mean)'; returns its trace.
template <class T>
inline double second_moments(Mat<const T> X, In p, In mean, Mat<double> out) {
    const Index n = X.rows, d = X.cols;
    const std::unique_ptr<double[]> columns(new double[static_cast<std::size_t>(n * d)]);
    for (Index i = 0; i < n; ++i)
        for (Index j = 0; j < d; ++j) columns[j * n + i] = X(i, j) - mean[j];
    double size = 0.0;
    for (Index j = 0; j < d; ++j) {
        for (Index k = 0; k <= j; ++k) {
            const double *one = columns.get() + j * n, *other = columns.get() + k * n;
            const double* share = p.data;
            const auto [total] = sums<1>(n, [=](Index i) DRAGO_INLINED {
                return std::array<double, 1>{share[i] * one[i] * other[i]};
            });
            out(j, k) = out(k, j) = total;
        }
        size += out(j, j);
    }
    return size;
}

// Turn two columns, or two rows, of a matrix: `step` is from one of their entries to the next.
inline void rotate(double* one, double* other, Index n, Index step, double cosine, double sine) {
    for (Index i = 0; i < n * step; i += step) {
        const double a = one[i], b = other[i];
        one[i] = cosine * a - sine * b;
        other[i] = sine * a + cosine * b;
    }
}

// Fill V with the eigenvectors of a symmetric matrix; its diagonal becomes the eigenvalues.
//
// By Jacobi's cyclic method: rotations in the plane of two coordinates make one entry after the
// other zero, until those off the diagonal are so small that their squares are rounding.
inline void jacobi(Mat<double> A, Mat<double> V) {
    const Index d = A.rows;
    for (Index j = 0; j < d; ++j)
        for (Index k = 0; k < d; ++k) V(j, k) = j == k ? 1.0 : 0.0;
    for (int sweep = 0; sweep < SWEEPS; ++sweep) {
        bool done = true;
        for (Index j = 0; j < d - 1; ++j) {
            for (Index k = j + 1; k < d; ++k) {
                const double one = A(j, j), other = A(k, k), off = A(j, k);
                if (std::abs(off) <= 1e-9 * std::sqrt(std::abs(one)) * std::sqrt(std::abs(other)))
                    continue;
                done = false;
                const double ratio = (other - one) / (2.0 * off);
                const double tangent =
                    std::copysign(1.0, ratio) / (std::abs(ratio) + std::hypot(ratio, 1.0));
                const double cosine = 1.0 / std::hypot(tangent, 1.0), sine = tangent * cosine;
                rotate(A.data + j, A.data + k, d, d, cosine, sine);
                rotate(A.row(j), A.row(k), d, 1, cosine, sine);
                rotate(V.data + j, V.data + k, d, d, cosine, sine);
            }
        }
        if (done) break;
    }
}

// Fill in the eigenvalues and the basis of curvature * moments + mu; returns whether they are
// finite. The moments' least eigenvalue is `floor` times the greatest, or more.
template <class T>
inline bool curvature_of_rows(Mat<const T> X, In p, In mean, double floor, double curvature,
                              double mu, Out eigenvalues, Mat<double> basis) {
    const Index d = X.cols;
    Scratch room(static_cast<std::size_t>(d * d));
    const Mat<double> moments(room.data(), d, d);
    if (!std::isfinite(second_moments(X, p, mean, moments))) return false;
    jacobi(moments, basis);
    double greatest = 1e-300, total = 0.0;
    for (Index j = 0; j < d; ++j)
        greatest = moments(j, j) > greatest ? moments(j, j) : greatest;
    for (Index j = 0; j < d; ++j) {
        const double least = floor * greatest, own = moments(j, j);
        eigenvalues[j] = curvature * (least > own ? least : own) + mu;
        total += eigenvalues[j];
    }
    return std::isfinite(total);
}

}  // namespace drago
