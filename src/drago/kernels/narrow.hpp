// Products of a tall matrix with a narrow one, by tiles that stay in the registers: what the rows
// cost with a few outputs. A BLAS is made for wider ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "math.hpp"
#include "views.hpp"

namespace drago {

// So many numbers that lie in memory side by side; a template would forget their alignment.
struct Eights {
    static constexpr int size = 8;
    typedef double Lanes __attribute__((vector_size(64), aligned(8), may_alias));
};
struct Fours {
    static constexpr int size = 4;
    typedef double Lanes __attribute__((vector_size(32), aligned(8), may_alias));
};
struct Twos {
    static constexpr int size = 2;
    typedef double Lanes __attribute__((vector_size(16), aligned(8), may_alias));
};

// A tile of so many rows, or features, and of columns that are so many times what a register holds.
template <class Of, int times, int most>
struct Tile {
    using Numbers = Of;
    static constexpr int vectors = times, rows = most, columns = times * Of::size;
};

// The sums of a tile are to stay in the registers.
#if defined(__AVX512F__)
using WideTile = Tile<Eights, 2, 8>;
using MediumTile = Tile<Eights, 1, 8>;
using NarrowTile = Tile<Fours, 1, 8>;
#elif defined(__AVX__)
using WideTile = Tile<Fours, 2, 4>;
using MediumTile = WideTile;
using NarrowTile = Tile<Fours, 1, 8>;
#else
using WideTile = Tile<Twos, 4, 4>;
using MediumTile = WideTile;
using NarrowTile = Tile<Twos, 2, 4>;
#endif
// Columns are filled up to a multiple of so many; those before go into the wider tiles.
inline constexpr Index narrow_step = NarrowTile::columns;
// Rows at a time whose features stay in the cache.
inline constexpr Index narrow_block = 64;
// So many numbers ahead memory is asked for where a tile reads a little of row after row: they lie
// apart, and no processor asks by itself.
inline constexpr Index narrow_ahead = 32;

inline Index narrow_width(Index k) { return (k + narrow_step - 1) / narrow_step * narrow_step; }

namespace detail {

// run(i) for i = 0, 1, ..., each a constant: what a tile sums is to have names, not places.
template <int... i, class Run>
DRAGO_INLINE void each_of(std::integer_sequence<int, i...>, Run run) {
    (run(std::integral_constant<int, i>{}), ...);
}
template <int count, class Run>
DRAGO_INLINE void each_of(Run run) {
    each_of(std::make_integer_sequence<int, count>{}, run);
}

// run(r, v) for the rows of a tile and its vectors side by side.
template <int rows, int vectors, class Run>
DRAGO_INLINE void each_sum(Run run) {
    each_of<rows>([&](auto r) DRAGO_INLINED {
        each_of<vectors>([&](auto v) DRAGO_INLINED { run(r, v); });
    });
}

// raw = X w + b for some rows of d features and the columns of a tile; `left` is how many of these
// there are.
template <class Of, int rows>
inline void predict_tile(const double* x, Index d, const double* w, Index width, const double* b,
                         double* raw, Index stride, Index left) {
    using Lanes = typename Of::Numbers::Lanes;
    constexpr int size = Of::Numbers::size, vectors = Of::vectors;
    Lanes sum[rows][vectors];
    each_sum<rows, vectors>([&](auto r, auto v) DRAGO_INLINED {
        sum[r][v] = *reinterpret_cast<const Lanes*>(b + v * size);
    });
    // Some rows share an address: gcc keeps one for each, which are more than the registers.
    constexpr int shared = 3, addresses = (rows + shared - 1) / shared;
    const auto bytes = static_cast<Index>(sizeof(double)) * d;
    const char* from[addresses];
    each_of<addresses>([&](auto a) DRAGO_INLINED {
        from[a] = reinterpret_cast<const char*>(x + a * shared * d);
    });
    for (Index j = 0; j < d; ++j, w += width) {
        each_of<addresses>([&](auto a) DRAGO_INLINED { asm("" : "+r"(from[a])); });
        each_sum<rows, vectors>([&](auto r, auto v) DRAGO_INLINED {
            const char* at = from[r / shared] + r % shared * bytes;
            sum[r][v] += *reinterpret_cast<const double*>(at) *
                         *reinterpret_cast<const Lanes*>(w + v * size);
        });
        each_of<addresses>([&](auto a) DRAGO_INLINED { from[a] += sizeof(double); });
    }
    each_of<rows>([&](auto r) DRAGO_INLINED {
        double* to = raw + r * stride;
        if (left >= Of::columns) {
            each_of<vectors>([&](auto v) DRAGO_INLINED {
                *reinterpret_cast<Lanes*>(to + v * size) = sum[r][v];
            });
        } else {
            double own[Of::columns];
            std::memcpy(own, sum[r], sizeof own);
            for (Index c = 0; c < left; ++c) to[c] = own[c];
        }
    });
}

// out (d x width) += x' s for `rows` rows: some features and the columns of a tile.
template <class Of, int features>
inline void gradient_tile(const double* const* x, Index rows, Index j, const double* s,
                          Index width, double* out) {
    using Lanes = typename Of::Numbers::Lanes;
    constexpr int size = Of::Numbers::size, vectors = Of::vectors;
    Lanes sum[features][vectors] = {};
    for (Index i = 0; i < rows; ++i, s += width) {
        const double* row = x[i] + j;
        __builtin_prefetch(row + narrow_ahead, 0, 3);
        asm("" : "+r"(row));  // or gcc keeps an address for each feature, again
        each_sum<features, vectors>([&](auto r, auto v) DRAGO_INLINED {
            sum[r][v] += row[r] * *reinterpret_cast<const Lanes*>(s + v * size);
        });
    }
    each_sum<features, vectors>([&](auto r, auto v) DRAGO_INLINED {
        *reinterpret_cast<Lanes*>(out + r * width + v * size) += sum[r][v];
    });
}

// work(tile, c) for columns from 0 to `width` on, in wide tiles first.
template <class Work>
DRAGO_INLINE void over_columns(Index width, Work work) {
    Index c = 0;
    for (; c + WideTile::columns <= width; c += WideTile::columns) work(WideTile{}, c);
    if constexpr (MediumTile::columns < WideTile::columns)
        for (; c + MediumTile::columns <= width; c += MediumTile::columns) work(MediumTile{}, c);
    for (; c < width; c += NarrowTile::columns) work(NarrowTile{}, c);
}

// part(size, first) for rows or features from `first` to `end`: `most` at a time, which is a power
// of 2, and fewer at the end.
template <int most, class Part>
DRAGO_INLINE void in_parts(Index first, Index end, Part part) {
    for (; first + most <= end; first += most) part(std::integral_constant<int, most>{}, first);
    if constexpr (most > 1) in_parts<most / 2>(first, end, part);
}

// total (d x width) += x' s for some rows.
[[gnu::noinline]] inline void add_rows(const double* const* x, Index count, Index d,
                                       const double* s, Index width, double* total) {
    over_columns(width, [&](auto tile, Index c) {
        in_parts<tile.rows>(0, d, [&](auto features, Index j) {
            gradient_tile<decltype(tile), features>(x, count, j, s + c, width,
                                                    total + j * width + c);
        });
    });
}

// total += the sums of the columns of s.
inline void add_columns(Index rows, const double* s, Index width, double* total) {
    for (Index c = 0; c < width; c += narrow_step) {
        double sum[narrow_step] = {};
        const double* from = s + c;
        for (Index i = 0; i < rows; ++i, from += width) {
#pragma omp simd
            for (Index r = 0; r < narrow_step; ++r) sum[r] += from[r];
        }
        for (Index r = 0; r < narrow_step; ++r) total[c + r] += sum[r];
    }
}

}  // namespace detail

// raw = X w + b, for some rows at a time.
class NarrowProduct {
  public:
    // `beyond` is what stands in columns beyond the last.
    NarrowProduct(Mat<const double> w, In b, double beyond = 0.0)
        : d(w.rows), k(w.cols), width(narrow_width(k)),
          filled(static_cast<std::size_t>((d + 1) * width)) {
        for (Index j = 0; j < d; ++j) std::copy(w.row(j), w.row(j) + k, filled.data() + j * width);
        std::copy(b.data, b.data + k, filled.data() + d * width);
        std::fill(filled.data() + d * width + k, filled.data() + (d + 1) * width, beyond);
    }

