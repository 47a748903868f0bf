// Visits to a block of the rows of a dense matrix, for losses with one output.
//
// The places 0, 1, ... of block k of count are rows of X, dealt out in groups (see
// drago.rows.tables.array_blocks). What is done with a row is done while it lies in the cache: a
// few rows at a time are multiplied by w, their losses evaluated, and the rows summed with their
// weights.
#pragma once

#include <algorithm>
#include <cstdint>

#include "losses.hpp"
#include "rows.hpp"
#include "views.hpp"

namespace drago {

// Rows that are looked at together. How many bytes ahead memory is asked for more.
inline constexpr Index TOGETHER = 4096;
inline constexpr Index AHEAD_BYTES = 5120;
// How many while rows are summed that are in the cache, and memory has nothing else to do.
inline constexpr Index IDLE_BYTES = 8192;
// Rows that are worked on at a time at most, and entries of X that they have: those stay in the
// nearest cache.
inline constexpr Index MOST = 64;
inline constexpr Index ENTRIES = 2048;

// Block k of count, in groups; its places lo to hi.
struct Places {
    Index k, count, group, lo, hi;
};

// Neighbouring rows: the first, the end, and the jump after them.
struct Neighbours {
    Index first, last, jump;

    Index size() const { return last - first; }
};

// Neighbouring rows from the place `at` on.
inline Neighbours neighbours(Index at, Index end, const Places& of) {
    const Index inside = at % of.group;
    const Index row = (of.k + at / of.group * of.count) * of.group + inside;
    const Index size = std::min(of.group - inside, end - at);
    return {row, row + size, inside + size == of.group ? (of.count - 1) * of.group : 0};
}

// Rows that are picked, and their places.
struct Picked {
    std::int64_t *rows, *places;
    Index size;
};

// Neighbouring rows as those that are worked on; behind the last one the next lie a jump further.
template <class T>
struct Following {
    Mat<const T> X;
    Neighbours of;
    Index ahead, some;

    Index size() const { return of.size(); }
    const T* row(Index r) const { return X.row(of.first + r); }
    void ask_ahead(Index r, Index rows) const {
        const Index next = r + ahead;
        ask(row(next < size() ? next : next + of.jump), rows * X.cols);
    }
};

// Picked rows as those that are worked on.
template <class T>
struct Listed {
    Mat<const T> X;
    Picked of;
    Index ahead, some;

    Index size() const { return of.size; }
    const T* row(Index r) const { return X.row(of.rows[r]); }
    void ask_ahead(Index r, Index rows) const {
        const Index start = r + ahead, end = std::min(start + rows, of.size);
        for (Index a = start; a < end; ++a) ask(row(a), X.cols);
    }
};

// A matrix, and how its rows are gone through: found once, for it takes divisions.
template <class T>
struct Visited {
    Mat<const T> X;
    Index ahead, ahead_picked, some;

    explicit Visited(Mat<const T> X)
        : X(X), ahead(std::max<Index>(4, AHEAD_BYTES / Index(sizeof(T)) / X.cols)),
          ahead_picked(drago::ahead_picked(X)),
          some(std::clamp<Index>(ENTRIES / X.cols / 4 * 4, 4, MOST)) {}

    Following<T> operator()(const Neighbours& of) const { return {X, of, ahead, some}; }
    Listed<T> operator()(const Picked& of) const { return {X, of, ahead_picked, some}; }
};

template <template <class> class Rows, class T>
inline Four<T> four(const Rows<T>& rows, Index r) {
    return {rows.row(r), rows.row(r + 1), rows.row(r + 2), rows.row(r + 3)};
}

// Memory of neighbouring rows that is asked for while others are worked on: what was and will be.
template <class T>
struct Asked {
    const T *next = nullptr, *end = nullptr;

