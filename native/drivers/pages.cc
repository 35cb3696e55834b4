#include <string.h>

#include <algorithm>

#include "base/scratch.h"
#include "drivers/problem.h"

namespace uwaga {
namespace {

// Appends `count` rows to a copy whose rows are adjacent.
template <class T>
T* copy_rows(T* to, const void* first, const uwaga_tensor& t, int64_t count, int64_t width) {
  const T* from = static_cast<const T*>(first);
  for (int64_t n = 0; n < count; ++n, from += t.row, to += width) {
    if (t.column == 1) {
      memcpy(to, from, static_cast<size_t>(width) * sizeof(T));
      continue;
    }
    for (int64_t w = 0; w < width; ++w) to[w] = from[w * t.column];
  }
  return to;
}

template <class T>
void copy_pages(T* to, const uwaga_problem& p, const Sequence& s, int64_t g, int64_t j0, int count) {
  const int64_t rows = p.key_pages.rows;
  for (int64_t j = j0; j < j0 + count;) {
    const int64_t in_page = std::min(rows - j % rows, j0 + count - j);
    to = copy_rows(to, key_row_address(p, s, g, j), p.key, in_page, p.query_width);
    j += in_page;
  }
}

}  // namespace

Rows key_rows(const uwaga_problem& p, const Sequence& s, int64_t g, int64_t j0, int count) {
  const uwaga_pages& pages = p.key_pages;
  if (!pages.table.data || j0 / pages.rows == (j0 + count - 1) / pages.rows) {
    return {key_row_address(p, s, g, j0), p.key.row, p.key.column, p.key.dtype};
  }
  thread_local Scratch scratch;
  float* copy = scratch.reserve(kBlockKeys * p.query_width);
  if (p.key.dtype == UWAGA_FLOAT32) {
    copy_pages(copy, p, s, g, j0, count);
  } else {
    copy_pages(reinterpret_cast<uint16_t*>(copy), p, s, g, j0, count);
  }
  return {copy, p.query_width, 1, p.key.dtype};
}

void prefetch_keys(const uwaga_problem& p, const Sequence& s, int64_t g, int64_t j0, int count) {
  const int64_t bytes = p.key.column == 1 ? p.query_width * element_size(p.key.dtype) : 0;
  for (int64_t j = j0; j < j0 + count; ++j) {
    const char* row = key_row_address(p, s, g, j);
    for (int64_t n = 0; n < bytes; n += 64) __builtin_prefetch(row + n);
  }
}

}  // namespace uwaga
