// The check sum of bytes in files: cheap beside their reading, and other where words change places.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "views.hpp"

namespace drago {

// The keys of the two halves of word i: odd numbers a + i A and b + i B, modulo 2^32.
constexpr std::uint32_t CHECKSUM_FIRST[2] = {0x9E3779B9u, 0x85EBCA6Bu};
constexpr std::uint32_t CHECKSUM_STEP[2] = {0x7F4A7C16u, 0xC2B2AE3Eu};

// What the half at a place of a part adds: (half xor its own key) times the other key of its word.
inline std::uint64_t checksum_term(std::uint32_t half, std::uint64_t place) {
    const std::uint32_t word = static_cast<std::uint32_t>(place / 2);
    const int own = static_cast<int>(place % 2);
    const auto key = [&](int k) { return CHECKSUM_FIRST[k] + word * CHECKSUM_STEP[k]; };
    return static_cast<std::uint64_t>(half ^ key(own)) * key(1 - own);
}

// Little endian, whatever the machine.
inline std::uint32_t checksum_half(const unsigned char* data, Index size) {
    std::uint32_t half = 0;
    for (Index k = 0; k < size; ++k) half |= static_cast<std::uint32_t>(data[k]) << (8 * k);
    return half;
}

// The sum over the halves (of 32 bits) of `size` bytes, the last one filled up with 0, modulo 2^64.
// `start` is the place of the first half in its part: what pieces give sums to that of all.
inline std::uint64_t checksum(const unsigned char* data, Index size, std::uint64_t start) {
    const Index n = size / 4;
    std::uint64_t sum = 0;
    Index i = 0;
#if defined(__SSE2__)
    if (start % 2 == 1 && n > 0) {
        sum += checksum_term(checksum_half(data, 4), start);
        ++i;
    }
    // Two words at a time, twice: compilers do not see that all factors have 32 bits.
    const auto first = static_cast<std::uint32_t>((start + static_cast<std::uint64_t>(i)) / 2);
    const auto key = [&](int k, std::uint32_t word) {
        return static_cast<int>(CHECKSUM_FIRST[k] + (first + word) * CHECKSUM_STEP[k]);
    };
    __m128i keys[2], sums[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
    for (std::uint32_t k = 0; k < 2; ++k)
        keys[k] = _mm_set_epi32(key(1, 2 * k + 1), key(0, 2 * k + 1), key(1, 2 * k), key(0, 2 * k));
    const int steps[2] = {static_cast<int>(4 * CHECKSUM_STEP[0]),
                          static_cast<int>(4 * CHECKSUM_STEP[1])};
    const __m128i step = _mm_set_epi32(steps[1], steps[0], steps[1], steps[0]);
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 2; ++k) {
            const auto* words = reinterpret_cast<const __m128i*>(data + 4 * i + 16 * k);
            const __m128i t = _mm_xor_si128(_mm_loadu_si128(words), keys[k]);
            const __m128i low = _mm_mul_epu32(t, _mm_srli_epi64(keys[k], 32));
            const __m128i high = _mm_mul_epu32(_mm_srli_epi64(t, 32), keys[k]);
            sums[k] = _mm_add_epi64(sums[k], _mm_add_epi64(low, high));
            keys[k] = _mm_add_epi32(keys[k], step);
        }
    std::uint64_t lanes[2];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), _mm_add_epi64(sums[0], sums[1]));
    sum += lanes[0] + lanes[1];
#endif
    for (; i < n; ++i)
        sum += checksum_term(checksum_half(data + 4 * i, 4), start + static_cast<std::uint64_t>(i));
    if (4 * n < size)
        sum += checksum_term(checksum_half(data + 4 * n, size - 4 * n),
                             start + static_cast<std::uint64_t>(n));
    return sum;
}

}  // namespace drago
