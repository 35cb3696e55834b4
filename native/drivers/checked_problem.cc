#include "drivers/checked_problem.h"

#include <stdarg.h>
#include <stdio.h>

#include <algorithm>
#include <initializer_list>

namespace uwaga {

void invalid_argument(const char* format, ...) {
  InvalidArgument error;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error.message, sizeof error.message, format, arguments);
  va_end(arguments);
  throw error;
}

namespace {

using LongLong = long long;  // what %lld takes

constexpr int64_t kMaxWidth = 1 << 16, kMaxThreads = 1 << 12, kMaxHeads = 1 << 20;
constexpr int64_t kMaxRows = int64_t{1} << 40;         // of queries, packed tokens, sequences
constexpr int64_t kMaxKeys = (int64_t{1} << 31) - 64;  // per sequence: kernels number keys by int32
constexpr int64_t kMaxPosition = int64_t{1} << 60;     // so that sums of positions do not overflow

void check_range(const char* name, int64_t x, int64_t low, int64_t high) {
  if (x < low || x > high)
    invalid_argument("%s: %lld must lie between %lld and %lld", name, LongLong{x}, LongLong{low}, LongLong{high});
}

// The number of entries from the first to the last one of an operand with these sizes and strides, both included; 0 where
// it has none, -1 where a stride is negative or the number overflows.
template <int kDimensions>
int64_t span(const int64_t (&sizes)[kDimensions], const int64_t (&strides)[kDimensions]) {
  int64_t last = 0;
  bool any = true;
  for (int n = 0; n < kDimensions; ++n) {
    int64_t step;
    any = any && sizes[n] > 0;
    if (strides[n] < 0 && sizes[n] > 1) return -1;
    if (sizes[n] > 1 &&
        (__builtin_mul_overflow(sizes[n] - 1, strides[n], &step) || __builtin_add_overflow(last, step, &last))) {
      return -1;
    }
  }
  return last >= INT64_MAX / 8 ? -1 : any ? last + 1 : 0;
}

template <int kDimensions>
void check_fits(const char* name, const void* data, int64_t bytes, const int64_t (&sizes)[kDimensions],
                const int64_t (&strides)[kDimensions], int entry_size) {
  const int64_t entries = span(sizes, strides);
  if (entries < 0) invalid_argument("%s has strides that are negative or too large", name);
  if (entries == 0) return;
  if (!data) invalid_argument("%s: missing", name);
  if (entries * entry_size > bytes) {
    invalid_argument("%s needs %lld bytes of memory, and has %lld", name, LongLong{entries * entry_size},
                     LongLong{bytes});
  }
}

// The element size of operands that are float32 whatever the dtype of the query.
int float32_size(const char* name, const uwaga_tensor& t) {
  if (t.data && t.dtype != UWAGA_FLOAT32) invalid_argument("%s must be float32", name);
  return sizeof(float);
}

int size_of_known_type(const char* name, const uwaga_tensor& t) {
  if (t.dtype < UWAGA_FLOAT32 || t.dtype > UWAGA_FLOAT16) invalid_argument("%s has an unknown dtype", name);
  return element_size(t.dtype);
}

void check_count(const char* name, int64_t given, int64_t needed) {
  if (given < needed)
    invalid_argument("%s: %lld elements are needed, and there are %lld", name, LongLong{needed}, LongLong{given});
}
void check_count(const char* name, const uwaga_floats& floats, int64_t needed) {
  if (floats.data) check_count(name, floats.count, needed);
}

// The same where the count is a product of sizes that are not negative.
void check_product(const char* name, int64_t given, std::initializer_list<int64_t> sizes) {
  int64_t needed = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(needed, size, &needed)) invalid_argument("%s: too many elements are needed", name);
  }
  check_count(name, given, needed);
}
void check_product(const char* name, const uwaga_floats& floats, std::initializer_list<int64_t> sizes) {
  if (floats.data) check_product(name, floats.count, sizes);
}

}  // namespace

