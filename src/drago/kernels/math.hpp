// Exponentials and sums in a form that the compiler spreads over the lanes of a vector.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>

#include "views.hpp"

#define DRAGO_INLINE [[gnu::always_inline]] inline
// For lambdas, whose attributes stand after their arguments.
#define DRAGO_INLINED __attribute__((always_inline))

namespace drago {

struct Reduced {
    double scale, rest;  // exp(x) = scale (1 + rest)
};

// x = k ln 2 + r with |r| <= ln 2 / 2: gives 2^k and exp(r) - 1, for -708 <= x <= 709.
DRAGO_INLINE Reduced reduced_exp(double x) {
    // Added to a number below 2^51, it rounds that to an integer, which its last bits then hold.
    const double shifter = 0x1.8p52;
    const double shifted = x * 1.4426950408889634 + shifter;
    const double k = shifted - shifter;
    // The first part of ln 2 has so few digits that its product with k is exact.
    const double r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    // (exp(r) - 1 - r - r^2 / 2) / r^3, at Chebyshev's nodes; off by 1e-18 of exp(r).
    const double r2 = r * r;
    const double even =
        0.16666666666666669 +
        r2 * (0.008333333333330051 +
              r2 * (0.00019841269863105968 +
                    r2 * (2.7557268378684192e-06 + r2 * 2.5100424157005067e-08)));
    const double odd =
        0.041666666666666664 +
        r2 * (0.0013888888888886545 +
              r2 * (2.4801587317181886e-05 +
                    r2 * (2.755728291148268e-07 + r2 * 2.0911264239196083e-09)));
    std::uint64_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    double scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return {scale, r + r2 * (0.5 + r * (even + r * odd))};
}

// exp(x). A result that is denormal is 0 here (x < -708), and one above exp(709) is inf. Largest
// error at 120,000 points in [-700, 700], against mpmath: 0.96 units in the last place, 1.5e-16 of
// the result.
DRAGO_INLINE double exp_fast(double x) {
    const Reduced found = reduced_exp(x);
    const double value = found.scale + found.scale * found.rest;
    return x < -708.0 ? 0.0 : (x > 709.0 ? infinity : value);
}

// exp(x) - 1, for x up to 709. Largest error at as many points in [-49, 30] and near 0: 1.9 units
// in the last place, 2.5e-16 of the result.
DRAGO_INLINE double expm1_fast(double x) {
    const Reduced found = reduced_exp(x);
    const double value = (found.scale - 1.0) + found.scale * found.rest;
    return x < -50.0 ? -1.0 : (x > 709.0 ? infinity : value);
}

// log(1 + e) for 0 <= e <= 1: with s = f / (2 + f) it is log(1 + f) = 2 atanh(s), and what that
// series has beyond 2 s is a polynomial in s^2, at Chebyshev's nodes; f - f^2 / 2 + ... keeps the
// digits of a small f. Largest error at 120,000 points, against mpmath: 1.4 units in the last
// place.
DRAGO_INLINE double log1p_unit(double e) {
    const bool halved = e > 0.41421356237309503;
    const double f = halved ? 0.5 * (e - 1.0) : e;  // 1 + e or half of it is 1 + f
    const double s = f / (2.0 + f), half = 0.5 * f * f, z = s * s, w = z * z;
    const double odd =
        z * (0.666666666666667 +
             w * (0.28571428626001427 + w * (0.18182889433757515 + w * 0.14616576421644387)));
    const double even = w * (0.3999999999989945 +
                             w * (0.22222211130560726 + w * 0.15331711346672997));
    // ln 2 in two parts.
    const double high = halved ? 6.93147180369123816490e-01 : 0.0;
    const double low = halved ? 1.90821492927058770002e-10 : 0.0;
    return high + (f - (half - (s * (half + (odd + even)) + low)));
}

// How many partial sums a long sum is split into: one alone waits for each of its additions.
#ifdef __AVX512F__
inline constexpr Index lanes = 32;
#else
inline constexpr Index lanes = 16;
#endif

namespace detail {

// Not `omp simd`: it would keep the array that a term is in memory.
template <std::size_t K, class Term, std::size_t... k>
DRAGO_INLINE std::array<double, K> split_sums(Index n, Term term, std::index_sequence<k...>) {
    double held[K][lanes] = {}, last[K] = {};
    Index i = 0;
    for (; i + lanes <= n; i += lanes) {
#pragma GCC ivdep
        for (Index l = 0; l < lanes; ++l) {
            const std::array<double, K> here = term(i + l);
            ((held[k][l] += here[k]), ...);
        }
    }
    for (; i + 8 <= n; i += 8) {
#pragma GCC ivdep
        for (Index l = 0; l < 8; ++l) {
            const std::array<double, K> here = term(i + l);
            ((held[k][l] += here[k]), ...);
        }
    }
    for (; i < n; ++i) {
        const std::array<double, K> here = term(i);
        ((last[k] += here[k]), ...);
    }
    const auto folded = [](const double* h) DRAGO_INLINED {
        double eight[8];
        for (Index l = 0; l < 8; ++l) {
            eight[l] = h[l] + h[l + 8];
            if constexpr (lanes == 32) eight[l] += h[l + 16] + h[l + 24];
        }
        return ((eight[0] + eight[4]) + (eight[1] + eight[5])) +
               ((eight[2] + eight[6]) + (eight[3] + eight[7]));
    };
    return {(folded(held[k]) + last[k])...};
}

}  // namespace detail

// The sums over i < n of the K terms `term(i)`, an array; in another order than one by one.
template <std::size_t K, class Term>
DRAGO_INLINE std::array<double, K> sums(Index n, Term term) {
    return detail::split_sums<K>(n, term, std::make_index_sequence<K>{});
}

// Calls use(nominal) with what gives the nominal weight of the r-th row from `first` on, of n rows:
// p may have one entry for all.
template <class Use>
DRAGO_INLINE auto with_shares(In p, Index n, Index first, const Use& use) {
    if (p.size == 1 && n > 1) return use([share = p[0]](Index) DRAGO_INLINED { return share; });
    const double* __restrict nominal = p.data + first;
    return use([=](Index r) DRAGO_INLINED { return nominal[r]; });
}

// Calls found(i) in order for the places lo <= i < hi where there(i) says so. These are marked in
// bits first: a branch for each place would be one that nobody can foretell.
template <class There, class Found>
DRAGO_INLINE void each_where(Index lo, Index hi, There there, Found found) {
    for (Index start = lo; start < hi; start += 64) {
        const Index size = std::min<Index>(64, hi - start);
        std::uint64_t bits = 0;
#pragma omp simd reduction(| : bits)
        for (Index r = 0; r < size; ++r) bits |= static_cast<std::uint64_t>(there(start + r)) << r;
        for (; bits != 0; bits &= bits - 1) found(start + __builtin_ctzll(bits));
    }
}

// The places of u in increasing order, what is no number at the end: an order
// that is none would be out of bounds.
inline void sort_places(In u, Vec<std::int64_t> order) {
    std::iota(order.data, order.data + order.size, std::int64_t{0});
    std::sort(order.data, order.data + order.size, [&](std::int64_t i, std::int64_t j) {
        return u[i] < u[j] || (u[j] != u[j] && u[i] == u[i]);
    });
}

// `!(v <= h)` takes a NaN in; `h == h` keeps it.
DRAGO_INLINE double greater_of(double v, double h) { return !(v <= h) & (h == h) ? v : h; }
DRAGO_INLINE double lesser_of(double v, double h) { return !(v >= h) & (h == h) ? v : h; }

struct Extremes {
    double least, greatest;

    void take(Extremes other) {
        least = lesser_of(other.least, least);
        greatest = greater_of(other.greatest, greatest);
    }
};

// The least and the greatest entry; NaN where there is one.
inline Extremes extremes(In u) {
    double least[lanes], greatest[lanes];
    const double* __restrict at = u.data;
    for (Index l = 0; l < lanes; ++l) least[l] = greatest[l] = u[0];
    Index i = 0;
    for (; i + lanes <= u.size; i += lanes) {
#pragma omp simd
        for (Index l = 0; l < lanes; ++l) {
            const double v = at[i + l], low = least[l], high = greatest[l];
            least[l] = lesser_of(v, low);
            greatest[l] = greater_of(v, high);
        }
    }
    Extremes found{least[0], greatest[0]};
    for (Index l = 1; l < lanes; ++l) found.take({least[l], greatest[l]});
    for (; i < u.size; ++i) found.take({at[i], at[i]});
    return found;
}

inline double largest(In u) { return extremes(u).greatest; }

}  // namespace drago
