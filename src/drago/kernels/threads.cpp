#include "threads.hpp"

#include <exception>
#include <mutex>
#include <thread>

namespace drago {

void on_threads(Queue& queue, Index n_threads, void (*work)(const void*, Queue&),
                const void* given) {
    std::exception_ptr failed;  // no memory, as a rule
    std::mutex mutex;
    const auto take = [&] {
        try {
            work(given, queue);
        } catch (...) {
            queue.next = queue.count;
            const std::lock_guard<std::mutex> lock(mutex);
            failed = std::current_exception();
        }
    };
    std::vector<std::thread> others;
    for (Index t = std::min(n_threads, queue.count) - 1; t > 0; --t) {
        try {
            others.emplace_back(take);
        } catch (const std::exception&) {
            break;  // no more threads to be had: this one does the rest
        }
    }
    take();
    for (std::thread& other : others) other.join();
    if (failed) std::rethrow_exception(failed);
}

}  // namespace drago
