// Several outputs: the softmax of many rows at once, and sums over rows and classes.
//
// A row has few classes, too few to fill the lanes of a vector; so the exponentials are taken over
// a block of rows, whose entries are neighbours, and the logarithms over its rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

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

namespace detail {

// A few classes are too few to fill the lanes of a vector: class by class over some rows.
inline constexpr Index few_classes = 15, few_rows = 32;
// Rows of more classes are filled up to a multiple of so many, with what has an exponential of 0.
inline constexpr Index class_lanes = 4;
inline constexpr double no_class = -1e300;

template <bool has_step>
inline void softmax_of_few(Vec<const std::int64_t> y, const double* from, const double* step,
                           double t, Index k, double* raw, Out losses, double* slopes,
                           double* along, double* bends) {
    alignas(64) double z[few_classes][few_rows] = {};
    alignas(64) double top[few_rows], label[few_rows] = {}, above[few_rows] = {};
    alignas(64) double others[few_rows], total[few_rows], scale[few_rows];
    for (Index first = 0; first < y.size; first += few_rows) {
        const Index size = std::min(few_rows, y.size - first);
        const double* __restrict source = from + first * k;
        if constexpr (has_step) {
            const double* __restrict move = step + first * k;
            double* __restrict to = raw + first * k;
#pragma omp simd
            for (Index j = 0; j < size * k; ++j) to[j] = source[j] + t * move[j];
            source = to;
        }
        for (Index i = 0; i < size; ++i) {
            for (Index c = 0; c < k; ++c) z[c][i] = source[i * k + c];
            label[i] = static_cast<double>(y[first + i]);
            above[i] = -source[i * k + y[first + i]];
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
        if constexpr (has_step) {
            const double* __restrict move = step + first * k;
            for (Index i = 0; i < size; ++i) {
                double rise = 0.0, bend = -2.0 * to[i * k + y[first + i]];
                for (Index c = 0; c < k; ++c) {
                    const double s = to[i * k + c];
                    rise += s * move[i * k + c], bend -= s * s;
                }
                along[first + i] = rise, bends[first + i] = bend;
            }
        }
    }
}

template <bool has_step>
inline void softmax_of_many(Vec<const std::int64_t> y, const double* from, const double* step,
                            double t, Index k, double* raw, Out losses, double* slopes,
                            double* along, double* bends) {
    const Index width = (k + class_lanes - 1) / class_lanes * class_lanes;
    const Index most = std::max<Index>(1, std::min(class_rows, class_block / width));
    Scratch room(static_cast<std::size_t>(most * width), no_class);
    double rest[class_rows], above[class_rows], of_label[class_rows];
    for (Index first = 0; first < y.size; first += most) {
        const Index size = std::min(most, y.size - first);
        for (Index i = 0; i < size; ++i) {
            const double* __restrict source = from + (first + i) * k;
            double* __restrict own = room.data() + i * width;
            double top = -infinity;
            if constexpr (has_step) {
                const double* __restrict move = step + (first + i) * k;
                double* __restrict to = raw + (first + i) * k;
#pragma omp simd reduction(max : top)
                for (Index c = 0; c < k; ++c) {
                    const double there = source[c] + t * move[c];
                    to[c] = there, own[c] = there;
                    top = there > top ? there : top;
                }
            } else {
#pragma omp simd reduction(max : top)
                for (Index c = 0; c < k; ++c) {
                    own[c] = source[c];
                    top = source[c] > top ? source[c] : top;
                }
            }
            const Index label = y[first + i];
            above[i] = top - own[label];
            // log(total) loses the digits of a loss near 0: total - 1 is summed without the 1.
            own[label] = no_class;
            double others = 0.0;
#pragma omp simd reduction(+ : others)
            for (Index c = 0; c < width; ++c) {
                const double e = exp_fast(own[c] - top);
                own[c] = e;
                others += e;
            }
            rest[i] = others;
        }
#pragma omp simd
        for (Index i = 0; i < size; ++i) of_label[i] = exp_fast(-above[i]);
        for (Index i = 0; i < size; ++i) {
            double *__restrict own = room.data() + i * width, *__restrict to = slopes + (first + i) * k;
            const Index label = y[first + i];
            const double others = rest[i], total = others + of_label[i], scale = 1.0 / total;
            const double at_label = -others * scale;
            rest[i] = above[i] == 0.0 ? others : total - 1.0;
            if constexpr (has_step) {
                const double* __restrict move = step + (first + i) * k;
                double rise = 0.0, square = 0.0;
#pragma omp simd reduction(+ : rise, square)
                for (Index c = 0; c < k; ++c) {
                    const double s = own[c] * scale;
                    to[c] = s;
                    rise += s * move[c], square += s * s;
                }
                along[first + i] = rise + at_label * move[label];
                bends[first + i] = -2.0 * at_label - at_label * at_label - square;
            } else {
#pragma omp simd
                for (Index c = 0; c < k; ++c) to[c] = own[c] * scale;
            }
            to[label] = at_label;
            for (Index c = k; c < width; ++c) own[c] = no_class;
        }
        double* __restrict out = losses.data + first;
#pragma omp simd
        for (Index i = 0; i < size; ++i) out[i] = log1p_positive(rest[i]) + above[i];
    }
}

}  // namespace detail

// Softmax cross-entropy of rows: losses, and slopes (softmax minus one-hot), at raw + t step where
// there is a step; then `raw` receives that, `along` each row's <slopes, step>, and `bends` its
// tr(diag(pi) - pi pi'). The labels are numbers of outputs.
template <bool has_step>
inline void softmax_rows(Vec<const std::int64_t> y, const double* from, const double* step,
                         double t, Index k, double* raw, Out losses, double* slopes,
                         double* along = nullptr, double* bends = nullptr) {
    if (k <= detail::few_classes) {
        detail::softmax_of_few<has_step>(y, from, step, t, k, raw, losses, slopes, along, bends);
    } else {
        detail::softmax_of_many<has_step>(y, from, step, t, k, raw, losses, slopes, along, bends);
    }
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
