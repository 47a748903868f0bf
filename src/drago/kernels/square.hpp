// Squares of narrow matrices, by tiles that stay in the registers: faster than a BLAS there.
#pragma once

#include "blas.hpp"
#include "views.hpp"

namespace drago {

// Columns of the rows are a multiple of this.
inline constexpr Index square_step = 8;
// Columns up to which tiles are faster.
inline constexpr Index square_widest = 128;

namespace detail {

#ifdef __AVX512F__
inline constexpr int tile_rows = 8;
inline constexpr bool has_wide_tiles = true;
#else
inline constexpr int tile_rows = 4;
inline constexpr bool has_wide_tiles = false;
#endif

// The columns j.. and k.. of the rows, multiplied and added to the square below its diagonal.
template <int wide>
inline void add_tile(Mat<const double> rows, Index j, Index k, Mat<double> square) {
    double sum[tile_rows][wide] = {};
    for (Index i = 0; i < rows.rows; ++i) {
        const double* __restrict row = rows.row(i);
        for (int r = 0; r < tile_rows; ++r) {
            const double factor = row[j + r];
#pragma omp simd
            for (int c = 0; c < wide; ++c) sum[r][c] += factor * row[k + c];
        }
    }
    for (int c = 0; c < wide; ++c)
        for (int r = 0; r < tile_rows; ++r) square(k + c, j + r) += sum[r][c];
}

}  // namespace detail

// The lower triangle of square += rows' rows; what is above it may change too.
[[gnu::noinline]] inline void add_narrow_square(Mat<const double> rows, Mat<double> square) {
    const Index width = rows.cols;
    if (width > square_widest) return add_square(rows, square);
    for (Index j = 0; j < width; j += detail::tile_rows) {
        Index k = j - j % square_step;
        if constexpr (detail::has_wide_tiles)
            for (; k + 2 * square_step <= width; k += 2 * square_step)
                detail::add_tile<2 * square_step>(rows, j, k, square);
        for (; k < width; k += square_step) detail::add_tile<square_step>(rows, j, k, square);
    }
}

}  // namespace drago