CheckedProblem::CheckedProblem(const uwaga_problem& given, bool reads_values) : p_(given) {
  check_sizes(reads_values);
  if (!reads_values) p_.value_width = 0, p_.value = {};
  p_.query_offsets = checked_offsets("query offsets", given.query_offsets, given.query_tokens, given.queries);
  p_.key_offsets = checked_offsets("key offsets", given.key_offsets, given.key_tokens, given.keys);
  for (int64_t b = 0; b < p_.sequences; ++b) {
    const Sequence s = sequence_of(p_, b);
    max_queries_ = std::max(max_queries_, s.queries);
    max_keys_ = std::max(max_keys_, s.keys);
    if (!p_.query_offsets.data && !p_.key_offsets.data) break;  // dense: all sequences have one size
  }
  check_query_rows("query", p_.query, p_.query_width, size_of_known_type("query", p_.query));
  if (p_.key_pages.table.data) {
    check_pages(reads_values);
  } else {
    check_key_rows("key", p_.key, p_.key_heads, p_.query_width, size_of_known_type("key", p_.key));
  }
  if (reads_values)
    check_key_rows("value", p_.value, p_.key_heads, p_.value_width, size_of_known_type("value", p_.value));
  if (p_.bias.data) {
    check_fits<4>("bias", p_.bias.data, p_.bias.bytes, {p_.sequences, p_.query_heads, max_queries_, max_keys_},
                  {p_.bias.batch, p_.bias.head, p_.bias.row, p_.bias.column}, size_of_known_type("bias", p_.bias));
  }
  if (!p_.normalize && p_.sinks.data) invalid_argument("sinks need a softmax, and normalize is 0");
  check_count("sinks", p_.sinks, p_.query_heads);
  p_.relative_start = p_.relative.data ? checked_start("start of the relative bias", p_.relative_start) : uwaga_start{};
  check_relative();
  if (p_.rows.data) {
    if (p_.query_offsets.data || p_.key_offsets.data)
      invalid_argument("rows can be selected in dense problems only, and this one is ragged");
    p_.rows = checked_increasing("selected queries", p_.rows, p_.queries);
  }
  mask_ = checked_mask(p_.mask, p_.mask_operations);
  p_.mask = mask_.data();
}

void CheckedProblem::check_sizes(bool reads_values) const {
  check_range("number of sequences", p_.sequences, 0, kMaxRows);
  check_range("number of queries", p_.queries, 0, kMaxRows);
  check_range("number of keys", p_.keys, 0, kMaxKeys);
  check_range("number of packed queries", p_.query_offsets.data ? p_.query_tokens : 0, 0, kMaxRows);
  check_range("number of packed keys", p_.key_offsets.data ? p_.key_tokens : 0, 0, kMaxRows);
  check_range("number of query heads", p_.query_heads, 1, kMaxHeads);
  check_range("number of key heads", p_.key_heads, 1, kMaxHeads);
  if (p_.query_heads % p_.key_heads) invalid_argument("query heads must be a multiple of key heads");
  check_range("query width", p_.query_width, 1, kMaxWidth);
  if (reads_values) check_range("value width", p_.value_width, 1, kMaxWidth);
  const double rows = static_cast<double>(p_.sequences) * p_.query_heads * std::max(p_.queries, p_.keys);
  if (rows > static_cast<double>(kMaxPosition)) invalid_argument("there are too many rows");
  if (!(p_.dropout >= 0.0f && p_.dropout < 1.0f)) invalid_argument("dropout must lie in [0, 1)");
  check_range("number of threads", p_.threads, 1, kMaxThreads);
}

void CheckedProblem::check_relative() const {
  if (!p_.relative.data) return;
  check_range("number of distances per head", p_.relative_head, 0, kMaxPosition);
  check_range("index of distance 0", p_.relative_zero, -kMaxPosition, kMaxPosition);
  int64_t count;
  if (__builtin_mul_overflow(p_.query_heads, p_.relative_head, &count)) invalid_argument("relative bias is too long");
  check_count("relative bias", p_.relative, count);
  const bool one_is_enough =
      !p_.query_offsets.data && !p_.key_offsets.data && p_.relative_start.mode != UWAGA_START_PER_ROW;
  for (int64_t b = 0; b < (one_is_enough ? std::min<int64_t>(p_.sequences, 1) : p_.sequences); ++b) {
    const Sequence s = sequence_of(p_, b);
    if (s.queries == 0 || s.keys == 0) continue;
    const int64_t zero = p_.relative_zero - start_of(p_.relative_start, s);
    if (zero - (s.queries - 1) < 0 || zero + s.keys > p_.relative_head) {
      invalid_argument("relative bias has %lld distances per head, which do not cover sequence %lld",
                       LongLong{p_.relative_head}, LongLong{b});
    }
  }
}

