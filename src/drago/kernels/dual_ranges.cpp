#include "dual_ranges.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "math.hpp"
#include "threads.hpp"

namespace drago {

namespace {

// Rows at a time; those that look for their pools one after the other, so that their loads from
// memory overlap, and those that do it in one step.
constexpr Index chunk = 1 << 14, few = 256, together = 16;
// Atoms that are pooled among themselves before they meet the pools below: a pool of all rows is
// then a sum of sums, which keeps more digits than one atom added after the other.
constexpr Index among = 1 << 12;

struct Row {
    double u, p;
};

struct Pool {
    double first, one, two, three;
};

// Of each kind: an atom as a pool, and whether a pool takes in the one below, which it does unless
// v rises from that one to it.
struct Vertex {
    static Pool atom(double u, double p, double sigma) { return {u, 0.0, 0.0, sigma / p}; }
    bool joins(Pool&, const Pool&) const { return false; }
};

struct Chi2 {
    double inverse;
    static Pool atom(double u, double p, double sigma) { return {u, 0.0, p, sigma / p}; }
    bool joins(Pool& here, const Pool& below) const {
        const double shift = here.first - below.first + here.one - below.one;
        const double rise = here.three - below.three;
        if (rise < shift * inverse) return false;
        const double mass = below.two + here.two, share = here.two / mass;
        here = {below.first, below.one + shift * share, mass, below.three + rise * share};
        return true;
    }
};

struct Kl {
    double inverse;
    static Pool atom(double u, double p, double sigma) { return {u, u, p, sigma}; }
    bool joins(Pool& here, const Pool& below) const {
        const double exponent = (below.one - here.one) * inverse;
        const double decay = exponent > -700.0 ? below.two * exp_fast(exponent) : 0.0;
        // A pool without weight has v = inf and joins the next, also without decay.
        if (decay * here.three < here.two * below.three) return false;
        here = {below.first, here.one, here.two + decay, here.three + below.three};
        return true;
    }
};

Pool read(const Pools& pools, Index b) {
    const bool is_vertex = pools.two.empty();
    return {pools.first[b], is_vertex ? 0.0 : pools.one[b], is_vertex ? 0.0 : pools.two[b],
            pools.three[b]};
}

void write(const Pools& pools, Index b, const Pool& pool) {
    pools.first[b] = pool.first;
    pools.three[b] = pool.three;
    if (pools.two.empty()) return;
    pools.one[b] = pool.one;
    pools.two[b] = pool.two;
}

template <class Kind>
Index push(const Kind& kind, In u, In p, In sigma, const Pools& pools, Index count) {
    for (Index start = 0; start < u.size; start += among) {
        const Index end = std::min(start + among, u.size);
        Index top = count;  // behind the last pool
        for (Index k = start; k < end; ++k) {
            Pool here = Kind::atom(u[k], p[k], sigma[k]);
            while (top > count && kind.joins(here, read(pools, top - 1))) --top;
            write(pools, top++, here);
        }
        Index from = count, to = count;
        for (bool is_settled = false; from < top && !is_settled;) {
            Pool here = read(pools, from++);
            const Index before = to;
            while (to > 0 && kind.joins(here, read(pools, to - 1))) --to;
            // Those above one that takes in nothing are in order already.
            is_settled = to == before;
            write(pools, to++, here);
        }
        if (to == from) to = from = top;
        while (from < top) write(pools, to++, read(pools, from++));
        count = to;
    }
    return count;
}

// The last of `size` ascending numbers, from places `at` on, that is at most the value: moves each
// place there.
void search(const double* __restrict numbers, Index size, const double* __restrict values,
            std::int64_t* __restrict at) {
    while (size > 1) {
        const Index half = size / 2;
#pragma omp simd
        for (Index j = 0; j < together; ++j)
            at[j] += numbers[at[j] + half] <= values[j] ? half : 0;
        size -= half;
    }
}

// The pool of each value: first among every `stride`-th, which stay in the cache, then among those
// from there on.
void find_pools(In first, In coarse, const double* values, Index size, std::int64_t* pool) {
    std::fill(pool, pool + few, 0);
    for (Index j = 0; j < size; j += together)
        search(coarse.data, coarse.size, values + j, pool + j);
    const Index width = std::min(first.size, stride), last = first.size - width;
    for (Index j = 0; j < size; ++j) {
        pool[j] = std::min(pool[j] * stride, last);
        for (Index k = 0; k < width; k += 8) __builtin_prefetch(first.data + pool[j] + k);
    }
    for (Index j = 0; j < size; j += together) search(first.data, width, values + j, pool + j);
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
        if (!(u[i] >= low && u[i] <= high)) continue;
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

Index push_atoms(int kind, In u, In p, In sigma, double c, Pools pools, Index count) {
    if (kind == CHI2_POOLS) return push(Chi2{1.0 / c}, u, p, sigma, pools, count);
    if (kind == KL_POOLS) return push(Kl{1.0 / c}, u, p, sigma, pools, count);
    return push(Vertex{}, u, p, sigma, pools, count);
}

void settle_pools(int kind, double c, double scale, Out one, In two, Out three) {
    for (Index b = 0; b < three.size; ++b) {
        three[b] *= scale;
        if (kind == CHI2_POOLS) three[b] -= one[b] / c;
        if (kind == KL_POOLS) three[b] /= two[b];
    }
}

void pool_weights(int kind, In u, In p, double unit, double low, double high, double c,
                  In first, In coarse, In last, In level, Out q, Out mirror, Index n_threads) {
    const double inverse = 1.0 / c;
    const auto weigh = [&](const std::int64_t* rows, const double* values, Index size) {
        std::int64_t pool[few];
        find_pools(first, coarse, values, size, pool);
        for (Index j = 0; j < size; ++j) {
            __builtin_prefetch(level.data + pool[j]);
            if (kind == KL_POOLS) __builtin_prefetch(last.data + pool[j]);
        }
        for (Index j = 0; j < size; ++j) {
            const std::int64_t i = rows[j], b = pool[j];
            double ratio = level[b], log_ratio = 0.0;
            if (kind == CHI2_POOLS) {
                ratio = std::max((values[j] - first[b]) * inverse + ratio, 0.0);
            } else if (kind == KL_POOLS) {
                const double exponent = (values[j] - last[b]) * inverse;
                if (!mirror.empty()) log_ratio = exponent + std::log(ratio);
                const double power = exponent > -700.0 ? exp_fast(exponent) : 0.0;
                ratio *= exponent == 0.0 ? 1.0 : power;
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