    void up_to(const T* to) {
        to = std::min(to, end);
        for (; next < to; next += 64 / sizeof(T)) __builtin_prefetch(next, 0, 3);
    }
};

// Calls visit(first, last) for a few rows at a time.
template <class Rows, class Visit>
inline void a_few_at_a_time(const Rows& rows, Visit visit) {
    for (Index i = 0; i < rows.size(); i += rows.some)
        visit(i, std::min(i + rows.some, rows.size()));
}

// z = the products of some rows with w, plus b.
template <class Rows>
[[gnu::noinline]] inline void predict(const Rows& rows, Index first, Index last, const double* w,
                                      double b, double* z) {
    const Index d = rows.X.cols;
    Index r = first;
    for (; r + 4 <= last; r += 4, z += 4) {
        rows.ask_ahead(r, 4);
        products(four(rows, r), d, w, b, z);
    }
    for (; r < last; ++r, ++z) {
        rows.ask_ahead(r, 1);
        *z = product(rows.row(r), d, w, b);
    }
}

// z = the products of neighbouring rows with w.
template <class T>
[[gnu::noinline]] inline void predict(const Following<T>& rows, Index first, Index last,
                                      const double* w, double* z, Asked<T>& asked) {
    const Index d = rows.X.cols;
    asked.next = std::max(asked.next, rows.row(first));
    Index r = first;
    for (; r + 4 <= last; r += 4, z += 4) {
        asked.up_to(rows.row(r + 4 + rows.ahead));
        products(four(rows, r), d, w, 0.0, z);
    }
    for (; r < last; ++r, ++z) {
        asked.up_to(rows.row(r + 1 + rows.ahead));
        *z = product(rows.row(r), d, w, 0.0);
    }
}

// out += the sum of rows in the cache with the weights c; memory is asked for as many others, up to
// the entry `most`.
template <class T>
[[gnu::noinline]] inline void sum_up(const Listed<T>& rows, const double* c, double* out,
                                     Asked<T>& asked, const T* most) {
    const Index d = rows.X.cols;
    Index r = 0;
    for (; r + 4 <= rows.size(); r += 4, c += 4) {
        asked.up_to(std::min(asked.next + 4 * d, most));
        add_rows(four(rows, r), d, c, out);
    }
    for (; r < rows.size(); ++r, ++c) add_row(rows.row(r), d, *c, out);
}

// out += the sum of some rows with the weights c; `asks` for the next ones unless that was done.
template <bool asks, class Rows>
[[gnu::noinline]] inline void sum_up(const Rows& rows, Index first, Index last, const double* c,
                                     double* out) {
    const Index d = rows.X.cols;
    Index r = first;
    for (; r + 4 <= last; r += 4, c += 4) {
        if constexpr (asks) rows.ask_ahead(r, 4);
        add_rows(four(rows, r), d, c, out);
    }
    for (; r < last; ++r, ++c) {
        if constexpr (asks) rows.ask_ahead(r, 1);
        add_row(rows.row(r), d, *c, out);
    }
}

// A loss at the predictions of a linear model.
struct Model {
    const double* w;
    double b;
    int code;
    double parameter;
};

// out += sum of x (q s - product) over some rows; returns the sum without x. Row r is at the place
// place(r), and product(place) is its.
template <class Rows, class Place, class Product>
inline double correct(const Rows& rows, const Model& model, const double* y, const double* q,
                      Place place, Product product, double* out) {
    double total = 0.0;
    a_few_at_a_time(rows, [&](Index first, Index last) {
        const Index size = last - first;
        double z[MOST], target[MOST], sum = 0.0;
        predict(rows, first, last, model.w, model.b, z);
        for (Index r = 0; r < size; ++r) target[r] = y[place(first + r)];
        slopes_at(model.code, model.parameter, target, z, size);
#pragma omp simd reduction(+ : sum)
        for (Index r = 0; r < size; ++r) {
            const Index at = place(first + r);
            z[r] = z[r] * q[at] - product(at);
            sum += z[r];
        }
        total += sum;
        sum_up<false>(rows, first, last, z, out);
    });
    return total;
}

// How many places from `at` to `end` are there.
template <class Test>
inline Index count_places(Index at, Index end, Test is_there) {
    Index size = 0;
#pragma omp simd reduction(+ : size)
    for (Index i = at; i < end; ++i) size += is_there(i);
    return size;
}

// Add the rows from `first` on, at places `at` to `end`, to those that are picked.
template <class Test>
inline void pick(Index first, Index at, Index end, Test is_there, Picked& picked) {
    const Index jump = first - at;
    each_where(at, end, is_there, [&](Index place) {
        picked.rows[picked.size] = place + jump, picked.places[picked.size++] = place;
    });
}

// Goes through a block, some rows together: all of them where most are there, with
// all(neighbours, place), and those that are there otherwise, with some(picked).
template <class Test, class All, class Some>
inline void go_through(const Places& of, Mat<std::int64_t> room, Test is_there, All all,
                       Some some) {
    for (Index start = of.lo; start < of.hi; start += TOGETHER) {
        const Index stop = std::min(start + TOGETHER, of.hi);
        const bool are_most = 2 * count_places(start, stop, is_there) > stop - start;
        Picked picked{room.row(0), room.row(1), 0};
        for (Index at = start; at < stop;) {
            const Neighbours rows = neighbours(at, stop, of);
            if (are_most)
                all(rows, at);
            else
                pick(rows.first, at, at + rows.size(), is_there, picked);
            at += rows.size();
        }
        if (picked.size > 0) some(picked);
    }
}

// Losses of the places, and slopes if there is room for any.
template <class T>
inline void block_evaluate(Mat<const T> X, const Places& of, In w, double b, int code,
                           double parameter, In y, Out losses, Out slopes) {
    const Visited<T> visited(X);
    double none[MOST];
    for (Index at = of.lo; at < of.hi;) {
        const Following<T> rows = visited(neighbours(at, of.hi, of));
        a_few_at_a_time(rows, [&](Index first, Index last) {
            const Index size = last - first, place = at + first;
            double z[MOST];
            predict(rows, first, last, w.data, b, z);
            single_output(code, parameter, {y.data + place, size}, {z, size},
                          {losses.data + place, size},
                          {slopes.empty() ? none : slopes.data + place, size});
        });
        at += rows.size();
    }
}

// out = sum over the places of x (q s - product); returns the sum without x.
//
// Rows without `product` and weight add nothing: where they are most they are not read. There is
// room for TOGETHER rows in `picked` (2 x rows).
template <class T>
inline double block_correct(Mat<const T> X, const Places& of, In w, double b, int code,
                            double parameter, In y, In q, In product, Mat<std::int64_t> picked,
                            Out out) {
    const Visited<T> visited(X);
    std::fill_n(out.data, out.size, 0.0);
    double total = 0.0;
    const double *c = q.data, *before = product.data;
    const auto is_there = [=](Index at) -> Index { return (c[at] != 0.0) | (before[at] != 0.0); };
    const auto product_at = [=](Index at) { return before[at]; };
    const Model model{w.data, b, code, parameter};
    go_through(
        of, picked, is_there,
        [&](const Neighbours& rows, Index at) {
            total += correct(
                visited(rows), model, y.data, c, [=](Index r) { return at + r; }, product_at,
                out.data);
        },
        [&](const Picked& some) {
            total += correct(
                visited(some), model, y.data, c, [=](Index r) -> Index { return some.places[r]; },
                product_at, out.data);
        });
    return total;
}

// out = sum of x q s over the groups lo to hi of all blocks, in the order of X; returns the sum
// without x.
//
// Block k begins at the place starts[k]. Rows with a weight up to the `least` are left out as
// above.
template <class T>
inline double block_gradient(Mat<const T> X, Vec<const std::int64_t> starts, Index group, Index lo,
                             Index hi, In w, double b, int code, double parameter, In y, In q,
                             double least, Mat<std::int64_t> picked, Out out) {
    const Index n = X.rows, count = starts.size, step = std::max<Index>(1, TOGETHER / group);
    const Visited<T> visited(X);
    std::fill_n(out.data, out.size, 0.0);
    double total = 0.0;
    const double* c = q.data;
    const auto is_there = [=](Index at) -> Index { return c[at] > least; };
    const auto none = [](Index) { return 0.0; };
    // Calls visit(rows, place) for each group.
    const auto each_group = [&](Index start, Index stop, auto visit) {
        Index k = start % count, offset = start / count * group;
        for (Index g = start; g < stop; ++g) {
            visit(Neighbours{g * group, std::min((g + 1) * group, n), 0}, starts[k] + offset);
            if (++k == count) k = 0, offset += group;
        }
    };
    const Model model{w.data, b, code, parameter};
    for (Index start = lo; start < hi; start += step) {
        const Index stop = std::min(start + step, hi);
        Index size = 0;
        each_group(start, stop, [&](const Neighbours& rows, Index at) {
            size += count_places(at, at + rows.size(), is_there);
        });
        if (2 * size > (stop - start) * group) {
            each_group(start, stop, [&](const Neighbours& rows, Index at) {
                total += correct(
                    visited(rows), model, y.data, c, [=](Index r) { return at + r; }, none,
                    out.data);
            });
            continue;
        }
        Picked some{picked.row(0), picked.row(1), 0};
        each_group(start, stop, [&](const Neighbours& rows, Index at) {
            pick(rows.first, at, at + rows.size(), is_there, some);
        });
        total += correct(
            visited(some), model, y.data, c,
            [=](Index r) -> Index { return some.places[r]; }, none, out.data);
    }
    return total;
}

// out = sum over the places of c x; rows with c = 0 are left out as above.
template <class T>
inline void block_accumulate(Mat<const T> X, const Places& of, In c, Mat<std::int64_t> picked,
                             Out out) {
    const Visited<T> visited(X);
    std::fill_n(out.data, out.size, 0.0);
    const double* weights = c.data;
    go_through(
        of, picked, [=](Index at) -> Index { return weights[at] != 0.0; },
        [&](const Neighbours& rows, Index at) {
            sum_up<true>(visited(rows), 0, rows.size(), weights + at, out.data);
        },
        [&](const Picked& some) {
            a_few_at_a_time(visited(some), [&](Index first, Index last) {
                double z[MOST];
                for (Index r = first; r < last; ++r) z[r - first] = weights[some.places[r]];
                sum_up<true>(visited(some), first, last, z, out.data);
            });
        });
}

}  // namespace drago
