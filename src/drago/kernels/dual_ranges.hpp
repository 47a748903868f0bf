// The dual oracle of a spectral set on rows that are sorted range by range, not all at once.
//
// Losses come in ascending ranges, each sorted by itself, as atoms: distinct values and their
// masses. The pools of dual_spectral.hpp then are a stack that each atom is pushed on; what lies
// below its top is not touched, so the stack may be in a file. At the end a row finds its pool by
// its loss.
#pragma once

#include <cstdint>

#include "views.hpp"

namespace drago {

enum PoolKind { VERTEX_POOLS = 0, CHI2_POOLS = 1, KL_POOLS = 2 };

// Of each pool the least loss, and three numbers: with chi2 the mean of the losses above that, the
// mass, and the weight by mass; with KL the greatest loss, sum p exp((u - that) / c), and the
// weight; of a vertex the last is the weight by mass, and the others are not used.
struct Pools {
    Out first, one, two, three;
};

// Integers in the order of the numbers; 0 and -0 are one.
std::int64_t place_of(double value);
double value_at(std::int64_t place);

// How many of the losses from `low` to `high` lie in each of the ranges of 2^shift places from
// that of `low` on.
void count_places(In u, double low, double high, int shift, Vec<std::int64_t> counts);

// The losses from `low` to `high`, and their p where there is one, behind the `count` that are
// there: (loss, p) pairs or losses alone. Returns how many are there then; `out` has room for one
// more than that.
Index gather_range(In u, In p, double low, double high, Out out, Index count);

// Pairs in the order of both, so that it does not matter how they came.
void sort_pairs(Out pairs);

// The next atoms of a sorted range, from its row `start` on, as many as there is room for; counts
// are the masses of losses alone. Returns the row after them, and how many they are.
struct Taken {
    Index row, atoms;
};
Taken next_atoms(In sorted, bool in_pairs, Index start, Out values, Out masses);

// Atoms on top of `count` pools; returns how many there are then.
Index push_atoms(int kind, In u, In p, In sigma, double c, Pools pools, Index count);

// All pushed: the third number of a pool becomes q / p at its least loss (chi2), at its greatest
// (KL) or everywhere (a vertex), times `scale`.
void settle_pools(int kind, double c, double scale, Out one, In two, Out three);

// Pools between two entries of `coarse`.
inline constexpr Index stride = 32;

// The weights of the rows whose losses lie between `low` and `high`, and where it is not empty
// their mirror coordinate. An empty p stands for `unit` each. Of the pools there is their least
// loss, every stride-th of these, with KL their greatest loss, and what settle_pools gave.
void pool_weights(int kind, In u, In p, double unit, double low, double high, double c,
                  In first, In coarse, In last, In level, Out q, Out mirror, Index n_threads);

}  // namespace drago
