// Losses and their derivatives with respect to the raw prediction, by loss code. A code that no
// single-output loss has gives NaN.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "math.hpp"
#include "views.hpp"

namespace drago {

enum LossCode : int { SQUARED = 0, HUBER = 1, LOGISTIC = 2, MULTINOMIAL = 3 };

struct LossSlope {
    double loss, slope;
};

// Value and derivative of one single-output loss at the raw prediction z; without branches, so that
// a loop over rows works on several at once.
template <int code>
DRAGO_INLINE LossSlope one_loss(double parameter, double y, double z) {
    if constexpr (code == SQUARED) {
        const double r = z - y;
        return {0.5 * r * r, r};
    } else if constexpr (code == HUBER) {
        const double r = z - y;
        const bool above = r > parameter, below = r < -parameter;
        const double side = above ? r : -r;
        const double line = parameter * (side - 0.5 * parameter), bowl = 0.5 * r * r;
        return {above | below ? line : bowl, above ? parameter : (below ? -parameter : r)};
    } else if constexpr (code == LOGISTIC) {
        // y in {0, 1}: log(1 + exp(-m)) with the margin m = +-z.
        const bool one = y > 0.5;
        const double m = one ? z : -z;
        const double e = exp_fast(-std::fabs(m));
        const double s = (m > 0.0 ? e : 1.0) / (1.0 + e);
        return {log1p_unit(e) - (m > 0.0 ? 0.0 : m), one ? -s : s};
    } else {
        (void)parameter, (void)y, (void)z;
        return {nan, nan};
    }
}

// Second derivative of one single-output loss at the raw prediction z.
template <int code>
DRAGO_INLINE double one_curvature(double parameter, double y, double z) {
    (void)parameter, (void)y, (void)z;
    if constexpr (code == SQUARED) {
        return 1.0;
    } else if constexpr (code == HUBER) {
        return std::fabs(z - y) <= parameter ? 1.0 : 0.0;
    } else if constexpr (code == LOGISTIC) {
        const double e = exp_fast(-std::fabs(z));
        return e / ((1.0 + e) * (1.0 + e));
    } else {
        return nan;
    }
}

// `f(tag)` with the code as the type's constant `tag.value`: -1 for one that no single-output loss
// has. A loop over rows asks for the loss once.
template <class F>
DRAGO_INLINE decltype(auto) with_code(int code, F&& f) {
    switch (code) {
        case SQUARED:
            return f(std::integral_constant<int, SQUARED>{});
        case HUBER:
            return f(std::integral_constant<int, HUBER>{});
        case LOGISTIC:
            return f(std::integral_constant<int, LOGISTIC>{});
        default:
            return f(std::integral_constant<int, -1>{});
    }
}

DRAGO_INLINE LossSlope one_single_output(int code, double parameter, double y, double z) {
    return with_code(code, [=](auto tag) DRAGO_INLINED {
        return one_loss<decltype(tag)::value>(parameter, y, z);
    });
}

DRAGO_INLINE double one_second(int code, double parameter, double y, double z) {
    return with_code(code, [=](auto tag) DRAGO_INLINED {
        return one_curvature<decltype(tag)::value>(parameter, y, z);
    });
}

// Softmax cross-entropy of one row of k; fills its slopes, softmax minus one-hot.
DRAGO_INLINE double one_multinomial(Index label, Index k, const double* raw, double* slopes) {
    double top = raw[0];
    for (Index c = 1; c < k; ++c) top = std::max(top, raw[c]);
    for (Index c = 0; c < k; ++c) slopes[c] = exp_fast(raw[c] - top);
    // log(total) loses the digits of a loss near 0: there total - 1 is summed without the 1.
    double total = 0.0, rest = 0.0;
    for (Index c = 0; c < k; ++c) {
        total += slopes[c];
        rest += c != label ? slopes[c] : 0.0;
    }
    const double loss =
        raw[label] == top ? std::log1p(rest) : std::log(total) + top - raw[label];
    double others = 0.0;
    for (Index c = 0; c < k; ++c) {
        slopes[c] /= total;
        others += c != label ? slopes[c] : 0.0;
    }
    slopes[label] = -others;
    return loss;
}

// Fills the losses and their derivatives of many rows in one pass.
void single_output(int code, double parameter, In y, In raw, Out losses, Out dlosses);

// z becomes the derivatives at the raw predictions z.
void slopes_at(int code, double parameter, const double* y, double* z, Index n);

// Whether each label is the number of an output; rows are filled up to the first that is none.
bool multinomial(Vec<const std::int64_t> y, Mat<const double> raw, Out losses, Mat<double> dlosses);

// Second derivative of each loss, times q if there are weights.
void second_single_output(int code, double parameter, In y, In raw, In q, Out out);

// The sums of p over the labels 0 and 1, and how many labels are neither.
std::array<double, 3> binary_masses(In y, In p);

}  // namespace drago
