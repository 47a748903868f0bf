// What NumPy tells of a long vector by one thread and with temporary ones: here by as many threads
// as are allowed, and without.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "threads.hpp"

namespace drago {

// How many entries are greater than a level.
inline Index count_above(In u, double level) {
    const double* __restrict value = u.data;
    const auto [found] = long_sums<1>(u.size, [=](Index i) DRAGO_INLINED {
        return std::array<double, 1>{value[i] > level ? 1.0 : 0.0};
    });
    return static_cast<Index>(found);
}

// `extremes` by threads.
inline Extremes long_extremes(In u) {
    const Index count = std::max<Index>(1, u.size / long_part);
    std::vector<Extremes> found(count);
    in_parts(count, Helpers::allowed(), [&](Index k) {
        found[k] = extremes(u.part(k * long_part, k + 1 < count ? (k + 1) * long_part : u.size));
    });
    for (Extremes other : found) found[0].take(other);
    return found[0];
}

// Bit r says whether value[r] > level, of so many entries or of `size`.
template <Index fixed>
DRAGO_INLINE std::uint64_t marks_above(const double* __restrict value, double level,
                                       Index size = fixed) {
    std::uint64_t bits = 0;
#pragma omp simd reduction(| : bits)
    for (Index r = 0; r < (fixed > 0 ? fixed : size); ++r)
        bits |= static_cast<std::uint64_t>(value[r] > level) << r;
    return bits;
}

// The places of entries greater than a level, in order: these are marked in bits and counted first,
// which says where each part writes its own. `room` makes room for so many.
template <class Room>
void places_above(In u, double level, const Room& room) {
    constexpr Index in_word = 64, words_of_part = long_part / in_word;
    const Index n = u.size, words = (n + in_word - 1) / in_word;
    const Index count = std::max<Index>(1, n / long_part);
    std::vector<std::uint64_t> marks(words);
    std::vector<Index> start(count + 1);
    const auto end_of = [=](Index k) { return k + 1 < count ? (k + 1) * words_of_part : words; };
    in_parts(count, Helpers::allowed(), [&](Index k) {
        Index found = 0;
        for (Index word = k * words_of_part; word < end_of(k); ++word) {
            const In part = u.part(word * in_word, std::min(n, (word + 1) * in_word));
            marks[word] = part.size == in_word ? marks_above<in_word>(part.data, level)
                                               : marks_above<0>(part.data, level, part.size);
            found += __builtin_popcountll(marks[word]);
        }
        start[k + 1] = found;
    });
    for (Index k = 0; k < count; ++k) start[k + 1] += start[k];
    std::int64_t* const out = room(start[count]);
    in_parts(count, Helpers::allowed(), [&](Index k) {
        std::int64_t* to = out + start[k];
        for (Index word = k * words_of_part; word < end_of(k); ++word)
            for (std::uint64_t bits = marks[word]; bits != 0; bits &= bits - 1)
                *to++ = word * in_word + __builtin_ctzll(bits);
    });
}

}  // namespace drago
