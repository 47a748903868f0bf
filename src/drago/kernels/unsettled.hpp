// Lists of the rows whose weight a dual step can change, see drago.rows.tables.unsettled.
#pragma once

#include <algorithm>
#include <cstdint>

#include "math.hpp"
#include "views.hpp"

namespace drago {

// Where a list is kept: of each row its place, loss and weight.
template <class I>
struct Lists {
    Vec<I> where;
    Out level, weight;
};
template <class I>
Lists(Vec<I>, Out, Out) -> Lists<I>;

struct Found {
    Index size;
    double capped;
};

// List the rows `first` to `last` but those at 0 with a loss up to `low` and those at the cap with
// a loss from `high` on.
//
// The losses are those of the table and, where it is not empty, the `change`. The list is kept from
// `start` on. Returns how many rows there are, or -1 where there is no room for them, and the mass
// of the others that are at the cap. `p` has an entry for each row or a single one.
template <class I>
inline Found unsettled_find(In table, In change, In q, In p, Index first, Index last, double low,
                            double high, double cap, const Lists<I>& lists, Index start,
                            Index room) {
    I* __restrict where = lists.where.data + start;
    double *__restrict level = lists.level.data + start;
    double *__restrict weight = lists.weight.data + start;
    const auto list = [&](auto share_of, auto loss_of) -> Found {
        Index size = 0;
        double capped = 0.0;
        for (Index i = first; i < last; ++i) {
            if (size >= room) return {-1, 0.0};
            const double share = share_of(i), loss = loss_of(i), here = q[i];
            const bool is_full = (here >= share * cap) & (loss >= high);
            capped += is_full ? share : 0.0;
            where[size] = static_cast<I>(i);
            level[size] = loss;
            weight[size] = here;
            size += !(is_full | ((here == 0.0) & (loss <= low)));
        }
        return {size, capped};
    };
    const auto with_losses = [&](auto share_of) {
        if (change.empty()) return list(share_of, [=](Index i) { return table[i]; });
        return list(share_of, [=](Index i) { return table[i] + change[i - first]; });
    };
    if (p.size > 1) return with_losses([=](Index i) { return p[i]; });
    return with_losses([share = p[0]](Index) { return share; });
}

// The argument of the dual step for all rows in the lists, and their nominal weights; returns how
// many they are. The weights are left as they are where all rows have the same.
template <class I>
inline Index unsettled_collect(Vec<const I> where, In level, In weight, In p,
                               Vec<const std::int64_t> starts, Vec<const std::int64_t> sizes,
                               double s, Out u, Out mass) {
    Index at = 0;
    for (Index k = 0; k < starts.size; ++k) {
        const Index start = starts[k], size = sizes[k];
        double *__restrict to = u.data + at, *__restrict own = mass.data + at;
        const double *__restrict l = level.data + start, *__restrict q = weight.data + start;
        const I* __restrict from = where.data + start;
        if (p.size > 1)
            for (Index r = 0; r < size; ++r) own[r] = p[from[r]];
        for (Index r = 0; r < size; ++r) to[r] = l[r] + s * (q[r] / own[r]);
        at += size;
    }
    return at;
}

// The sum of some weights.
inline double unsettled_total(In values) {
    const double* __restrict value = values.data;
    const auto [total] = sums<1>(
        values.size, [=](Index i) DRAGO_INLINED { return std::array<double, 1>{value[i]}; });
    return total;
}

// New weights of the rows in the lists.
inline void unsettled_deal(In values, Vec<const std::int64_t> starts,
                           Vec<const std::int64_t> sizes, Out weight) {
    const double* from = values.data;
    for (Index k = 0; k < starts.size; ++k) {
        std::copy_n(from, sizes[k], weight.data + starts[k]);
        from += sizes[k];
    }
}

// The weights of a list, put in their places.
template <class I>
inline void unsettled_write(Vec<const I> where, In weight, Index start, Index size, Out q) {
    const I* __restrict to = where.data + start;
    const double* __restrict from = weight.data + start;
    double* __restrict out = q.data;
    for (Index r = 0; r < size; ++r) out[to[r]] = from[r];
}

}  // namespace drago
