/// A pool of threads that share work in small chunks. Called from one thread at a time (the engine's).
/// Results must not depend on the number of threads: the caller chooses the chunks, and never from that
/// number.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace keyhole {

class ThreadPool {
  public:
    /// n_threads counts the calling thread; 0 means one for each core that this process may use.
    explicit ThreadPool(int n_threads = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int n_threads() const;

    /// Runs body(chunk, worker) for every chunk in [0, n_chunks) and waits. Each thread begins with chunks
    /// that follow each other, then takes what is left of the others'. worker is in [0, n_threads()) and
    /// fixed for a thread during the body: an index for scratch memory. The first exception of a body is
    /// thrown here once all chunks have ended; without workers, or with one chunk, it is thrown at once.
    /// Threads that wait spin for some microseconds, then yield, then sleep: static splits with spinning
    /// barriers collapse beside another busy process.
    void parallel_for(std::int64_t n_chunks, const std::function<void(std::int64_t chunk, int worker)>& body);

    /// From within a body, by its worker: computes [0, n) by calls of range(first, last). While other chunks
    /// are left it is one call. Where none is, threads that are done help, each with `length` of the n at a
    /// time. Results must not depend on the ranges. range must not throw and must not call this.
    template <class Range>
    void split(int worker, std::int64_t n, std::int64_t length, const Range& range) {
        if (n <= length || !can_help())
            range(std::int64_t{0}, n);
        else
            split_parts(worker, n, length, std::cref(range));
    }

  private:
    /// Returns whether no chunk is left for threads beside those that have one.
    bool can_help() const;
    void split_parts(int worker, std::int64_t n, std::int64_t length,
                     const std::function<void(std::int64_t first, std::int64_t last)>& range);

    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace keyhole