uwaga_integers CheckedProblem::copy_of(const char* name, const uwaga_integers& numbers, int64_t count) {
  if (!numbers.data) invalid_argument("%s: missing", name);
  if (numbers.count < count)
    invalid_argument("%s: %lld elements are needed, and there are %lld", name, LongLong{count},
                     LongLong{numbers.count});
  copies_.emplace_back(numbers.data, numbers.data + count);
  return {copies_.back().data(), count};
}

uwaga_integers CheckedProblem::checked_offsets(const char* name, const uwaga_integers& given, int64_t tokens,
                                               int64_t longest) {
  if (!given.data) return {};
  const uwaga_integers offsets = copy_of(name, given, p_.sequences + 1);
  if (given.count != offsets.count) {
    invalid_argument("%s: %lld elements are needed, and there are %lld", name, LongLong{offsets.count},
                     LongLong{given.count});
  }
  if (offsets.data[0] != 0) invalid_argument("%s must start at 0, not at %lld", name, LongLong{offsets.data[0]});
  for (int64_t b = 0; b < p_.sequences; ++b) {
    const int64_t first = offsets.data[b], last = offsets.data[b + 1];
    if (last < first)
      invalid_argument("%s must not decrease, and do from %lld to %lld", name, LongLong{first}, LongLong{last});
    if (last > tokens)
      invalid_argument("%s reach %lld, beyond the %lld packed rows", name, LongLong{last}, LongLong{tokens});
    if (last - first > longest) {
      invalid_argument("%s have a sequence of %lld rows, more than the %lld of the problem", name,
                       LongLong{last - first}, LongLong{longest});
    }
  }
  if (offsets.data[p_.sequences] != tokens) {
    invalid_argument("%s end at %lld, before the %lld packed rows do", name, LongLong{offsets.data[p_.sequences]},
                     LongLong{tokens});
  }
  return offsets;
}

uwaga_integers CheckedProblem::checked_increasing(const char* name, const uwaga_integers& given, int64_t size) {
  if (given.count == 0) return {given.data, 0};
  const uwaga_integers numbers = copy_of(name, given, given.count);
  for (int64_t n = 0; n < numbers.count; ++n) {
    check_range(name, numbers.data[n], 0, size - 1);
    if (n > 0 && numbers.data[n] <= numbers.data[n - 1]) invalid_argument("%s must be strictly increasing", name);
  }
  return numbers;
}

uwaga_start CheckedProblem::checked_start(const char* name, const uwaga_start& given) {
  uwaga_start start = given;
  if (given.mode == UWAGA_START_PER_ROW) {
    if (p_.sequences > 0) start.starts = copy_of(name, given.starts, p_.sequences);
    for (int64_t b = 0; b < p_.sequences; ++b) check_range(name, start.starts.data[b], -kMaxPosition, kMaxPosition);
  } else if (given.mode == UWAGA_START_VALUE) {
    check_range(name, given.value, -kMaxPosition, kMaxPosition);
  } else if (given.mode != UWAGA_START_LAST) {
    invalid_argument("%s has an unknown mode", name);
  }
  return start;
}

