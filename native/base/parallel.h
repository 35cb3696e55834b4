// Parallel loops: one function runs on several threads at once, which take task numbers from a shared counter.
#ifndef UWAGA_BASE_PARALLEL_H_
#define UWAGA_BASE_PARALLEL_H_

#include <stdint.h>

#include <atomic>
#include <new>

namespace uwaga {

// GOMP_parallel of an OpenMP runtime: runs `function(data)` on `threads` threads of its pool.
using GompParallel = void (*)(void (*function)(void*), void* data, unsigned threads, unsigned flags);

// Runs `function(context, thread)` on up to `threads` threads, thread numbers from 0, and returns when all are done.
void run_on_threads(int threads, void (*function)(void* context, int thread), void* context);
// Uses the pool of this runtime from now on; null: std::thread.
void set_gomp_parallel(GompParallel function);

// Runs task(n, thread) for every n < count, in any order; a thread that is free takes the next n. Exceptions must not cross
// the thread pool: std::bad_alloc, the only one expected, is rethrown here when all threads are done.
template <class Task>
void parallel_for(int threads, int64_t count, const Task& task) {
  struct Context {
    std::atomic<int64_t> next{0};
    std::atomic<bool> out_of_memory{false};
    int64_t count;
    const Task* task;
  } context;
  context.count = count;
  context.task = &task;
  const int useful_threads = static_cast<int>(count < threads ? count : threads);
  run_on_threads(
      useful_threads,
      [](void* raw, int thread) {
        Context& c = *static_cast<Context*>(raw);
        try {
          for (int64_t n; (n = c.next.fetch_add(1, std::memory_order_relaxed)) < c.count;) (*c.task)(n, thread);
        } catch (const std::bad_alloc&) {
          c.out_of_memory.store(true);
        }
      },
      &context);
  if (context.out_of_memory.load()) throw std::bad_alloc();
}

}  // namespace uwaga
#endif  // UWAGA_BASE_PARALLEL_H_
