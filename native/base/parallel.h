// Work shared among threads: one function run by several threads at once, which take numbered pieces from a counter.
#ifndef UWAGA_BASE_PARALLEL_H_
#define UWAGA_BASE_PARALLEL_H_

#include <stdint.h>

#include <atomic>
#include <new>

#include "uwaga/c_api.h"

namespace uwaga {

// Runs `function(context, thread)` on up to `threads` threads, thread numbers from 0, and returns when all are done.
void run_on_threads(int threads, void (*function)(void* context, int thread), void* context);
void set_gomp_parallel(uwaga_gomp_parallel function);

// Runs piece(n, thread) for every n < count, in any order; each thread takes the next piece when it is free. Exceptions
// must not cross the thread pool: std::bad_alloc, the only one expected, is thrown again here when all threads are done.
template <class Piece>
void for_pieces(int threads, int64_t count, const Piece& piece) {
  struct Context {
    std::atomic<int64_t> next{0};
    std::atomic<bool> out_of_memory{false};
    int64_t count;
    const Piece* piece;
  } context;
  context.count = count;
  context.piece = &piece;
  const int useful = static_cast<int>(count < threads ? count : threads);
  run_on_threads(
      useful,
      [](void* raw, int thread) {
        Context& c = *static_cast<Context*>(raw);
        try {
          for (int64_t n; (n = c.next.fetch_add(1, std::memory_order_relaxed)) < c.count;) (*c.piece)(n, thread);
        } catch (const std::bad_alloc&) {
          c.out_of_memory.store(true);
        }
      },
      &context);
  if (context.out_of_memory.load()) throw std::bad_alloc();
}

}  // namespace uwaga
#endif  // UWAGA_BASE_PARALLEL_H_
