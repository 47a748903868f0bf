// One reading of X: predictions, losses, slopes s, and the gradient at weights that are guessed.
//
// With the guessed weights of `guesses.hpp` a visit sums first_i s_i x_i and second_i s_i x_i while
// a few rows lie in the cache. The exact ones are a combination of the two but for a few rows, so a
// gradient at any weights q needs to read those rows alone whose weight is not the combination:
//
//     sum q_i s_i x_i = a sum first_i s_i x_i + b sum second_i s_i x_i + sum rest_i s_i x_i.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "blocks.hpp"
#include "guesses.hpp"
#include "losses.hpp"
#include "rows.hpp"
#include "threads.hpp"
#include "views.hpp"

namespace drago {

// The rows of a dense matrix.
template <class T>
struct DenseRows {
    static constexpr bool guesses = true, keeps = false, measures = true, checks = true;
    static constexpr bool in_turn = false;
    Visited<T> visited;
    Following<T> all;
    Asked<T> asked;
    // Behind the rows that were predicted last.
    const T* last;

    explicit DenseRows(Mat<const T> X)
        : visited(X), all(visited(Neighbours{0, X.rows, 0})), asked{X.data, X.data}, last(X.data) {}

    // In memory they are the same for all threads and parts.
    DenseRows of_thread() const { return *this; }
    // Of long rows memory sends more without being asked.
    void enter(Index, Index stop) {
        const bool is_long = all.X.cols * Index(sizeof(T)) > AHEAD_BYTES;
        asked = {all.X.data, is_long ? all.X.data : all.row(stop)};
    }
    Index some() const { return visited.some; }
    void predict(Index first, Index stop, const double* w, double* z) {
        drago::predict(all, first, stop, w, z, asked);
        last = all.row(stop);
    }
    // The same, and ||unit x||^2.
    void measure(Index first, Index stop, const double* w, double* z, const double* unit,
                 double* squares) {
        for (Index r = first; r < stop; r += 4, z += 4, squares += 4) {
            const Index end = std::min(r + 4, stop);
            predict(r, end, w, z);
            if (end == r + 4) {
                drago::squares(four(all, r), all.X.cols, unit, squares);
                continue;
            }
            for (Index k = r; k < end; ++k) squares[k - r] = square(all.row(k), all.X.cols, unit);
        }
    }
    // The sum of the squares of all entries.
    double all_squares(Index first, Index stop) const {
        return sum_of_squares(all.row(first), (stop - first) * all.X.cols);
    }
    template <bool asks>
    void add(std::int64_t* rows, const double* c, Index size, double* out) {
        const Listed<T> listed = visited(Picked{rows, nullptr, size});
        if constexpr (asks)
            sum_up<true>(listed, 0, size, c, out);
        else
            sum_up(listed, c, out, asked, last + IDLE_BYTES / sizeof(T));
    }
};

// The rows of a CSR matrix: so short that a guess costs more than it saves.
template <class T, class I>
struct SparseRows {
    static constexpr bool guesses = false, keeps = false, measures = false, checks = true;
    static constexpr bool in_turn = false;
    Csr<T, I> X;

