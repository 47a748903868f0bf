#include "threads.hpp"

#include <exception>
#include <mutex>
#include <thread>

namespace drago {
namespace {

std::uint64_t packed(std::uint64_t first, std::uint64_t end) { return first << 32 | end; }
std::uint64_t first_of(std::uint64_t ends) { return ends >> 32; }
std::uint64_t end_of(std::uint64_t ends) { return ends & 0xffffffffu; }
std::uint64_t left_in(std::uint64_t ends) { return end_of(ends) - first_of(ends); }

}  // namespace

Queue::Queue(Index count, Index n_threads, bool in_turn)
    : n_threads_(std::max<Index>(1, std::min(count, n_threads))),
      stretches_(static_cast<std::size_t>(in_turn ? 1 : n_threads_)) {
    const Index size = static_cast<Index>(stretches_.size());
    for (Index t = 0; t < size; ++t)
        stretches_[t].ends = packed(count * t / size, count * (t + 1) / size);
}

Index Queue::take(Index thread) {
    const Index home = std::min(thread, static_cast<Index>(stretches_.size()) - 1);
    std::atomic<std::uint64_t>& own = stretches_[home].ends;
    std::uint64_t ends = own;
    while (left_in(ends) > 0)
        if (own.compare_exchange_weak(ends, packed(first_of(ends) + 1, end_of(ends))))
            return static_cast<Index>(first_of(ends));
    while (true) {
        Stretch* longest = &stretches_[home];
        ends = 0;
        for (Stretch& other : stretches_) {
            const std::uint64_t there = other.ends;
            if (left_in(there) > left_in(ends)) longest = &other, ends = there;
        }
        if (left_in(ends) == 0) return -1;
        if (longest->ends.compare_exchange_weak(ends, packed(first_of(ends), end_of(ends) - 1)))
            return static_cast<Index>(end_of(ends)) - 1;
    }
}

void Queue::clear() {
    for (Stretch& each : stretches_) each.ends = 0;
}

void on_threads(Queue& queue, void (*work)(const void*, Queue&, Index), const void* given) {
    std::exception_ptr failed;  // no memory, as a rule
    std::mutex mutex;
    const auto take = [&](Index thread) {
        try {
            work(given, queue, thread);
        } catch (...) {
            queue.clear();
            const std::lock_guard<std::mutex> lock(mutex);
            failed = std::current_exception();
        }
    };
    std::vector<std::thread> others;
    for (Index thread = 1; thread < queue.n_threads(); ++thread) {
        try {
            others.emplace_back(take, thread);
        } catch (const std::exception&) {
            break;  // no more threads to be had: this one does the rest
        }
    }
    take(0);
    for (std::thread& other : others) other.join();
    if (failed) std::rethrow_exception(failed);
}

}  // namespace drago