    // With so many columns in a row of `raw`.
    [[gnu::noinline]] void rows(Mat<const double> X, double* raw, Index stride) const {
        const double *w = filled.data(), *shift = w + d * width;
        for (Index start = 0; start < X.rows; start += narrow_block) {
            const Index end = std::min(start + narrow_block, X.rows);
            detail::over_columns(width, [&](auto tile, Index c) {
                detail::in_parts<tile.rows>(start, end, [&](auto rows, Index i) {
                    detail::predict_tile<decltype(tile), rows>(X.row(i), d, w + c, width, shift + c,
                                                               raw + i * stride + c, stride,
                                                               stride - c);
                });
            });
        }
    }

  private:
    const Index d, k, width;
    Scratch filled;
};

inline void narrow_predict(Mat<const double> X, Mat<const double> w, In b, Mat<double> raw) {
    NarrowProduct(w, b).rows(X, raw.data, raw.cols);
}

// out = X' (q slopes), and the sums of q slopes; only rows of weight are visited.
inline void narrow_gradient(Mat<const double> X, In q, Mat<const double> slopes, Mat<double> out,
                            Out sums) {
    const Index n = X.rows, d = X.cols, k = slopes.cols, width = narrow_width(k);
    Scratch room(static_cast<std::size_t>((d + 1 + narrow_block) * width));
    double *total = room.data(), *last = total + d * width, *s = last + width;
    const double* x[narrow_block];
    Index size = 0;
    const auto add = [&] {
        detail::add_rows(x, size, d, s, width, total);
        detail::add_columns(size, s, width, last);
        size = 0;
    };
    for (Index i = 0; i < n; ++i) {
        const double weight = q[i];
        if (weight == 0.0) continue;
        const double* __restrict from = slopes.row(i);
        double* __restrict to = s + size * width;
        for (Index c = 0; c < k; ++c) to[c] = weight * from[c];
        x[size] = X.row(i);
        if (++size == narrow_block) add();
    }
    if (size > 0) add();
    for (Index j = 0; j < d; ++j) std::copy(total + j * width, total + j * width + k, out.row(j));
    std::copy(last, last + k, sums.data);
}

// sum_i q_i (diag(pi_i) - pi_i pi_i'), with pi the slopes and 1 more at the label.
inline void class_curvature(Vec<const std::int64_t> y, Mat<const double> slopes, In q,
                            Mat<double> out) {
    const Index n = slopes.rows, k = slopes.cols;
    Scratch sums(static_cast<std::size_t>(k)), of_label(static_cast<std::size_t>(k * k));
    narrow_gradient(slopes, q, slopes, out, {sums.data(), k});
    for (Index i = 0; i < n; ++i) {
        if (q[i] == 0.0) continue;
        const double *__restrict s = slopes.row(i), weight = q[i];
        double* __restrict to = of_label.data() + y[i] * k;
#pragma omp simd
        for (Index c = 0; c < k; ++c) to[c] += weight * s[c];
    }
    for (Index a = 0; a < k; ++a) {
        for (Index c = 0; c < k; ++c) {
            const double both = of_label[a * k + c] + of_label[c * k + a];
            out(a, c) = (a == c ? sums[a] : 0.0) - out(a, c) - both;
        }
    }
}

}  // namespace drago
