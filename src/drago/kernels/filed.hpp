// Rows that lie in files: each thread reads some of them at a time, and works on them in its cache.
//
// They are read with pread, never mapped: a mapped file that is cut short ends the process, where a
// reading ends with an error that the caller gets.
#pragma once

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "checksum.hpp"
#include "visits.hpp"

namespace drago {

// Bytes that are read at once, which the second cache has room for; and how far ahead of them the
// system is asked to read.
inline constexpr Index WINDOW = Index{1} << 18, EXPECTED = Index{1} << 25;
// In place of errno, which is positive: the file ends too early, or has numbers that cannot be.
inline constexpr int ENDED = -1, DAMAGED = -2;

// What readings by all threads come to: an error and the number of its file, the bytes that were
// read, and the check sums of two files.
struct Report {
    std::int64_t* entries;

    bool is_good() const { return __atomic_load_n(entries, __ATOMIC_RELAXED) == 0; }
    void fail(int error, int file) const {
        std::int64_t none = 0;  // the first one counts
        if (__atomic_compare_exchange_n(entries, &none, error, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            entries[1] = file;
    }
    void count(Index bytes) const { __atomic_fetch_add(entries + 2, bytes, __ATOMIC_RELAXED); }
    void sum(int file, std::uint64_t words) const {
        __atomic_fetch_add(entries + 3 + file, static_cast<std::int64_t>(words), __ATOMIC_RELAXED);
    }
};

// Bytes of a file, from the byte `at` on; zeros where they cannot be had. Their check sum begins
// with a word of its part; -1 for none.
[[gnu::noinline]] inline void read_bytes(int file, int number, std::int64_t at, Index size,
                                         Index word, const Report& report, char* to) {
    Index left = size;
    while (left > 0 && report.is_good()) {
        const ssize_t count =
            ::pread(file, to + (size - left), static_cast<std::size_t>(left), at);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) report.fail(count == 0 ? ENDED : errno, number);
        if (count > 0) left -= count, at += count;
    }
    std::memset(to + (size - left), 0, static_cast<std::size_t>(left));
    report.count(size - left);
    if (word >= 0)
        report.sum(number, checksum(reinterpret_cast<const unsigned char*>(to), size,
                                    std::uint64_t(word)));
}

// Numbers in a file, from the byte `place` on. Their check sum begins with the entry `origin`; -1
// for none.
template <class T>
struct Filed {
    int file, number;
    std::int64_t place;
    Index origin;
    Report report;

    // The entries first to last.
    void read(Index first, Index last, T* out) const {
        constexpr Index width = sizeof(T);
        read_bytes(file, number, place + first * width, (last - first) * width,
                   origin < 0 ? -1 : (first - origin) * width / 4, report,
                   reinterpret_cast<char*>(out));
    }

    // Has the system read what will be wanted after these entries, in the background.
    void expect(Index first, Index last) const {
        const std::int64_t begin = place + first * Index(sizeof(T)) + EXPECTED;
        const Index size = (last - first) * Index(sizeof(T));
#ifdef RWF_NOWAIT
        // Where the last of it is in memory, or the file ends before, a look costs less.
        char one;
        const iovec to{&one, 1};
        if (::preadv2(file, &to, 1, begin + size - 1, RWF_NOWAIT) >= 0) return;
#endif
#ifdef POSIX_FADV_WILLNEED
        ::posix_fadvise(file, begin, size, POSIX_FADV_WILLNEED);
#else
        (void)begin, (void)size;
#endif
    }
};

// Rows near the thresholds, where weights change their kind: a visit keeps some of each part, and a
// gradient need not read these again. `rows` has a row for each part: how many, and which. `X` has
// as many rows for each.
template <class T>
struct Kept {
    Mat<std::int64_t> rows;
    Mat<T> X;
    double low, high, width;