std::vector<uwaga_mask_operation> CheckedProblem::checked_mask(const uwaga_mask_operation* given, int64_t count) {
  if (count < 0 || count > UWAGA_MASK_MAX_OPERATIONS) invalid_argument("mask program is too long");
  if (count > 0 && !given) invalid_argument("mask program is missing");
  std::vector<uwaga_mask_operation> operations(given, given + count);
  int depth = 0;
  for (uwaga_mask_operation& op : operations) {
    switch (op.operation) {
      case UWAGA_MASK_AND:
      case UWAGA_MASK_OR:
        if (depth < 2) invalid_argument("mask program: an operator needs two operands, and the stack has fewer");
        --depth;
        continue;
      case UWAGA_MASK_BAND:
        check_range("lower bound of a mask's band", op.low, -UWAGA_UNBOUNDED, UWAGA_UNBOUNDED);
        check_range("upper bound of a mask's band", op.high, -UWAGA_UNBOUNDED, UWAGA_UNBOUNDED);
        op.start = checked_start("start of a mask's band", op.start);
        break;
      case UWAGA_MASK_LENGTHS:
        if (p_.sequences == 0) break;
        op.ids = copy_of("lengths of a mask", op.ids, p_.sequences);
        for (int64_t& length : copies_.back()) length = std::min(std::max<int64_t>(length, 0), max_keys_);
        break;
      case UWAGA_MASK_DOCUMENTS:
        check_documents(op);
        break;
      case UWAGA_MASK_DENSE:
        check_fits<4>("dense mask", op.bits, op.bytes, {p_.sequences, p_.query_heads, max_queries_, max_keys_},
                      {op.batch, op.head, op.row, op.column}, 1);
        break;
      default:
        invalid_argument("mask program has an unknown operation");
    }
    ++depth;
  }
  if (count > 0 && depth != 1) invalid_argument("mask program must leave one value on the stack");
  return operations;
}

void CheckedProblem::check_documents(const uwaga_mask_operation& op) const {
  const auto has_ids = [&](const char* name, const uwaga_integers& ids, bool packed, int64_t tokens, int64_t each,
                           int64_t batch) {
    if (packed) {
      check_fits<1>(name, ids.data, ids.count, {tokens}, {1}, 1);
    } else {
      check_fits<2>(name, ids.data, ids.count, {p_.sequences, each}, {batch, 1}, 1);
    }
  };
  has_ids("document ids of the keys", op.ids, p_.key_offsets.data, p_.key_tokens, p_.keys, op.id_batch);
  if (op.query_ids.data) {
    has_ids("document ids of the queries", op.query_ids, p_.query_offsets.data, p_.query_tokens, p_.queries,
            op.query_id_batch);
    return;
  }
  for (int64_t b = 0; b < p_.sequences; ++b) {
    const Sequence s = sequence_of(p_, b);
    if (s.queries > s.keys)
      invalid_argument("a document mask without ids of the queries needs at least as many keys as queries");
  }
}

void CheckedProblem::check_pages(bool reads_values) {
  uwaga_pages& pages = p_.key_pages;
  if (reads_values) invalid_argument("keys in pages serve functions of the weights only, which read no values");
  check_range("rows of a page", pages.rows, 1, kMaxKeys);
  check_range("number of pages", pages.count, 0, kMaxRows);
  check_fits<4>("key", p_.key.data, p_.key.bytes, {pages.count, p_.key_heads, pages.rows, p_.query_width},
                {p_.key.batch, p_.key.head, p_.key.row, p_.key.column}, size_of_known_type("key", p_.key));
  const auto pages_of = [&](const Sequence& s) { return (s.keys + pages.rows - 1) / pages.rows; };
  check_range("pages of a sequence in the table", pages.row_of_table, 0, kMaxKeys);
  check_product("table of pages", pages.table.count, {p_.sequences, pages.row_of_table});
  pages.table = copy_of("table of pages", pages.table, p_.sequences * pages.row_of_table);
  for (int64_t b = 0; b < p_.sequences; ++b) {
    const Sequence s = sequence_of(p_, b);
    if (pages_of(s) > pages.row_of_table) {
      invalid_argument("sequence %lld has %lld keys, and its %lld pages hold %lld", LongLong{b}, LongLong{s.keys},
                       LongLong{pages.row_of_table}, LongLong{pages.row_of_table * pages.rows});
    }
    for (int64_t n = 0; n < pages_of(s); ++n) {
      check_range("number of a page", pages.table.data[b * pages.row_of_table + n], 0, pages.count - 1);
    }
  }
}

void CheckedProblem::check_query_rows(const char* name, const uwaga_tensor& t, int64_t columns, int entry_size) const {
  const bool packed = p_.query_offsets.data;
  check_fits<4>(name, t.data, t.bytes,
                {packed ? 1 : p_.sequences, p_.query_heads, packed ? p_.query_tokens : p_.queries, columns},
                {t.batch, t.head, t.row, t.column}, entry_size);
}

