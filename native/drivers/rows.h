// What the drivers on rows of numbers share: addresses of rows, and the division of rows into tasks.
#ifndef UWAGA_DRIVERS_ROWS_H_
#define UWAGA_DRIVERS_ROWS_H_

#include <stdint.h>

#include <algorithm>

#include "base/parallel.h"
#include "uwaga/c_api.h"

namespace uwaga {

// The address of a row; null for an operand that is absent.
inline char* row_of(const uwaga_tensor& t, int64_t row) {
  return t.data ? static_cast<char*>(t.data) + row * t.row * (t.dtype == UWAGA_FLOAT32 ? 4 : 2) : nullptr;
}

// Numbers of a task: long beside the cost of starting it, short enough to divide some hundred kilobytes among threads.
constexpr int64_t kTaskNumbers = 16 * 1024;

// Runs work(first, last) on ranges that make up [0, rows), `rows_per_task` each.
template <class Work>
void for_row_ranges(int threads, int64_t rows, int64_t rows_per_task, const Work& work) {
  parallel_for(threads, (rows + rows_per_task - 1) / rows_per_task,
               [&](int64_t n, int) { work(n * rows_per_task, std::min(rows, (n + 1) * rows_per_task)); });
}

inline int64_t rows_per_task(int64_t width) { return std::max<int64_t>(1, kTaskNumbers / width); }

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_ROWS_H_
