// Views of arrays that belong to somebody else, and scratch of our own.
#pragma once

#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

namespace drago {

using Index = std::ptrdiff_t;

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double tiny = std::numeric_limits<double>::min();

// A vector whose entries are neighbours in memory.
template <class T>
struct Vec {
    T* data = nullptr;
    Index size = 0;

    Vec() = default;
    Vec(T* data, Index size) : data(data), size(size) {}
    template <class S, class = std::enable_if_t<std::is_same_v<const S, T>>>
    Vec(Vec<S> other) : data(other.data), size(other.size) {}
    Vec(std::vector<std::remove_const_t<T>>& owner)
        : data(owner.data()), size(static_cast<Index>(owner.size())) {}

    T& operator[](Index i) const { return data[i]; }
    bool empty() const { return size == 0; }
    Vec part(Index first, Index last) const { return {data + first, last - first}; }
};

// A matrix in the order of C.
template <class T>
struct Mat {
    T* data = nullptr;
    Index rows = 0, cols = 0;

    Mat() = default;
    Mat(T* data, Index rows, Index cols) : data(data), rows(rows), cols(cols) {}
    template <class S, class = std::enable_if_t<std::is_same_v<const S, T>>>
    Mat(Mat<S> other) : data(other.data), rows(other.rows), cols(other.cols) {}

    T& operator()(Index i, Index j) const { return data[i * cols + j]; }
    T* row(Index i) const { return data + i * cols; }
    bool empty() const { return rows == 0; }
    Mat part(Index first, Index last) const { return {row(first), last - first, cols}; }
};

// A matrix of rows as lists of their entries.
template <class T, class I>
struct Csr {
    Vec<const T> data;
    Vec<const I> indices, indptr;
};

using In = Vec<const double>;
using Out = Vec<double>;
using Scratch = std::vector<double>;

}  // namespace drago