void CheckedProblem::check_key_rows(const char* name, const uwaga_tensor& t, int64_t heads, int64_t columns,
                                    int entry_size) const {
  const bool packed = p_.key_offsets.data;
  check_fits<4>(name, t.data, t.bytes, {packed ? 1 : p_.sequences, heads, packed ? p_.key_tokens : p_.keys, columns},
                {t.batch, t.head, t.row, t.column}, entry_size);
}

void CheckedProblem::check_per_query(const char* name, const uwaga_tensor& t) const {
  check_query_rows(name, t, 1, float32_size(name, t));
}

void CheckedProblem::check_per_key(const char* name, const uwaga_tensor& t) const {
  check_key_rows(name, t, p_.query_heads, 1, float32_size(name, t));
}

void CheckedProblem::check_per_diagonal(const char* name, const uwaga_tensor& t) const {
  if (p_.query_offsets.data || p_.key_offsets.data)
    invalid_argument("%s are those of a dense problem, and this one is ragged", name);
  const int64_t diagonals = std::max<int64_t>(p_.queries + p_.keys - 1, 0);
  check_fits<4>(name, t.data, t.bytes, {p_.sequences, p_.query_heads, diagonals, 1}, {t.batch, t.head, t.row, 0},
                float32_size(name, t));
}

void CheckedProblem::check(const uwaga_forward_result& result) const {
  if (result.output.data || !p_.normalize)
    check_query_rows("output", result.output, p_.value_width, size_of_known_type("output", result.output));
  if (result.lse.data) check_per_query("lse", result.lse);
}

void CheckedProblem::check(const uwaga_softmax& softmax) const {
  check_per_query("maximum of the softmax", softmax.maximum);
  check_per_query("sum of the softmax", softmax.sum);
}

void CheckedProblem::check(const uwaga_backward_args& args) const {
  if (p_.rows.data) invalid_argument("the backward pass does not take selected rows");
  check_query_rows("gradient of the output", args.grad_output, p_.value_width,
                   size_of_known_type("gradient of the output", args.grad_output));
  if (p_.normalize) {
    check_query_rows("output", args.output, p_.value_width, size_of_known_type("output", args.output));
    check_per_query("lse", args.lse);
    if (args.grad_lse.data) check_per_query("gradient of the lse", args.grad_lse);
  }
  const auto size = [](const char* name, const uwaga_tensor& t) { return size_of_known_type(name, t); };
  if (args.grad_query.data) {
    check_query_rows("gradient of the query", args.grad_query, p_.query_width,
                     size("gradient of the query", args.grad_query));
  }
  if (args.grad_key.data) {
    check_key_rows("gradient of the key", args.grad_key, p_.key_heads, p_.query_width,
                   size("gradient of the key", args.grad_key));
  }
  if (args.grad_value.data) {
    check_key_rows("gradient of the value", args.grad_value, p_.key_heads, p_.value_width,
                   size("gradient of the value", args.grad_value));
  }
  if (args.grad_relative.data && !p_.relative.data)
    invalid_argument("there is a gradient of the relative bias, and no relative bias");
  if (args.grad_sinks.data && !p_.sinks.data) invalid_argument("there is a gradient of the sinks, and no sinks");
  check_count("gradient of the relative bias", args.grad_relative,
              p_.relative.data ? p_.query_heads * p_.relative_head : 0);
  check_count("gradient of the sinks", args.grad_sinks, p_.query_heads);
  if (args.grad_bias.data) {
    const uwaga_tensor& t = args.grad_bias;
    check_fits<4>("gradient of the bias", t.data, t.bytes, {p_.sequences, p_.query_heads, max_queries_, max_keys_},
                  {t.batch, t.head, t.row, t.column}, float32_size("gradient of the bias", t));
  }
}

void CheckedProblem::check_part(const char* name) const {
  if (p_.query_offsets.data || p_.key_offsets.data || p_.rows.data)
    invalid_argument("%s go through dense problems without selected rows only", name);
}

void CheckedProblem::check(const uwaga_forward_sums& sums) const {
  check_part("sums of outputs");
  if (!sums.sums.data) invalid_argument("there is no memory for the sums of outputs");
  check_product("sums of outputs", sums.sums,
                {p_.sequences, p_.query_heads, p_.queries, UWAGA_PADDED(p_.value_width, 16) + 2});
}

