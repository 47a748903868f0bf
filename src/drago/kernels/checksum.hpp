// The check sum of bytes in files: cheap beside their reading, and other where words change places.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "views.hpp"

namespace drago {

constexpr std::uint64_t CHECKSUM_STEP = 0x9E3779B97F4A7C15u;

// What the word at a place of a part adds: t + (t mod 2^32) floor(t / 2^32), t = word xor key.
inline std::uint64_t checksum_term(std::uint64_t word, std::uint64_t place) {
    const std::uint64_t t = word ^ (place * CHECKSUM_STEP);
    return t + (t & 0xFFFFFFFFu) * (t >> 32);
}

// Little endian, whatever the machine.
inline std::uint64_t checksum_word(const unsigned char* data, Index size) {
    std::uint64_t word = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    std::memcpy(&word, data, static_cast<std::size_t>(size));
#else
    for (Index k = 0; k < size; ++k) word |= static_cast<std::uint64_t>(data[k]) << (8 * k);
#endif
    return word;
}

// The sum over the words of `size` bytes, the last one filled up with 0, modulo 2^64. `start` is
// the place of the first word in its part: what pieces of whole words give sums to that of all.
inline std::uint64_t checksum(const unsigned char* data, Index size, std::uint64_t start) {
    const Index n = size / 8;
    std::uint64_t sum = 0;
    Index i = 0;
#if defined(__SSE2__)
    // Compilers do not see that both factors have 32 bits, and multiply three times.
    const auto two = [](std::uint64_t a, std::uint64_t b) {
        return _mm_set_epi64x(static_cast<long long>(b), static_cast<long long>(a));
    };
    const std::uint64_t key = start * CHECKSUM_STEP;
    const __m128i step = two(4 * CHECKSUM_STEP, 4 * CHECKSUM_STEP);
    __m128i keys[2] = {two(key, key + CHECKSUM_STEP),
                       two(key + 2 * CHECKSUM_STEP, key + 3 * CHECKSUM_STEP)};
    __m128i sums[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 2; ++k) {
            const auto* words = reinterpret_cast<const __m128i*>(data + 8 * i + 16 * k);
            const __m128i t = _mm_xor_si128(_mm_loadu_si128(words), keys[k]);
            const __m128i product = _mm_mul_epu32(t, _mm_srli_epi64(t, 32));
            sums[k] = _mm_add_epi64(sums[k], _mm_add_epi64(t, product));
            keys[k] = _mm_add_epi64(keys[k], step);
        }
    std::uint64_t lanes[2];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), _mm_add_epi64(sums[0], sums[1]));
    sum = lanes[0] + lanes[1];
#endif
    for (; i < n; ++i)
        sum += checksum_term(checksum_word(data + 8 * i, 8), start + static_cast<std::uint64_t>(i));
    if (8 * n < size)
        sum += checksum_term(checksum_word(data + 8 * n, size - 8 * n),
                             start + static_cast<std::uint64_t>(n));
    return sum;
}

}  // namespace drago