    Index most() const { return rows.cols - 1; }
};

template <class Storage>
class Window;

// It never gets smaller: what is new in a vector is filled with zeros.
template <class T>
void make_room(std::vector<T>& room, Index size) {
    if (Index(room.size()) < size) room.resize(static_cast<std::size_t>(size));
}

// Dense rows of a column, from the row `start` on.
template <class T>
struct FiledDense {
    static constexpr bool guesses = true, keeps = true, measures = false, in_turn = true;
    using Rows = DenseRows<T>;
    using Room = std::vector<T>;
    Filed<T> X;
    Index d, start, gap;
    Kept<T> kept;

    Window<FiledDense> of_thread() const { return Window<FiledDense>(*this); }
    Rows none() const { return Rows({nullptr, 0, d}); }
    Index bytes(Index first, Index last) const { return (last - first) * d * Index(sizeof(T)); }
    Rows load(Index first, Index last, Room& room) const {
        make_room(room, (last - first) * d);
        X.read((start + first) * d, (start + last) * d, room.data());
        return Rows({room.data(), last - first, d});
    }
    void expect(Index first, Index last) const {
        X.expect((start + first) * d, (start + last) * d);
    }
};

// CSR rows, with the pointers of these rows into the columns.
template <class T>
struct FiledCsr {
    static constexpr bool guesses = false, keeps = false, measures = false, in_turn = true;
    using I = std::int32_t;
    using Rows = SparseRows<T, I>;
    struct Room {
        std::vector<T> data;
        std::vector<I> indices, indptr;
    };
    Filed<T> data;
    Filed<I> indices;
    Index d;
    Vec<const std::int64_t> indptr;
    Index gap;

    Window<FiledCsr> of_thread() const { return Window<FiledCsr>(*this); }
    Rows none() const { return {}; }
    Index bytes(Index first, Index last) const {
        return (indptr[last] - indptr[first]) * Index(sizeof(T) + sizeof(I));
    }
    Rows load(Index first, Index last, Room& room) const {
        const Index begin = indptr[first], end = indptr[last];
        make_room(room.data, end - begin);
        make_room(room.indices, end - begin);
        make_room(room.indptr, last - first + 1);
        data.read(begin, end, room.data.data());
        indices.read(begin, end, room.indices.data());
        check({room.indices.data(), end - begin});
        for (Index r = first; r <= last; ++r)
            room.indptr[r - first] = static_cast<I>(indptr[r] - begin);
        return {{room.data, room.indices, room.indptr}};
    }
    // Indices that there are no features for would be read beyond the end of w.
    void check(Vec<I> found) const {
        using Number = std::make_unsigned_t<I>;
        Number greatest = 0;
        for (Index j = 0; j < found.size; ++j)
            greatest = std::max(greatest, static_cast<Number>(found[j]));
        if (found.empty() || greatest < static_cast<Number>(d)) return;
        indices.report.fail(DAMAGED, indices.number);
        std::fill_n(found.data, found.size, I{0});
    }
    void expect(Index first, Index last) const {
        data.expect(indptr[first], indptr[last]);
        indices.expect(indptr[first], indptr[last]);
    }
};

// The rows that a thread has in memory.
template <class Storage>
class Window {
  public:
    static constexpr bool guesses = Storage::guesses, keeps = Storage::keeps;
    static constexpr bool measures = Storage::measures, checks = false;

    explicit Window(const Storage& of) : of_(of), here_(of.none()), some_(here_.some()) {}

    // Work on a part begins, which ends with the row `end`.
    void enter(Index part, Index end) {
        part_ = part, end_ = end;
        first_ = last_ = at_ = 0;
    }

    Index some() const { return some_; }

    // In their order, at most `some` at once.
    void predict(Index first, Index last, const double* w, double* z) {
        if (first < first_ || last > last_) {
            Index end = last;
            for (Index more; end < end_; end = more) {
                more = std::min(end + some_, end_);
                if (of_.bytes(first, more) > WINDOW) break;
            }
            load(first, end);
            of_.expect(first, end);
        }
        here_.predict(first - first_, last - first_, w, z);
    }