    SparseRows of_thread() const { return *this; }
    void enter(Index, Index) const {}
    Index some() const { return MOST; }
    // Not inlined, so that all pointers stay in registers.
    [[gnu::noinline]] void predict(Index first, Index last, const double* w, double* z) const {
        const T* __restrict data = X.data.data;
        const I *__restrict indices = X.indices.data, *__restrict starts = X.indptr.data;
        for (Index r = first; r < last; ++r, ++z) {
            const Index begin = starts[r], end = starts[r + 1];
            // Rows are short: their entries in the lanes of a vector would cost more than they gain.
            double total = 0.0;
            for (Index j = begin; j < end; ++j) total += data[j] * w[indices[j]];
            *z = total;
        }
    }
    double all_squares(Index first, Index last) const {
        return sum_of_squares(X.data.data + X.indptr[first], X.indptr[last] - X.indptr[first]);
    }
    template <bool asks>
    [[gnu::noinline]] void add(std::int64_t* rows, const double* c, Index size,
                               double* out) const {
        const T* __restrict data = X.data.data;
        const I *__restrict indices = X.indices.data, *__restrict starts = X.indptr.data;
        for (Index r = 0; r < size; ++r) {
            const Index begin = starts[rows[r]], end = starts[rows[r] + 1];
            const double weight = c[r];
            for (Index j = begin; j < end; ++j) out[indices[j]] += data[j] * weight;
        }
    }
};

// Vectors of the rows that a visit reads and fills; p may be one number, that of every row. With a
// unit of each feature, for dense rows in memory, the reach is ||unit x|| of each row; without,
// where there is room for it, the norm of X.
struct Seen {
    In y, p, baseline;
    Out raw, losses, slopes;
    In unit;
    Out reach;
};

// How many losses or slopes are not finite, the sums of the two kinds of guessed weights, how many
// rows a visit has read that does not read all of them, and the sum of the squares of all entries.
struct Tally {
    Index bad = 0;
    double first = 0.0, second = 0.0;
    Index read = 0;
    double squares = 0.0;
};

// How many losses or slopes are not finite. Infinity less itself is no number either.
inline Index not_finite(In losses, In slopes) {
    Index bad = 0;
    for (Index r = 0; r < losses.size; ++r) {
        const double none = (losses[r] - losses[r]) + (slopes[r] - slopes[r]);
        bad += none != 0.0;
    }
    return bad;
}

// What some rows, at most MOST, add to the sums of a guess; row(r) is the number of the r-th.
template <class Rows, class Row>
inline void add_guessed(Rows& rows, Row row, const Guess& guess, In p, In losses, In slopes,
                        Tally& tally, Out first, Out second) {
    const Index size = losses.size, d = first.size - 1;
    double one[MOST], two[MOST];
    guess_weights(guess, p, losses, {one, size}, {two, size});
    const auto add = [&](const double* weights, double& mass, Out out) {
        std::int64_t some[MOST];
        double product[MOST];
        const Heavy found = find_heavy({weights, size}, slopes, some, product);
        for (Index k = 0; k < found.count; ++k) some[k] = row(some[k]);
        mass += found.mass;
        out[d] += found.along;
        rows.template add<false>(some, product, found.count, out.data);
    };
    add(one, tally.first, first);
    add(two, tally.second, second);
}

// What a visit to the rows lo to hi adds to `first` and `second`, of one entry more than there are
// features: the last is the sum without x.
template <class Rows>
inline Tally visit_part(Rows& rows, Index lo, Index hi, const Model& model, const Guess& guess,
                        const Seen& seen, Out first, Out second) {
    Tally tally;
    for (Index start = lo; start < hi; start += rows.some()) {
        const Index size = std::min(rows.some(), hi - start);
        const In y = seen.y.part(start, start + size);
        const In p = seen.p.size == 1 ? seen.p : seen.p.part(start, start + size);
        const Out raw = seen.raw.part(start, start + size);
        const Out losses = seen.losses.part(start, start + size);
        const Out slopes = seen.slopes.part(start, start + size);
        bool is_measured = false;
        if constexpr (Rows::measures) {
            is_measured = !seen.unit.empty();
            if (is_measured) {
                double* __restrict reach = seen.reach.data + start;
                rows.measure(start, start + size, model.w, raw.data, seen.unit.data, reach);
#pragma omp simd
                for (Index r = 0; r < size; ++r) reach[r] = std::sqrt(reach[r]);
            }
        }
        if (!is_measured) rows.predict(start, start + size, model.w, raw.data);
        if constexpr (Rows::checks) {
            if (!is_measured && !seen.reach.empty())
                tally.squares += rows.all_squares(start, start + size);
        }
        // Added last: next to a large intercept each term of the product would be rounded.
        for (Index r = 0; r < size; ++r) raw[r] += model.b;
        single_output(model.code, model.parameter, y, raw, losses, slopes);
        if (!seen.baseline.empty()) {
            const double* less = seen.baseline.data + start;
#pragma omp simd
            for (Index r = 0; r < size; ++r) losses[r] -= less[r];
        }
        tally.bad += not_finite(losses, slopes);
        if constexpr (Rows::guesses) {
            if (guess.kind != NO_GUESS)
                add_guessed(rows, [=](Index r) { return start + r; }, guess, p, losses, slopes,
                            tally, first, second);
        }
        if constexpr (Rows::keeps) rows.keep(start, losses);
    }
    return tally;
}

// Rows that say it well enough: the mean over them has lost no digits.
inline constexpr double ENOUGH = 256;
// Combined weights that sum to more lose digits where they cancel: then the guess is not used.
inline constexpr double HEAVIEST = 8;

// out += the sum over the rows lo to hi of rest_i s_i x_i, its last entry without x.
template <class Rows>
inline void add_rest(Rows& rows, Index lo, Index hi, const Guess& guess, Combined with,
                     const Weighing& of, Out out) {
    constexpr Index together = 1024;
    std::int64_t some[together];
    double rest[together];
    for (Index start = lo; start < hi; start += together) {
        const Heavy found =
            find_rest(guess, with, of, start, std::min(start + together, hi), some, rest);
        rows.template add<true>(some, rest, found.count, out.data);
        out[out.size - 1] += found.along;
    }
}

// Rows in parts of about equal work, as sizes alone say: bits do not depend on threads.
struct Parts {
    Index n, count;

