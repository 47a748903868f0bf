// Work on parts, by a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "views.hpp"

namespace drago {

// Calls work(k) for the parts k < count, with a `work` of each thread's own, which make() gives. What
// a part computes must not depend on who does it; then the number of threads changes no bit. Threads
// end with the call: a process may fork after it.
template <class Make>
void in_parts_with(Index count, Index n_threads, Make make) {
    std::atomic<Index> next{0};
    const auto take = [&] {
        auto work = make();
        for (Index k; (k = next.fetch_add(1)) < count;) work(k);
    };
    std::vector<std::thread> others;
    for (Index t = std::min(n_threads, count) - 1; t > 0; --t) {
        try {
            others.emplace_back(take);
        } catch (const std::exception&) {
            break;  // no more threads to be had: this one does the rest
        }
    }
    take();
    for (std::thread& other : others) other.join();
}

// The same with one `work` for all threads.
template <class Work>
void in_parts(Index count, Index n_threads, Work work) {
    in_parts_with(count, n_threads, [&] { return [&](Index k) { work(k); }; });
}

}  // namespace drago
