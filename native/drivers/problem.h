// Accessors of a uwaga_problem that CheckedProblem let pass: the rows of each sequence, addresses of entries, and the grouped
// rows that query heads with a common key head form.
#ifndef UWAGA_DRIVERS_PROBLEM_H_
#define UWAGA_DRIVERS_PROBLEM_H_

#include <stdint.h>

#include "kernels/kernels.h"
#include "uwaga/c_api.h"

namespace uwaga {

struct Sequence {
  int64_t index;                     // b
  int64_t query_offset, key_offset;  // rows before it in a packed operand; 0 in a dense batch
  int64_t queries, keys;
};

inline Sequence sequence_of(const uwaga_problem& p, int64_t b) {
  Sequence s{b, 0, 0, p.queries, p.keys};
  if (p.query_offsets.data) {
    s.query_offset = p.query_offsets.data[b];
    s.queries = p.query_offsets.data[b + 1] - s.query_offset;
  }
  if (p.key_offsets.data) {
    s.key_offset = p.key_offsets.data[b];
    s.keys = p.key_offsets.data[b + 1] - s.key_offset;
  }
  return s;
}

inline int64_t start_of(const uwaga_start& start, const Sequence& s) {
  if (start.mode == UWAGA_START_LAST) return s.keys - s.queries;
  if (start.mode == UWAGA_START_VALUE) return start.value;
  return start.starts.data[s.index];
}

inline int element_size(int dtype) { return dtype == UWAGA_FLOAT32 ? 4 : 2; }

// Address of entry (row, 0) of operand `t` for sequence b, head h; packed operands have token offsets instead of b.
inline char* row_address(const uwaga_tensor& t, int64_t b, int64_t h, int64_t row) {
  return static_cast<char*>(t.data) + (b * t.batch + h * t.head + row * t.row) * element_size(t.dtype);
}
inline char* query_address(const uwaga_problem& p, const uwaga_tensor& t, const Sequence& s, int64_t h, int64_t i) {
  return row_address(t, p.query_offsets.data ? 0 : s.index, h, s.query_offset + i);
}
inline char* key_address(const uwaga_problem& p, const uwaga_tensor& t, const Sequence& s, int64_t g, int64_t j) {
  return row_address(t, p.key_offsets.data ? 0 : s.index, g, s.key_offset + j);
}

// Address of key row (j, 0) of sequence b, head g, in whichever page it lies.
inline const char* key_row_address(const uwaga_problem& p, const Sequence& s, int64_t g, int64_t j) {
  const uwaga_pages& pages = p.key_pages;
  if (!pages.table.data) return key_address(p, p.key, s, g, j);
  return row_address(p.key, pages.table.data[s.index * pages.row_of_table + j / pages.rows], g, j % pages.rows);
}
// Key rows [j0, j0 + count), at most a block of them. Rows of several pages are copied side by side, and the copy is valid until the
// thread asks again.
Rows key_rows(const uwaga_problem& p, const Sequence& s, int64_t g, int64_t j0, int count);
// Of keys in pages: reads them into the cache ahead of their use, since the processor does not foresee the next page.
void prefetch_keys(const uwaga_problem& p, const Sequence& s, int64_t g, int64_t j0, int count);

// Grouped-query attention: the query heads that share a key/value head form one list of rows, query by query, so that a
// block of keys is packed once for all of them: row r is query r / (H / G), head g * H / G + r % (H / G).
struct GroupedRow {
  int64_t query, head;
};
inline GroupedRow grouped_row(const uwaga_problem& p, int64_t g, int64_t r) {
  if (p.query_heads == p.key_heads) return {p.rows.data ? p.rows.data[r] : r, g};  // the usual case, without divisions
  const int64_t group = p.query_heads / p.key_heads;
  return {p.rows.data ? p.rows.data[r / group] : r / group, g * group + r % group};
}
// The number of a sequence's queries that are computed: the selected ones, or all.
inline int64_t selected_query_count(const uwaga_problem& p, const Sequence& s) {
  return p.rows.data ? p.rows.count : s.queries;
}

inline int64_t rounded_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }
inline int64_t padded_width(int64_t width) { return rounded_up(width, kMaxLanes); }

// As many threads as the caller allows, or one where waking the others would take longer than the work.
inline int useful_threads(const uwaga_problem& p, double multiply_adds) {
  constexpr double kWorthSharing = 2.5e5;  // some ten microseconds of one thread
  return multiply_adds < kWorthSharing ? 1 : p.threads;
}
inline int useful_threads(const uwaga_problem& p) {
  const int64_t queries = p.rows.data ? p.rows.count : p.queries;
  const double pairs = static_cast<double>(p.sequences) * p.query_heads * queries * p.keys;
  return useful_threads(p, pairs * (p.query_width + p.value_width));
}

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_PROBLEM_H_