void CheckedProblem::check(const uwaga_backward_sums& sums) const {
  check_part("sums of gradients");
  const int64_t units = p_.sequences * p_.key_heads, rows = p_.queries * (p_.query_heads / p_.key_heads);
  const int64_t query_width = UWAGA_PADDED(p_.query_width, 16), value_width = UWAGA_PADDED(p_.value_width, 16);
  check_product("sums of the query's gradient", sums.grad_query, {units, UWAGA_PADDED(rows, 48), query_width});
  check_product("sums of the key's gradient", sums.grad_key, {units, UWAGA_PADDED(p_.keys, 64), query_width});
  check_product("sums of the value's gradient", sums.grad_value, {units, UWAGA_PADDED(p_.keys, 64), value_width});
}

void CheckedProblem::check(const uwaga_row_sums& sums, int64_t top) const {
  check_part("sums of rows");
  if (!sums.sums.data) invalid_argument("there is no memory for the sums of rows");
  check_product("sums of rows", sums.sums,
                {p_.sequences, p_.query_heads, p_.queries, UWAGA_PADDED(p_.value_width, 16) + 5 + 2 * top});
}

void CheckedProblem::check(const uwaga_weight_sums& sums, int64_t of_head) const {
  check_part("sums of weights");
  if (!sums.data) invalid_argument("there is no memory for the sums of weights");
  check_product("sums of weights", sums.count, {p_.sequences, p_.query_heads, of_head});
}

void CheckedProblem::check(const uwaga_exact_sums& sums, int64_t of_head) const {
  check_part("exact sums");
  const int64_t heads = p_.sequences * p_.query_heads;
  if (heads == 0 || of_head == 0) return;
  if (!sums.data) invalid_argument("there is no memory for the exact sums");
  check_range("exact sums of a head", sums.head, of_head, kMaxRows);
  check_fits<3>("exact sums", sums.data, sums.count, {heads, of_head, 3}, {sums.head * 3, 3, 1}, 1);
}

uwaga_row_statistics CheckedProblem::checked(const uwaga_row_statistics& given) {
  uwaga_row_statistics statistics = given;
  check_range("number of largest weights", given.top, 0, kMaxKeys);
  if (given.softmax.maximum.data || given.softmax.sum.data) check(given.softmax);
  for (const uwaga_tensor* t : {&given.entropy, &given.squares, &given.distance}) {
    if (t->data) check_per_query("row statistic", *t);
  }
  statistics.distance_start = checked_start("start of the distances", given.distance_start);
  if (given.top == 0) return statistics;
  check_query_rows("largest weights", given.top_weights, given.top, float32_size("largest weights", given.top_weights));
  check_query_rows("positions of the largest weights", given.top_positions, given.top, sizeof(int64_t));
  check_range("position of the first key", p_.dropout_key, 0, kMaxKeys - max_keys_);
  return statistics;
}

uwaga_selection CheckedProblem::checked(const uwaga_selection& given) {
  if (p_.query_offsets.data || p_.key_offsets.data)
    invalid_argument("rows can be selected in dense problems only, and this one is ragged");
  const auto below = [&](const char* name, const uwaga_integers& numbers, int64_t size) {
    if (numbers.count == 0) return uwaga_integers{numbers.data, 0};
    const uwaga_integers found = copy_of(name, numbers, numbers.count);
    for (int64_t n = 0; n < found.count; ++n) check_range(name, found.data[n], 0, size - 1);
    return found;
  };
  return {below("selected sequences", given.sequences, p_.sequences),
          below("selected heads", given.heads, p_.query_heads),
          checked_increasing("selected queries", given.queries, p_.queries)};
}

uwaga_integers CheckedProblem::checked_keys(const uwaga_integers& keys) {
  return checked_increasing("selected keys", keys, p_.keys);
}

void CheckedProblem::check_entries(const uwaga_tensor& out, const uwaga_selection& selection,
                                   const uwaga_integers& keys) const {
  check_fits<4>("entries", out.data, out.bytes,
                {selection.sequences.count, selection.heads.count, selection.queries.count, keys.count},
                {out.batch, out.head, out.row, out.column}, float32_size("entries", out));
}

