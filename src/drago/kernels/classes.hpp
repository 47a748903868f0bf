// Several outputs: the softmax of many rows at once, and sums over rows and classes.
//
// A few classes are too few to fill the lanes of a vector: then the exponentials are taken class by
// class over some rows. Logarithms are always taken over rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "losses.hpp"
#include "math.hpp"
#include "views.hpp"

namespace drago {

// Entries of a block of rows, which stays in the cache, and rows of it at most.
inline constexpr Index class_block = 1024, class_rows = 128;

// log(1 + x) for x >= 0; NaN for NaN.
DRAGO_INLINE double log1p_positive(double x) {
    // 1 + x = 2^e m with 1 <= m < 2; up to 1, x itself keeps all digits.
    const double whole = 1.0 + x;
    std::uint64_t bits;
    std::memcpy(&bits, &whole, sizeof bits);
    const double e = static_cast<double>(static_cast<std::int64_t>(bits >> 52) - 1023);
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    std::memcpy(&m, &bits, sizeof m);
    const bool small = x <= 1.0;
    const double rest = log1p_unit(small ? x : m - 1.0);
    const double found = small ? rest : e * 0.6931471805599453 + rest;
    return x < infinity ? found : x;
}

// Rows of many classes are filled up to a multiple of so many, with what has an exponential of 0.
inline constexpr Index few_classes = 15, class_lanes = 4;
inline constexpr double no_class = -1e300;
inline Index class_width(Index k) {
    return k <= few_classes ? k : (k + class_lanes - 1) / class_lanes * class_lanes;
}

namespace detail {

// A few classes are too few to fill the lanes of a vector: class by class over some rows.
inline constexpr Index few_rows = 32;

inline void softmax_of_few(Vec<const std::int64_t> y, const double* raw, Index stride, Index k,
                           Out losses, double* slopes, double* bends) {
    alignas(64) double z[few_classes][few_rows] = {};
    alignas(64) double top[few_rows], label[few_rows] = {}, above[few_rows] = {};
    alignas(64) double others[few_rows], total[few_rows], scale[few_rows];
    for (Index first = 0; first < y.size; first += few_rows) {
        const Index size = std::min(few_rows, y.size - first);
        const double* __restrict source = raw + first * stride;
        for (Index i = 0; i < size; ++i) {
            for (Index c = 0; c < k; ++c) z[c][i] = source[i * stride + c];
            label[i] = static_cast<double>(y[first + i]);
            above[i] = -source[i * stride + y[first + i]];
        }
        for (Index i = 0; i < few_rows; ++i) top[i] = z[0][i], others[i] = total[i] = 0.0;
        for (Index c = 1; c < k; ++c) {
#pragma omp simd
            for (Index i = 0; i < few_rows; ++i) top[i] = z[c][i] > top[i] ? z[c][i] : top[i];
        }
        for (Index c = 0; c < k; ++c) {
            const double here = static_cast<double>(c);
#pragma omp simd
            for (Index i = 0; i < few_rows; ++i) {
                const double e = exp_fast(z[c][i] - top[i]);
                z[c][i] = e;
                // log(total) loses the digits of a loss near 0: total - 1 is summed without the 1.
                others[i] += label[i] == here ? 0.0 : e;
                total[i] += label[i] == here ? e : 0.0;
            }
        }
#pragma omp simd
        for (Index i = 0; i < few_rows; ++i) {
            above[i] += top[i];
            total[i] += others[i];
            scale[i] = 1.0 / total[i];
        }
        double* __restrict out = losses.data + first;
        for (Index c = 0; c < k; ++c) {
            const double here = static_cast<double>(c);
#pragma omp simd
            for (Index i = 0; i < few_rows; ++i)
                z[c][i] = label[i] == here ? -others[i] * scale[i] : z[c][i] * scale[i];
        }
#pragma omp simd
        for (Index i = 0; i < few_rows; ++i) {
            const double rest = above[i] == 0.0 ? others[i] : total[i] - 1.0;
            top[i] = log1p_positive(rest) + above[i];
        }
        std::copy(top, top + size, out);
        double* __restrict to = slopes + first * k;
        for (Index i = 0; i < size; ++i)
            for (Index c = 0; c < k; ++c) to[i * k + c] = z[c][i];
        for (Index i = 0; bends && i < size; ++i) {
            double bend = -2.0 * to[i * k + y[first + i]];
            for (Index c = 0; c < k; ++c) bend -= to[i * k + c] * to[i * k + c];
            bends[first + i] = bend;
        }
    }
}

// With z less that of the label, the loss is log(1 + sum of exp(z_c) over the others): no digits
// are lost where it is near 0, and no maximum is looked for.
inline void softmax_of_many(Vec<const std::int64_t> y, const double* raw, Index stride, Index k,
                            Out losses, double* slopes, double* bends, double least) {
    const Index width = class_width(k);
    const Index most =
        std::max<Index>(1, std::min({class_rows, class_block / width, y.size}));
    Scratch room(static_cast<std::size_t>(most * width));
    double rest[class_rows];
    for (Index first = 0; first < y.size; first += most) {
        const Index size = std::min(most, y.size - first);
        for (Index i = 0; i < size; ++i) {
            const double* source = raw + (first + i) * stride;
            double* own = room.data() + i * width;
            const int label = static_cast<int>(y[first + i]);
            if (stride < width) {
                std::copy(source, source + k, own);
                std::fill(own + k, own + width, no_class);
                source = own;
            }
            const double shift = source[label];
            double others = 0.0;
#pragma omp simd reduction(+ : others)
            for (int c = 0; c < static_cast<int>(width); ++c) {
                const double e = exp_fast(source[c] - shift);
                own[c] = c == label ? 0.0 : e;
                others += c == label ? 0.0 : e;
            }
            rest[i] = others + (shift - shift);  // no number where that of the label is none
        }
        double* __restrict out = losses.data + first;
#pragma omp simd
        for (Index i = 0; i < size; ++i) out[i] = log1p_positive(rest[i]);
        for (Index i = 0; i < size; ++i) {
            if (out[i] < least) continue;
            const Index row = first + i, label = y[row];
            const double* __restrict own = room.data() + i * width;
            double* __restrict to = slopes + row * k;
            double square = 0.0;
            if (!(rest[i] < infinity)) {  // it overflows, or is not finite
                const double* z = raw + row * stride;
                out[i] = one_multinomial(label, k, z, to) + (z[label] - z[label]);
                for (Index c = 0; c < k; ++c) square += c == label ? 0.0 : to[c] * to[c];
            } else {
                const double scale = 1.0 / (1.0 + rest[i]);
#pragma omp simd reduction(+ : square)
                for (Index c = 0; c < k; ++c) {
                    const double s = own[c] * scale;
                    to[c] = s;
                    square += s * s;
                }
                to[label] = -rest[i] * scale;
            }
            if (bends) bends[row] = -to[label] * (2.0 + to[label]) - square;
        }
    }
}

}  // namespace detail

// Softmax cross-entropy of rows: losses, and slopes (softmax minus one-hot). Where there is room
// for them, `bends` receives each row's tr(diag(pi) - pi pi'). A row of raw predictions begins
// `stride` after the one before, and is filled up with `no_class` if that is the `class_width`.
// Rows whose loss is less than the `least` may be left without slopes. The labels are numbers of
// outputs.
inline void softmax_rows(Vec<const std::int64_t> y, const double* raw, Index stride, Index k,
                         Out losses, double* slopes, double* bends = nullptr,
                         double least = -infinity) {
    if (k <= few_classes)
        detail::softmax_of_few(y, raw, stride, k, losses, slopes, bends);
    else
        detail::softmax_of_many(y, raw, stride, k, losses, slopes, bends, least);
}

// From the slopes to those of the probabilities keep pi + (1 - keep) rest, in place, and for each row
// the divergence of these from pi; the losses and raw predictions tell log pi, however small.
inline void balance_rows(Vec<const std::int64_t> y, Mat<const double> raw, In losses, double keep,
                         In rest, Mat<double> slopes, Out young) {
    const Index k = raw.cols;
    for (Index i = 0; i < raw.rows; ++i) {
        const double *z = raw.row(i), shift = z[y[i]] + losses[i];
        double *s = slopes.row(i), total = 0.0;
        for (Index c = 0; c < k; ++c) {
            const double one = c == y[i] ? 1.0 : 0.0;
            const double mixed = keep * s[c] + (1.0 - keep) * (rest[c] - one), there = mixed + one;
            if (there > 0.0) total += there * (std::log(there) - (z[c] - shift));
            s[c] = mixed;
        }
        young[i] = std::max(total, 0.0);
    }
}

// The curvature of the weighted losses in the raw predictions, in the mean over the directions in
// which they have one: sum_i q_i tr(diag(pi_i) - pi_i pi_i') / (k - 1), or a little more than 0.
inline constexpr double least_curvature = 1e-9;
inline double mean_curvature(Vec<const std::int64_t> y, In q, Mat<const double> slopes) {
    double total = 0.0;
    for (Index i = 0; i < q.size; ++i) {
        if (q[i] == 0.0) continue;
        const double* __restrict s = slopes.row(i);
        double square = 0.0;
#pragma omp simd reduction(+ : square)
        for (Index c = 0; c < slopes.cols; ++c) square += s[c] * s[c];
        total -= q[i] * (2.0 * s[y[i]] + square);
    }
    return std::max(total, least_curvature) / static_cast<double>(slopes.cols - 1);
}

// sum_i q_i <slopes_i, step_i>, over the rows of weight.
inline double slope_along(In q, Mat<const double> slopes, Mat<const double> step) {
    double total = 0.0;
    for (Index i = 0; i < q.size; ++i) {
        if (q[i] == 0.0) continue;
        const double *__restrict s = slopes.row(i), *__restrict m = step.row(i);
        double own = 0.0;
#pragma omp simd reduction(+ : own)
        for (Index c = 0; c < slopes.cols; ++c) own += s[c] * m[c];
        total += q[i] * own;
    }
    return total;
}

}  // namespace drago