    // Of rows that were predicted, or, with `asks`, of any in ascending order.
    template <bool asks>
    void add(std::int64_t* rows, double* c, Index size, double* out) {
        if constexpr (asks && keeps) size = add_kept(rows, c, size, out);
        in_runs<true>(rows, size, [&](Index k, Index count) {
            here_.template add<asks>(rows + k, c + k, count, out);
        });
    }

    // Keep those near the thresholds, as many as there is room for.
    void keep(Index start, In losses) {
        const auto& kept = of_.kept;
        if (kept.rows.empty()) return;
        std::int64_t *list = kept.rows.row(part_), near[MOST];
        Index count = 0;
        each_where(
            0, losses.size,
            [&](Index r) {
                const double below = std::fabs(losses[r] - kept.low);
                const double above = std::fabs(losses[r] - kept.high);
                return (below <= kept.width) | (above <= kept.width);
            },
            [&](Index r) { near[count++] = start + r; });
        count = std::min<Index>(count, kept.most() - list[0]);
        for (Index k = 0; k < count; ++k) {
            const auto* from = here_.visited.X.row(near[k] - first_);
            std::copy(from, from + of_.d, kept.X.row(part_ * kept.most() + list[0]));
            list[++list[0]] = near[k];
        }
    }

    // Calls f(r, x) for each of the rows, which are in ascending order.
    template <class F>
    void each(std::int64_t* rows, Index size, F f) {
        in_runs<false>(rows, size, [&](Index k, Index count) {
            for (Index r = k; r < k + count; ++r) f(r, here_.visited.X.row(rows[r]));
        });
    }

  private:
    [[gnu::noinline]] void load(Index first, Index last) {
        here_ = of_.load(first, last, room_);
        first_ = first, last_ = last;
    }

    // Calls f(k, count) where the rows from k on are in memory, and numbered from its beginning.
    template <bool goes_on, class F>
    void in_runs(std::int64_t* rows, Index size, F f) {
        for (Index k = 0; k < size;) {
            if (rows[k] < first_ || rows[k] >= last_) reach<goes_on>(rows + k, size - k);
            const Index from = k;
            for (; k < size && rows[k] < last_; ++k) rows[k] -= first_;
            f(from, k - from);
        }
    }

    // Read the first of these rows, and as many of the next as lie near; where they are most of all
    // rows to the end, and may go on like that, as many as there is room for.
    template <bool goes_on>
    void reach(const std::int64_t* rows, Index size) {
        const Index first = rows[0];
        Index last = first + 1, count = 1;
        while (count < size && of_.bytes(last, rows[count]) <= of_.gap &&
               of_.bytes(first, rows[count] + 1) <= WINDOW)
            last = rows[count++] + 1;
        if (goes_on && count == size && count >= MOST && 2 * count > last - first)
            while (last < end_ && of_.bytes(first, last + 1) <= WINDOW) ++last;
        load(first, last);
    }

    // Those that were kept are done with; the others are moved to the front.
    Index add_kept(std::int64_t* rows, double* c, Index size, double* out) {
        const auto& kept = of_.kept;
        if (kept.rows.empty()) return size;
        const std::int64_t *list = kept.rows.row(part_) + 1, there = list[-1];
        known_.resize(static_cast<std::size_t>(size));
        share_.resize(static_cast<std::size_t>(size));
        Index left = 0, found = 0;
        for (Index r = 0; r < size; ++r) {
            while (at_ < there && list[at_] < rows[r]) ++at_;
            if (at_ < there && list[at_] == rows[r]) {
                known_[found] = part_ * kept.most() + at_;
                share_[found++] = c[r];
            } else {
                rows[left] = rows[r];
                c[left++] = c[r];
            }
        }
        typename Storage::Rows all({kept.X.data, kept.X.rows, kept.X.cols});
        all.template add<true>(known_.data(), share_.data(), found, out);
        return left;
    }

    const Storage& of_;
    typename Storage::Room room_;
    typename Storage::Rows here_;
    std::vector<std::int64_t> known_;
    Scratch share_;
    Index some_, part_ = 0, end_ = 0, first_ = 0, last_ = 0, at_ = 0;
};

}  // namespace drago