uwaga_integers CheckedProblem::checked_edges(const char* name, const uwaga_integers& given, int64_t bins,
                                             bool of_queries) {
  int64_t count;
  if (__builtin_mul_overflow(p_.sequences, bins + 1, &count)) invalid_argument("there are too many cells");
  if (count == 0) return {};
  const uwaga_integers edges = copy_of(name, given, count);
  for (int64_t b = 0; b < p_.sequences; ++b) {
    const int64_t* first = edges.data + b * (bins + 1);
    const Sequence s = sequence_of(p_, b);
    const int64_t size = of_queries ? s.queries : s.keys;
    if (first[0] < 0 || first[bins] > size || !std::is_sorted(first, first + bins + 1)) {
      invalid_argument("%s of sequence %lld must be increasing, within 0 and %lld", name, LongLong{b}, LongLong{size});
    }
  }
  return edges;
}

uwaga_pool_args CheckedProblem::checked(const uwaga_pool_args& given, bool writes_cells) {
  if (given.how != UWAGA_POOL_MASS && given.how != UWAGA_POOL_MAX)
    invalid_argument("pooling must be UWAGA_POOL_MASS or UWAGA_POOL_MAX");
  check_range("number of cell rows", given.rows, 0, kMaxRows);
  check_range("number of cell columns", given.columns, 0, kMaxRows);
  uwaga_pool_args args = given;
  if (given.rows == 0 || given.columns == 0) return args;  // nothing is read or written
  args.query_edges = checked_edges("edges of queries", given.query_edges, given.rows, true);
  args.key_edges = checked_edges("edges of keys", given.key_edges, given.columns, false);
  int64_t cells;
  if (__builtin_mul_overflow(p_.sequences * p_.query_heads, given.rows, &cells) ||
      __builtin_mul_overflow(cells, given.columns, &cells) || cells > INT64_MAX / 2) {
    invalid_argument("there are too many cells");
  }
  if (!writes_cells) return args;
  if (cells > 0 && !given.cells.data) invalid_argument("cells are missing");
  check_count("cells", given.cells, cells);
  if (given.positions && given.position_count < 2 * cells) {
    invalid_argument("positions of cells: %lld elements are needed, and there are %lld", LongLong{2 * cells},
                     LongLong{given.position_count});
  }
  return args;
}

void CheckedProblem::check_block(int64_t b, int64_t h, int64_t i0, int64_t i1, int64_t j0, int64_t j1) const {
  check_range("sequence", b, 0, p_.sequences - 1);
  check_range("head", h, 0, p_.query_heads - 1);
  const Sequence s = sequence_of(p_, b);
  check_range("first query", i0, 0, s.queries - 1);
  check_range("last query", i1, i0 + 1, s.queries);
  check_range("first key", j0, 0, s.keys - 1);
  check_range("last key", j1, j0 + 1, s.keys);
}

void check(const uwaga_matmul_args& args) {
  check_range("number of rows", args.rows, 0, kMaxRows);
  check_range("number of columns", args.columns, 0, kMaxKeys);
  check_range("depth", args.depth, 0, kMaxRows);
  check_range("activation", args.activation, UWAGA_IDENTITY, UWAGA_SILU);
  check_range("number of threads", args.threads, 1, kMaxThreads);
  const auto check_matrix = [](const char* name, const uwaga_tensor& t, int64_t rows, int64_t columns) {
    check_fits<2>(name, t.data, t.bytes, {rows, columns}, {t.row, t.column}, size_of_known_type(name, t));
  };
  check_matrix("a", args.a, args.rows, args.depth);
  check_matrix("b", args.b, args.columns, args.depth);
  if (args.a.dtype != args.b.dtype) invalid_argument("a and b must have one dtype");
  if (args.bias.data) check_matrix("bias", args.bias, 1, args.columns);
  const auto check_result = [&](const char* name, const uwaga_tensor& t) {
    check_matrix(name, t, args.rows, args.columns);
    if (t.column != 1 && args.columns > 1) invalid_argument("the columns of %s must be adjacent", name);
    if (t.dtype != args.out.dtype) invalid_argument("%s must have the dtype of out", name);
  };
  check_result("out", args.out);
  if (args.residual.data) check_result("residual", args.residual);
  if (args.preactivation.data) check_result("preactivation", args.preactivation);
}

}  // namespace uwaga
