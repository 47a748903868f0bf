#include "dual_ranges.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "math.hpp"
#include "threads.hpp"

namespace drago {

namespace {

// Rows at a time, and those that look for their pools together.
constexpr Index chunk = 1 << 14, few = 256, together = 16;

struct Row {
    double u, p;
};

// The last pool whose least loss is at most the value; of `together` values at once, so that their
// loads from memory overlap.
void find_pools(In first, const double* values, std::int64_t* found) {
    std::int64_t at[together] = {};
    Index left = first.size;
    const double* __restrict from = first.data;
    while (left > 1) {
        const Index half = left / 2;
#pragma omp simd
        for (Index j = 0; j < together; ++j) at[j] += from[at[j] + half] <= values[j] ? half : 0;
        left -= half;
    }
    std::copy(at, at + together, found);
}

}  // namespace

std::int64_t place_of(double value) {
    const double number = value + 0.0;  // -0 + 0 is 0
    std::int64_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits < 0 ? bits ^ INT64_MAX : bits;
}

double value_at(std::int64_t place) {
    const std::int64_t bits = place < 0 ? place ^ INT64_MAX : place;
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

void count_places(In u, double low, double high, int shift, Vec<std::int64_t> counts) {
    const auto base = static_cast<std::uint64_t>(place_of(low));
    for (Index i = 0; i < u.size; ++i) {
        if (u[i] < low || u[i] > high) continue;
        ++counts[static_cast<Index>((static_cast<std::uint64_t>(place_of(u[i])) - base) >> shift)];
    }
}

Index gather_range(In u, In p, double low, double high, Out out, Index count) {
    Index k = count;
    // Written and then kept or not: which it is, no processor can foresee.
    if (p.empty()) {
        for (Index i = 0; i < u.size; ++i) {
            out[k] = u[i];
            k += u[i] >= low && u[i] <= high;
        }
        return k;
    }
    for (Index i = 0; i < u.size; ++i) {
        out[2 * k] = u[i];
        out[2 * k + 1] = p[i];
        k += u[i] >= low && u[i] <= high;
    }
    return k;
}

void sort_pairs(Out pairs) {
    Row* rows = reinterpret_cast<Row*>(pairs.data);
    std::sort(rows, rows + pairs.size / 2,
              [](const Row& a, const Row& b) { return a.u < b.u || (a.u == b.u && a.p < b.p); });
}

Taken next_atoms(In sorted, bool in_pairs, Index start, Out values, Out masses) {
    const Index step = in_pairs ? 2 : 1, n = sorted.size / step;
    Index row = start, atoms = 0;
    while (row < n && atoms < values.size) {
        const double value = sorted[step * row];
        double mass = 0.0;
        for (; row < n && sorted[step * row] == value; ++row)
            mass += in_pairs ? sorted[2 * row + 1] : 1.0;
        values[atoms] = value;
        masses[atoms++] = mass;
    }
    return {row, atoms};
}

Index push_atoms(int kind, In u, In p, In sigma, double c, Pools<double> pools, Index count) {
    const auto [first, one, two, three] = pools;
    const double inverse = 1.0 / c;
    Index top = count - 1;
    for (Index k = 0; k < u.size; ++k) {
        double least = u[k];
        if (kind == CHI2_POOLS) {
            double mean = 0.0, mass = p[k], level = sigma[k] / p[k];
            while (top >= 0) {
                const double shift = least - first[top] + mean - one[top];
                const double rise = level - three[top];
                if (rise < shift * inverse) break;  // v rises from the pool before to this one
                const double total = two[top] + mass, share = mass / total;
                mean = one[top] + shift * share;
                level = three[top] + rise * share;
                mass = total;
                least = first[top--];
            }
            ++top;
            one[top] = mean;
            two[top] = mass;
            three[top] = level;
        } else if (kind == KL_POOLS) {
            double scaled = p[k], weight = sigma[k];
            while (top >= 0) {
                const double exponent = (one[top] - u[k]) * inverse;
                const double decay = exponent > -700.0 ? two[top] * exp_fast(exponent) : 0.0;
                // A pool without weight has v = inf and joins the next, also without decay.
                if (decay * weight < scaled * three[top]) break;
                scaled += decay;
                weight += three[top];
                least = first[top--];
            }
            ++top;
            one[top] = u[k];
            two[top] = scaled;
            three[top] = weight;
        } else {
            three[++top] = sigma[k] / p[k];
        }
        first[top] = least;
    }
    return top + 1;
}

void pool_weights(int kind, In u, In p, double unit, double low, double high, double c,
                  double scale, Pools<const double> pools, Out q, Out mirror, Index n_threads) {
    const double inverse = 1.0 / c;
    const auto [first, one, two, three] = pools;
    const auto weigh = [&, first = first, one = one, two = two, three = three](
                           const std::int64_t* rows, const double* values, Index size) {
        std::int64_t pool[few];
        for (Index j = 0; j < size; j += together) find_pools(first, values + j, pool + j);
        for (Index j = 0; j < size; ++j) {
            const std::int64_t i = rows[j], b = pool[j];
            const double level = three[b] * scale;
            double ratio = level, log_ratio = 0.0;
            if (kind == CHI2_POOLS) {
                const double base = level - one[b] * inverse;
                ratio = std::max((values[j] - first[b]) * inverse + base, 0.0);
            } else if (kind == KL_POOLS) {
                const double exponent = (values[j] - one[b]) * inverse, peak = level / two[b];
                const double value = exponent > -700.0 ? peak * exp_fast(exponent) : 0.0;
                ratio = exponent == 0.0 ? peak : value;
                if (!mirror.empty()) log_ratio = exponent + std::log(peak);
            }
            q[i] = ratio * (p.empty() ? unit : p[i]);
            if (!mirror.empty()) mirror[i] = kind == KL_POOLS ? log_ratio : ratio;
        }
    };
    in_parts((u.size + chunk - 1) / chunk, n_threads, [&](Index part) {
        std::int64_t rows[few];
        double values[few] = {};
        Index size = 0;
        const Index end = std::min((part + 1) * chunk, u.size);
        for (Index i = part * chunk; i < end; ++i) {
            rows[size] = i;
            values[size] = u[i];
            size += u[i] >= low && u[i] <= high;
            if (size < few) continue;
            weigh(rows, values, size);
            size = 0;
        }
        weigh(rows, values, size);
    });
}

}  // namespace drago
