// The Gram matrix of some of the rows of a dense matrix.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "rows.hpp"
#include "square.hpp"
#include "threads.hpp"
#include "views.hpp"

namespace drago {

// Rows that a thread takes at once, unless the sums of so many parts had more entries than this.
inline constexpr Index GRAM_ROWS = 2048;
inline constexpr Index GRAM_SUMS = Index{1} << 22;

// The rows first to last of those that are listed, a few at a time: square, whose columns are as
// many as those of the tiles, += weight_i f_i f_i' below its diagonal. Returns the greatest
// ||x_i||^2.
template <class T>
inline double add_gram(Mat<const T> X, Vec<const std::int64_t> index, Index first, Index last,
                       In weight, bool intercept, Mat<double> square) {
    const Index d = X.cols, width = square.cols, ahead = 2 * ahead_picked(X);
    const bool is_narrow = width <= square_widest;
    const Index some = std::max<Index>(is_narrow ? 8 : 64, (is_narrow ? 3072 : 65536) / width);
    Scratch room(static_cast<std::size_t>(some * width), 0.0);
    double longest = 0.0;
    for (Index start = first; start < last; start += some) {
        const Index size = std::min(some, last - start);
        for (Index r = 0; r < size; ++r) {
            const Index at = start + r;
            if (at + ahead < index.size) ask(X.row(index[at + ahead]), d);
            const T* __restrict from = X.row(index[at]);
            double* __restrict to = room.data() + r * width;
            const double root = std::sqrt(weight[index[at]]);
            double norm = 0.0;
#pragma omp simd reduction(+ : norm)
            for (Index j = 0; j < d; ++j) {
                const double x = from[j];
                to[j] = x * root;
                norm += x * x;
            }
            if (intercept) to[d] = root;
            longest = std::max(longest, norm);
        }
        add_narrow_square({room.data(), size, width}, square);
    }
    return longest;
}

// out = the sum of weight_i f_i f_i' over the rows that are listed, f = x with a last 1 for an
// intercept. Returns the greatest ||x_i||^2. The parts are as sizes alone say: bits do not depend
// on the number of threads.
template <class T>
inline double gram(Mat<const T> X, Vec<const std::int64_t> index, In weight, bool intercept,
                   Index n_threads, Mat<double> out) {
    const Index m = out.cols, width = (m + square_step - 1) / square_step * square_step;
    const Index most = std::max<Index>(1, GRAM_SUMS / (width * width));
    const Index count = std::clamp<Index>(index.size / GRAM_ROWS, 1, most);
    Scratch room(static_cast<std::size_t>(count * width * width), 0.0);
    std::vector<double> longest(static_cast<std::size_t>(count), 0.0);
    const auto begin = [&](Index k) { return index.size * k / count; };
    in_parts(count, n_threads, [&](Index k) {
        const Mat<double> square(room.data() + k * width * width, width, width);
        longest[k] = add_gram(X, index, begin(k), begin(k + 1), weight, intercept, square);
    });
    for (Index j = 0; j < m; ++j) {
        for (Index k = 0; k <= j; ++k) {
            double sum = 0.0;
            for (Index part = 0; part < count; ++part)
                sum += room[part * width * width + j * width + k];
            out(j, k) = out(k, j) = sum;
        }
    }
    return *std::max_element(longest.begin(), longest.end());
}

}  // namespace drago
