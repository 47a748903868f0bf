#include "guesses.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "math.hpp"

namespace drago {
namespace {

struct Guessed {
    double first, second;
};

template <int kind>
DRAGO_INLINE Guessed guessed(double tau, double inverse, double cap, double loss, double p) {
    const double x = (loss - tau) * inverse;
    if constexpr (kind == CHI2_GUESS) {
        const bool is_free = (x > 0.0) & (x < cap);
        return {p * std::min(std::max(x, 0.0), cap), is_free ? p : 0.0};
    } else if constexpr (kind == KL_GUESS) {
        const double ratio = exp_fast(std::min(x, 709.0));
        return {ratio < cap ? p * ratio : 0.0, ratio < cap ? 0.0 : p * cap};
    } else {
        (void)x, (void)p;
        return {0.0, 0.0};
    }
}

// `f(tag)` with the kind as the type's constant `tag.value`.
template <class F>
DRAGO_INLINE decltype(auto) with_kind(int kind, F&& f) {
    switch (kind) {
        case CHI2_GUESS:
            return f(std::integral_constant<int, CHI2_GUESS>{});
        case KL_GUESS:
            return f(std::integral_constant<int, KL_GUESS>{});
        default:
            return f(std::integral_constant<int, NO_GUESS>{});
    }
}

}  // namespace

void guess_weights(const Guess& guess, In p, In losses, Out first, Out second) {
    const double inverse = 1.0 / guess.nu, tau = guess.tau, cap = guess.cap;
    const double* __restrict loss = losses.data;
    double *__restrict one = first.data, *__restrict two = second.data;
    const auto fill = [=](auto tag, auto nominal) {
#pragma GCC ivdep
        for (Index r = 0; r < losses.size; ++r) {
            const Guessed here =
                guessed<decltype(tag)::value>(tau, inverse, cap, loss[r], nominal(r));
            one[r] = here.first;
            two[r] = here.second;
        }
    };
    with_kind(guess.kind, [&](auto tag) {
        with_shares(p, losses.size, 0, [&](auto nominal) { fill(tag, nominal); });
    });
}

Heavy find_heavy(In weights, In slopes, std::int64_t* places, double* products) {
    const double *__restrict weight = weights.data, *__restrict slope = slopes.data;
    Heavy found{0, 0.0, 0.0};
    each_where(
        0, weights.size, [=](Index r) DRAGO_INLINED { return weight[r] != 0.0; },
        [&](Index r) DRAGO_INLINED {
            places[found.count] = r;
            products[found.count++] = weight[r] * slope[r];
        });
    double mass = 0.0, along = 0.0;
#pragma omp simd reduction(+ : mass)
    for (Index r = 0; r < weights.size; ++r) mass += weight[r];
#pragma omp simd reduction(+ : along)
    for (Index k = 0; k < found.count; ++k) along += products[k];
    found.mass = mass, found.along = along;
    return found;
}

std::array<double, 3> combining(const Guess& guess, const Weighing& of, Index lo, Index hi) {
    const double *__restrict loss = of.losses.data + lo, *__restrict weight = of.q.data + lo;
    const double inverse = 1.0 / guess.nu, tau = guess.tau, cap = guess.cap;
    const auto found = [=](auto tag, auto nominal) {
        constexpr int kind = decltype(tag)::value;
        return sums<3>(hi - lo, [=](Index i) DRAGO_INLINED {
            const double p = nominal(i), q = weight[i];
            const Guessed here = guessed<kind>(tau, inverse, cap, loss[i], p);
            const bool inside = (q > 0.0) & (q < p * cap);
            if constexpr (kind == CHI2_GUESS) {
                const bool both = inside & (here.second > 0.0);
                return std::array<double, 3>{both ? q - here.first : 0.0, both ? p : 0.0,
                                             both ? 1.0 : 0.0};
            } else {
                const bool both = inside & (here.first > 0.0);
                return std::array<double, 3>{both ? q : 0.0, both ? here.first : 0.0,
                                             both ? 1.0 : 0.0};
            }
        });
    };
    return with_kind(guess.kind, [&](auto tag) {
        return with_shares(of.p, of.q.size, lo, [&](auto nominal) { return found(tag, nominal); });
    });
}

// Left is what rounding may not make of a weight that is the combination: more than a few units in
// the last place of the weight, or of p_i for one near a bound, where its digits come from the
// bound's. Slopes are read where there is something left: most rows have none.
Heavy find_rest(const Guess& guess, Combined with, const Weighing& of, Index lo, Index hi,
                std::int64_t* rows, double* rest) {
    constexpr double roundings = 64 * std::numeric_limits<double>::epsilon();
    const double *__restrict loss = of.losses.data + lo, *__restrict q = of.q.data + lo;
    const double* __restrict slope = of.slopes.data + lo;
    const double inverse = 1.0 / guess.nu, tau = guess.tau, cap = guess.cap;
    const auto fill = [=](auto tag, auto nominal) {
        constexpr int kind = decltype(tag)::value;
#pragma GCC ivdep
        for (Index r = 0; r < hi - lo; ++r) {
            const double p = nominal(r);
            const Guessed here = guessed<kind>(tau, inverse, cap, loss[r], p);
            const double one = with.a == 0.0 ? 0.0 : with.a * here.first;
            const double two = with.b == 0.0 ? 0.0 : with.b * here.second;
            const double left = kind == NO_GUESS ? q[r] : (q[r] - one) - two;
            const double allowed = kind == NO_GUESS ? 0.0 : roundings * (q[r] + p);
            rest[r] = std::fabs(left) > allowed ? left : 0.0;
        }
    };
    with_kind(guess.kind, [&](auto tag) {
        with_shares(of.p, of.q.size, lo, [&](auto nominal) { fill(tag, nominal); });
    });
    Heavy found{0, 0.0, 0.0};
    each_where(
        0, hi - lo, [=](Index r) DRAGO_INLINED { return rest[r] != 0.0; },
        [&](Index r) DRAGO_INLINED {
            const double product = rest[r] * slope[r];
            rows[found.count] = lo + r;
            rest[found.count] = product;
            found.count += product != 0.0;
        });
    for (Index k = 0; k < found.count; ++k) found.along += rest[k];
    return found;
}

}  // namespace drago
