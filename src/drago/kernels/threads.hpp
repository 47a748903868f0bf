// Work on parts, by a few threads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "math.hpp"
#include "views.hpp"

namespace drago {

// Parts that are taken by whoever has time, each by one.
//
// Each thread has a stretch of its own and goes from its first part to the next; who is done takes
// the last part of the longest stretch. So memory is read in long runs, and where it is new, no two
// threads wait for the system to fill the same page. Or there is one stretch for all, whose parts
// are taken in turn, as files are best read. There are fewer than 2^32 parts.
class Queue {
  public:
    Queue(Index count, Index n_threads, bool in_turn);
    // No more than there are parts.
    Index n_threads() const { return n_threads_; }
    // The number of a part; -1 where none is left.
    Index take(Index thread);
    // Leave the rest.
    void clear();

  private:
    // Its first part, and the one after its last.
    struct alignas(64) Stretch {
        std::atomic<std::uint64_t> ends;
    };
    Index n_threads_;
    std::vector<Stretch> stretches_;
};

// Calls work(given, queue, thread) from each thread, which takes parts until none is left. Threads
// end with the call: a process may fork after it.
void on_threads(Queue& queue, void (*work)(const void*, Queue&, Index), const void* given);

// Calls work(k) for the parts k < count, with a `work` of each thread's own, which make() gives.
// What a part computes must not depend on who does it; then the number of threads changes no bit.
template <class Make>
void in_parts_with(Index count, Index n_threads, bool in_turn, const Make& make) {
    Queue queue(count, n_threads, in_turn);
    const auto take = [](const void* make, Queue& queue, Index thread) {
        auto work = (*static_cast<const Make*>(make))();
        for (Index k; (k = queue.take(thread)) >= 0;) work(k);
    };
    on_threads(queue, take, &make);
}

// The same with one `work` for all threads.
template <class Work>
void in_parts(Index count, Index n_threads, Work work) {
    in_parts_with(count, n_threads, false, [&] { return [&](Index k) { work(k); }; });
}

// How many threads long sums may take: for as long as it lives, whoever calls a search for weights
// says so.
class Helpers {
  public:
    explicit Helpers(Index count) : before_(allowed_) { allowed_ = count; }
    ~Helpers() { allowed_ = before_; }
    Helpers(const Helpers&) = delete;
    Helpers& operator=(const Helpers&) = delete;
    static Index allowed() { return allowed_; }

  private:
    static inline thread_local Index allowed_ = 1;
    Index before_;
};

// Entries of a part of a long sum.
inline constexpr Index long_part = 1 << 14;

namespace detail {

template <std::size_t K, class Term>
[[gnu::noinline]] std::array<double, K> part_sums(Index lo, Index hi, const Term& given) {
    const Term term = given;  // a copy of its own: what is written cannot be a part of it
    return sums<K>(hi - lo, [=](Index i) DRAGO_INLINED { return term(lo + i); });
}

}  // namespace detail

// `sums` in parts, by as many threads as are allowed: by sizes alone, so that their number changes
// no bit.
template <std::size_t K, class Term>
std::array<double, K> long_sums(Index n, const Term& term) {
    if (n < 2 * long_part) return detail::part_sums<K>(0, n, term);
    const Index count = n / long_part;
    std::vector<std::array<double, K>> found(static_cast<std::size_t>(count));
    in_parts(count, Helpers::allowed(), [&](Index k) {
        const Index end = k + 1 < count ? (k + 1) * long_part : n;
        found[k] = detail::part_sums<K>(k * long_part, end, term);
    });
    std::array<double, K> total = found[0];
    for (Index k = 1; k < count; ++k)
        for (std::size_t j = 0; j < K; ++j) total[j] += found[k][j];
    return total;
}

// `work(lo, hi)` on ranges that make up 0 to n, by as many threads as are allowed.
template <class Work>
void in_ranges(Index n, const Work& work) {
    const Index count = std::max<Index>(1, n / long_part);
    if (count == 1) return work(Index{0}, n);
    in_parts(count, Helpers::allowed(),
             [&](Index k) { work(k * long_part, k + 1 < count ? (k + 1) * long_part : n); });
}

}  // namespace drago