    Index begin(Index k) const { return n / count * k + std::min(k, n % count); }
};

// out = the sum of its rows in `partial`, in their order.
inline void sum_parts(Mat<const double> partial, Out out) {
    std::fill_n(out.data, out.size, 0.0);
    for (Index k = 0; k < partial.rows; ++k)
        for (Index j = 0; j < out.size; ++j) out[j] += partial(k, j);
}

// Calls work(rows, lo, hi, k) for each part k.
template <class Rows, class Work>
inline void in_parts_of(const Rows& rows, Parts parts, Index n_threads, Work work) {
    in_parts_with(parts.count, n_threads, Rows::in_turn, [&] {
        return [&, own = rows.of_thread()](Index k) mutable {
            own.enter(k, parts.begin(k + 1));
            work(own, parts.begin(k), parts.begin(k + 1), k);
        };
    });
}

// Calls work(rows, lo, hi, first, second) for each part, which adds to sums of its own and tells
// its tally; the sums of all parts are added in their order.
template <class Rows, class Work>
inline Tally visit_parts(const Rows& rows, Parts parts, Index n_threads, Out first, Out second,
                         Work work) {
    const Index m = first.size;
    Scratch room(2 * m * parts.count, 0.0);
    const Mat<double> one(room.data(), parts.count, m);
    const Mat<double> two(room.data() + m * parts.count, parts.count, m);
    std::vector<Tally> tallies(parts.count);
    in_parts_of(rows, parts, n_threads, [&](auto& own, Index lo, Index hi, Index k) {
        tallies[k] = work(own, lo, hi, Out{one.row(k), m}, Out{two.row(k), m});
    });
    sum_parts(one, first);
    sum_parts(two, second);
    Tally total;
    for (const Tally& each : tallies) {
        total.bad += each.bad;
        total.first += each.first;
        total.second += each.second;
        total.read += each.read;
        total.squares += each.squares;
    }
    return total;
}

// out = the sum over the parts of what work(rows, lo, hi, sum) adds to a sum of its own.
template <class Rows, class Work>
inline void sum_in_parts(const Rows& rows, Parts parts, Index n_threads, Out out, Work work) {
    Scratch room(out.size * parts.count, 0.0);
    const Mat<double> partial(room.data(), parts.count, out.size);
    in_parts_of(rows, parts, n_threads, [&](auto& own, Index lo, Index hi, Index k) {
        work(own, lo, hi, Out{partial.row(k), out.size});
    });
    sum_parts(partial, out);
}

// raw = X w + b.
template <class Rows>
inline void predict_all(const Rows& rows, Parts parts, Index n_threads, In w, double b, Out raw) {
    in_parts_of(rows, parts, n_threads, [&](auto& own, Index lo, Index hi, Index) {
        for (Index start = lo; start < hi; start += own.some()) {
            const Index stop = std::min(start + own.some(), hi);
            own.predict(start, stop, w.data, raw.data + start);
            for (Index r = start; r < stop; ++r) raw[r] += b;
        }
    });
}

// out = the sum of c_i x_i. Rows with c_i = 0 are not read.
template <class Rows>
inline void sum_all(const Rows& rows, Parts parts, Index n_threads, In c, Out out) {
    constexpr Index together = 1024;
    sum_in_parts(rows, parts, n_threads, out, [&](auto& own, Index lo, Index hi, Out partial) {
        std::int64_t some[together];
        double weights[together];
        for (Index start = lo; start < hi; start += together) {
            Index count = 0;
            const double* __restrict given = c.data;
            each_where(
                start, std::min(start + together, hi),
                [=](Index r) DRAGO_INLINED { return given[r] != 0.0; },
                [&](Index r) DRAGO_INLINED { some[count] = r, weights[count++] = given[r]; });
            own.template add<true>(some, weights, count, partial.data);
        }
    });
}

template <class Rows>
inline Tally visit(const Rows& rows, Parts parts, Index n_threads, const Model& model,
                   const Guess& guess, const Seen& seen, Out first, Out second) {
    const Tally tally = visit_parts(rows, parts, n_threads, first, second,
                                    [&](auto& own, Index lo, Index hi, Out one, Out two) {
                                        return visit_part(own, lo, hi, model, guess, seen, one, two);
                                    });
    if (seen.unit.empty() && !seen.reach.empty()) seen.reach[0] = std::sqrt(tally.squares);
    return tally;
}

// The first two sums of `combining`. All rows that are free in both say the same, so that those of
// a few parts will do: of the first one, of as many again, and so on.
inline std::pair<double, double> combined(Parts parts, Index n_threads, const Guess& guess,
                                          const Weighing& of) {
    std::vector<std::array<double, 3>> found(parts.count);
    double over = 0.0, under = 0.0, count = 0.0;
    for (Index done = 0, next = 1; done < parts.count && count < ENOUGH; next = 2 * done) {
        next = std::min(next, parts.count);
        in_parts(next - done, n_threads, [&](Index k) {
            found[done + k] = combining(guess, of, parts.begin(done + k), parts.begin(done + k + 1));
        });
        for (; done < next && count < ENOUGH; ++done)
            over += found[done][0], under += found[done][1], count += found[done][2];
    }
    return {over, under};
}

// out = the gradient sum q_i s_i x_i, its last entry without x; after a visit that found `tally`.
template <class Rows>
inline void gradient_after(const Rows& rows, Parts parts, Index n_threads, const Guess& guess,
                           const Weighing& of, const Tally& tally, In first, In second, Out out) {
    const Index m = out.size;
    Combined with{1.0, guess.kind == KL_GUESS ? 1.0 : 0.0};
    if (guess.kind != NO_GUESS) {
        const auto [over, under] = combined(parts, n_threads, guess, of);
        if (under > 0.0) (guess.kind == CHI2_GUESS ? with.b : with.a) = over / under;
        if (!(with.a * tally.first + std::fabs(with.b) * tally.second <= HEAVIEST))
            with = {0.0, 0.0};
    }
    sum_in_parts(rows, parts, n_threads, out, [&](auto& own, Index lo, Index hi, Out partial) {
        add_rest(own, lo, hi, guess, with, of, partial);
    });
    // Sums that are not used need not be finite.
    for (Index j = 0; guess.kind != NO_GUESS && j < m; ++j) {
        if (with.a != 0.0) out[j] += with.a * first[j];
        if (with.b != 0.0) out[j] += with.b * second[j];
    }
}

}  // namespace drago
