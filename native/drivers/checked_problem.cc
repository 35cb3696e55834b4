#include "drivers/checked_problem.h"

#include <stdarg.h>
#include <stdio.h>

#include <algorithm>

namespace uwaga {

void invalid_argument(const char* format, ...) {
  InvalidArgument error;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error.sentence, sizeof error.sentence, format, arguments);
  va_end(arguments);
  throw error;
}

namespace {

using Long = long long;  // what %lld takes

constexpr int64_t kMostWidth = 1 << 16, kMostThreads = 1 << 12, kMostHeads = 1 << 20;
constexpr int64_t kMostRows = int64_t{1} << 40;               // queries, packed tokens, sequences
constexpr int64_t kMostKeys = (int64_t{1} << 31) - 64;        // of a sequence: kernels number them by int32
constexpr int64_t kFarthestStart = int64_t{1} << 60;          // so that sums of positions do not overflow

void in_range(const char* name, int64_t x, int64_t low, int64_t high) {
  if (x < low || x > high) invalid_argument("%s: %lld must lie between %lld and %lld", name, Long{x}, Long{low}, Long{high});
}

// How many entries lie between the first and the last of an operand with these sizes and strides, both included; 0 where it
// has none, -1 where it does not fit into any memory or goes backwards.
template <int kDimensions>
int64_t span(const int64_t (&sizes)[kDimensions], const int64_t (&strides)[kDimensions]) {
  int64_t last = 0;
  bool any = true;
  for (int n = 0; n < kDimensions; ++n) {
    int64_t step;
    any = any && sizes[n] > 0;
    if (strides[n] < 0 && sizes[n] > 1) return -1;
    if (sizes[n] > 1 && (__builtin_mul_overflow(sizes[n] - 1, strides[n], &step) || __builtin_add_overflow(last, step, &last))) {
      return -1;
    }
  }
  return last >= INT64_MAX / 8 ? -1 : any ? last + 1 : 0;
}

template <int kDimensions>
void fits(const char* name, const void* data, int64_t bytes, const int64_t (&sizes)[kDimensions],
          const int64_t (&strides)[kDimensions], int entry_size) {
  const int64_t entries = span(sizes, strides);
  if (entries < 0) invalid_argument("%s has strides that are negative or too large", name);
  if (entries == 0) return;
  if (!data) invalid_argument("%s: missing", name);
  if (entries * entry_size > bytes) {
    invalid_argument("%s reaches over %lld bytes, and its memory has %lld", name, Long{entries * entry_size}, Long{bytes});
  }
}

// The operands that are float32 whatever the query is.
int float_size(const char* name, const uwaga_tensor& t) {
  if (t.data && t.dtype != UWAGA_FLOAT32) invalid_argument("%s must be float32", name);
  return sizeof(float);
}

int known_size(const char* name, const uwaga_tensor& t) {
  if (t.dtype < UWAGA_FLOAT32 || t.dtype > UWAGA_FLOAT16) invalid_argument("%s has an unknown element type", name);
  return element_size(t.dtype);
}

void has_floats(const char* name, const uwaga_floats& floats, int64_t count) {
  if (floats.data && floats.count < count) {
    invalid_argument("%s: there are %lld numbers, and must be %lld", name, Long{floats.count}, Long{count});
  }
}

}  // namespace

CheckedProblem::CheckedProblem(const uwaga_problem& given, bool reads_values) : p_(given) {
  check_sizes(reads_values);
  if (!reads_values) p_.value_width = 0, p_.value = {};
  p_.query_offsets = checked_offsets("query offsets", given.query_offsets, given.query_tokens, given.queries);
  p_.key_offsets = checked_offsets("key offsets", given.key_offsets, given.key_tokens, given.keys);
  for (int64_t b = 0; b < p_.sequences; ++b) {
    const Sequence s = sequence_of(p_, b);
    most_queries_ = std::max(most_queries_, s.queries);
    most_keys_ = std::max(most_keys_, s.keys);
    if (!p_.query_offsets.data && !p_.key_offsets.data) break;  // all the same
  }
  query_rows("query", p_.query, p_.query_width, known_size("query", p_.query));
  key_rows("key", p_.key, p_.key_heads, p_.query_width, known_size("key", p_.key));
  if (reads_values) key_rows("value", p_.value, p_.key_heads, p_.value_width, known_size("value", p_.value));
  if (p_.bias.data) {
    fits<4>("bias", p_.bias.data, p_.bias.bytes, {p_.sequences, p_.query_heads, most_queries_, most_keys_},
            {p_.bias.batch, p_.bias.head, p_.bias.row, p_.bias.column}, known_size("bias", p_.bias));
  }
  if (!p_.normalize && p_.sinks.data) invalid_argument("sinks take part in a softmax, and there is none");
  has_floats("sinks", p_.sinks, p_.query_heads);
  p_.relative_start = p_.relative.data ? checked_start("start of the relative bias", p_.relative_start) : uwaga_start{};
  check_relative();
  if (p_.rows.data) {
    if (p_.query_offsets.data || p_.key_offsets.data) invalid_argument("rows are selected in dense problems only");
    p_.rows = rising("selected queries", p_.rows, p_.queries);
  }
  mask_ = checked_mask(p_.mask, p_.mask_operations);
  p_.mask = mask_.data();
}

void CheckedProblem::check_sizes(bool reads_values) const {
  in_range("number of sequences", p_.sequences, 0, kMostRows);
  in_range("number of queries", p_.queries, 0, kMostRows);
  in_range("number of keys", p_.keys, 0, kMostKeys);
  in_range("number of packed queries", p_.query_offsets.data ? p_.query_tokens : 0, 0, kMostRows);
  in_range("number of packed keys", p_.key_offsets.data ? p_.key_tokens : 0, 0, kMostRows);
  in_range("number of query heads", p_.query_heads, 1, kMostHeads);
  in_range("number of key heads", p_.key_heads, 1, kMostHeads);
  if (p_.query_heads % p_.key_heads) invalid_argument("query heads must be a multiple of key heads");
  in_range("query width", p_.query_width, 1, kMostWidth);
  if (reads_values) in_range("value width", p_.value_width, 1, kMostWidth);
  const double rows = static_cast<double>(p_.sequences) * p_.query_heads * std::max(p_.queries, p_.keys);
  if (rows > static_cast<double>(kFarthestStart)) invalid_argument("there are too many rows");
  if (!(p_.dropout >= 0.0f && p_.dropout < 1.0f)) invalid_argument("dropout must lie in [0, 1)");
  in_range("number of threads", p_.threads, 1, kMostThreads);
}

void CheckedProblem::check_relative() const {
  if (!p_.relative.data) return;
  in_range("number of distances of a head", p_.relative_head, 0, kFarthestStart);
  in_range("place of distance zero", p_.relative_zero, -kFarthestStart, kFarthestStart);
  int64_t count;
  if (__builtin_mul_overflow(p_.query_heads, p_.relative_head, &count)) invalid_argument("relative bias is too long");
  has_floats("relative bias", p_.relative, count);
  const bool all_the_same = !p_.query_offsets.data && !p_.key_offsets.data && p_.relative_start.mode != UWAGA_START_PER_ROW;
  for (int64_t b = 0; b < (all_the_same ? std::min<int64_t>(p_.sequences, 1) : p_.sequences); ++b) {
    const Sequence s = sequence_of(p_, b);
    if (s.queries == 0 || s.keys == 0) continue;
    const int64_t zero = p_.relative_zero - start_of(p_.relative_start, s);
    if (zero - (s.queries - 1) < 0 || zero + s.keys > p_.relative_head) {
      invalid_argument("relative bias has %lld distances a head, which do not cover sequence %lld", Long{p_.relative_head}, Long{b});
    }
  }
}

uwaga_integers CheckedProblem::copied(const char* name, const uwaga_integers& numbers, int64_t count) {
  if (!numbers.data) invalid_argument("%s: missing", name);
  if (numbers.count < count) invalid_argument("%s: there are %lld numbers, and must be %lld", name, Long{numbers.count}, Long{count});
  numbers_.emplace_back(numbers.data, numbers.data + count);
  return {numbers_.back().data(), count};
}

uwaga_integers CheckedProblem::checked_offsets(const char* name, const uwaga_integers& given, int64_t tokens, int64_t longest) {
  if (!given.data) return {};
  const uwaga_integers offsets = copied(name, given, p_.sequences + 1);
  if (given.count != offsets.count) {
    invalid_argument("%s: there are %lld numbers, and must be %lld", name, Long{given.count}, Long{offsets.count});
  }
  if (offsets.data[0] != 0) invalid_argument("%s start at %lld, and must start at 0", name, Long{offsets.data[0]});
  for (int64_t b = 0; b < p_.sequences; ++b) {
    const int64_t first = offsets.data[b], last = offsets.data[b + 1];
    if (last < first) invalid_argument("%s fall from %lld to %lld", name, Long{first}, Long{last});
    if (last > tokens) invalid_argument("%s reach %lld, and there are %lld packed rows", name, Long{last}, Long{tokens});
    if (last - first > longest) {
      invalid_argument("%s have a sequence of %lld rows, and the longest was announced as %lld", name, Long{last - first}, Long{longest});
    }
  }
  if (offsets.data[p_.sequences] != tokens) {
    invalid_argument("%s end at %lld, and there are %lld packed rows", name, Long{offsets.data[p_.sequences]}, Long{tokens});
  }
  return offsets;
}

uwaga_integers CheckedProblem::rising(const char* name, const uwaga_integers& given, int64_t size) {
  if (given.count == 0) return {given.data, 0};
  const uwaga_integers numbers = copied(name, given, given.count);
  for (int64_t n = 0; n < numbers.count; ++n) {
    in_range(name, numbers.data[n], 0, size - 1);
    if (n > 0 && numbers.data[n] <= numbers.data[n - 1]) invalid_argument("%s do not rise", name);
  }
  return numbers;
}

uwaga_start CheckedProblem::checked_start(const char* name, const uwaga_start& given) {
  uwaga_start start = given;
  if (given.mode == UWAGA_START_PER_ROW) {
    if (p_.sequences > 0) start.starts = copied(name, given.starts, p_.sequences);
    for (int64_t b = 0; b < p_.sequences; ++b) in_range(name, start.starts.data[b], -kFarthestStart, kFarthestStart);
  } else if (given.mode == UWAGA_START_VALUE) {
    in_range(name, given.value, -kFarthestStart, kFarthestStart);
  } else if (given.mode != UWAGA_START_LAST) {
    invalid_argument("%s has an unknown kind of start", name);
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
        if (depth < 2) invalid_argument("mask program takes two operands where it has fewer");
        --depth;
        continue;
      case UWAGA_MASK_BAND:
        in_range("lower side of a mask's band", op.low, -UWAGA_UNBOUNDED, UWAGA_UNBOUNDED);
        in_range("upper side of a mask's band", op.high, -UWAGA_UNBOUNDED, UWAGA_UNBOUNDED);
        op.start = checked_start("start of a mask's band", op.start);
        break;
      case UWAGA_MASK_LENGTHS:
        if (p_.sequences == 0) break;
        op.ids = copied("lengths of a mask", op.ids, p_.sequences);
        for (int64_t& length : numbers_.back()) length = std::min(std::max<int64_t>(length, 0), most_keys_);
        break;
      case UWAGA_MASK_DOCUMENTS:
        check_documents(op);
        break;
      case UWAGA_MASK_DENSE:
        fits<4>("dense mask", op.bits, op.bytes, {p_.sequences, p_.query_heads, most_queries_, most_keys_},
                {op.batch, op.head, op.row, op.column}, 1);
        break;
      default:
        invalid_argument("mask program has an unknown operation");
    }
    ++depth;
  }
  if (count > 0 && depth != 1) invalid_argument("mask program does not end in one value");
  return operations;
}

void CheckedProblem::check_documents(const uwaga_mask_operation& op) const {
  const auto has_ids = [&](const char* name, const uwaga_integers& ids, bool packed, int64_t tokens, int64_t each, int64_t batch) {
    if (packed) {
      fits<1>(name, ids.data, ids.count, {tokens}, {1}, 1);
    } else {
      fits<2>(name, ids.data, ids.count, {p_.sequences, each}, {batch, 1}, 1);
    }
  };
  has_ids("documents of the keys", op.ids, p_.key_offsets.data, p_.key_tokens, p_.keys, op.id_batch);
  if (op.query_ids.data) {
    has_ids("documents of the queries", op.query_ids, p_.query_offsets.data, p_.query_tokens, p_.queries, op.query_id_batch);
    return;
  }
  for (int64_t b = 0; b < p_.sequences; ++b) {
    const Sequence s = sequence_of(p_, b);
    if (s.queries > s.keys) invalid_argument("documents without ids of the queries need as many keys as queries");
  }
}

void CheckedProblem::query_rows(const char* name, const uwaga_tensor& t, int64_t columns, int entry_size) const {
  const bool packed = p_.query_offsets.data;
  fits<4>(name, t.data, t.bytes, {packed ? 1 : p_.sequences, p_.query_heads, packed ? p_.query_tokens : p_.queries, columns},
          {t.batch, t.head, t.row, t.column}, entry_size);
}

void CheckedProblem::key_rows(const char* name, const uwaga_tensor& t, int64_t heads, int64_t columns, int entry_size) const {
  const bool packed = p_.key_offsets.data;
  fits<4>(name, t.data, t.bytes, {packed ? 1 : p_.sequences, heads, packed ? p_.key_tokens : p_.keys, columns},
          {t.batch, t.head, t.row, t.column}, entry_size);
}

void CheckedProblem::check_per_query(const char* name, const uwaga_tensor& t) const {
  query_rows(name, t, 1, float_size(name, t));
}

void CheckedProblem::check_per_key(const char* name, const uwaga_tensor& t) const {
  key_rows(name, t, p_.query_heads, 1, float_size(name, t));
}

void CheckedProblem::check(const uwaga_forward_result& result) const {
  if (result.output.data || !p_.normalize) query_rows("output", result.output, p_.value_width, known_size("output", result.output));
  if (result.lse.data) check_per_query("lse", result.lse);
}

void CheckedProblem::check(const uwaga_softmax& softmax) const {
  check_per_query("maximum of the softmax", softmax.maximum);
  check_per_query("sum of the softmax", softmax.sum);
}

void CheckedProblem::check(const uwaga_backward_args& args) const {
  if (p_.rows.data) invalid_argument("the backward pass takes all rows");
  query_rows("gradient of the output", args.grad_output, p_.value_width, known_size("gradient of the output", args.grad_output));
  if (p_.normalize) {
    query_rows("output", args.output, p_.value_width, known_size("output", args.output));
    check_per_query("lse", args.lse);
    if (args.grad_lse.data) check_per_query("gradient of the lse", args.grad_lse);
  }
  const auto size = [](const char* name, const uwaga_tensor& t) { return known_size(name, t); };
  if (args.grad_query.data) {
    query_rows("gradient of the query", args.grad_query, p_.query_width, size("gradient of the query", args.grad_query));
  }
  if (args.grad_key.data) {
    key_rows("gradient of the key", args.grad_key, p_.key_heads, p_.query_width, size("gradient of the key", args.grad_key));
  }
  if (args.grad_value.data) {
    key_rows("gradient of the value", args.grad_value, p_.key_heads, p_.value_width,
             size("gradient of the value", args.grad_value));
  }
  if (args.grad_relative.data && !p_.relative.data) invalid_argument("there is no relative bias to have a gradient");
  if (args.grad_sinks.data && !p_.sinks.data) invalid_argument("there are no sinks to have a gradient");
  has_floats("gradient of the relative bias", args.grad_relative, p_.relative.data ? p_.query_heads * p_.relative_head : 0);
  has_floats("gradient of the sinks", args.grad_sinks, p_.query_heads);
  if (args.grad_bias.data) {
    const uwaga_tensor& t = args.grad_bias;
    fits<4>("gradient of the bias", t.data, t.bytes, {p_.sequences, p_.query_heads, most_queries_, most_keys_},
            {t.batch, t.head, t.row, t.column}, float_size("gradient of the bias", t));
  }
}

uwaga_row_statistics CheckedProblem::checked(const uwaga_row_statistics& given) {
  uwaga_row_statistics statistics = given;
  in_range("number of largest weights", given.top, 0, kMostKeys);
  if (given.softmax.maximum.data || given.softmax.sum.data) check(given.softmax);
  for (const uwaga_tensor* t : {&given.entropy, &given.squares, &given.distance}) {
    if (t->data) check_per_query("statistic of the rows", *t);
  }
  statistics.distance_start = checked_start("start of the distances", given.distance_start);
  if (given.top == 0) return statistics;
  query_rows("largest weights", given.top_weights, given.top, float_size("largest weights", given.top_weights));
  query_rows("positions of the largest weights", given.top_positions, given.top, sizeof(int64_t));
  return statistics;
}

uwaga_selection CheckedProblem::checked(const uwaga_selection& given) {
  if (p_.query_offsets.data || p_.key_offsets.data) invalid_argument("rows are selected in dense problems only");
  const auto below = [&](const char* name, const uwaga_integers& numbers, int64_t size) {
    if (numbers.count == 0) return uwaga_integers{numbers.data, 0};
    const uwaga_integers found = copied(name, numbers, numbers.count);
    for (int64_t n = 0; n < found.count; ++n) in_range(name, found.data[n], 0, size - 1);
    return found;
  };
  return {below("selected sequences", given.sequences, p_.sequences), below("selected heads", given.heads, p_.query_heads),
          rising("selected queries", given.queries, p_.queries)};
}

uwaga_integers CheckedProblem::checked_keys(const uwaga_integers& keys) { return rising("selected keys", keys, p_.keys); }

void CheckedProblem::check_entries(const uwaga_tensor& out, const uwaga_selection& selection, const uwaga_integers& keys) const {
  fits<4>("entries", out.data, out.bytes,
          {selection.sequences.count, selection.heads.count, selection.queries.count, keys.count},
          {out.batch, out.head, out.row, out.column}, float_size("entries", out));
}

uwaga_integers CheckedProblem::checked_edges(const char* name, const uwaga_integers& given, int64_t bins, bool of_queries) {
  int64_t count;
  if (__builtin_mul_overflow(p_.sequences, bins + 1, &count)) invalid_argument("there are too many cells");
  if (count == 0) return {};
  const uwaga_integers edges = copied(name, given, count);
  for (int64_t b = 0; b < p_.sequences; ++b) {
    const int64_t* first = edges.data + b * (bins + 1);
    const Sequence s = sequence_of(p_, b);
    const int64_t size = of_queries ? s.queries : s.keys;
    if (first[0] < 0 || first[bins] > size || !std::is_sorted(first, first + bins + 1)) {
      invalid_argument("%s of sequence %lld do not rise from 0 to %lld at most", name, Long{b}, Long{size});
    }
  }
  return edges;
}

uwaga_pool_args CheckedProblem::checked(const uwaga_pool_args& given) {
  if (given.how != UWAGA_POOL_MASS && given.how != UWAGA_POOL_MAX) invalid_argument("cells are pooled by mass or by maximum");
  in_range("number of rows of cells", given.rows, 0, kMostRows);
  in_range("number of columns of cells", given.columns, 0, kMostRows);
  uwaga_pool_args args = given;
  if (given.rows == 0 || given.columns == 0) return args;  // nothing is read or written
  args.query_edges = checked_edges("edges of queries", given.query_edges, given.rows, true);
  args.key_edges = checked_edges("edges of keys", given.key_edges, given.columns, false);
  int64_t cells;
  if (__builtin_mul_overflow(p_.sequences * p_.query_heads, given.rows, &cells) ||
      __builtin_mul_overflow(cells, given.columns, &cells) || cells > INT64_MAX / 2) {
    invalid_argument("there are too many cells");
  }
  if (cells > 0 && !given.cells.data) invalid_argument("cells are missing");
  has_floats("cells", given.cells, cells);
  if (given.positions && given.position_count < 2 * cells) {
    invalid_argument("positions of cells are %lld numbers, and must be %lld", Long{given.position_count}, Long{2 * cells});
  }
  return args;
}

void CheckedProblem::check_block(int64_t b, int64_t h, int64_t i0, int64_t i1, int64_t j0, int64_t j1) const {
  in_range("sequence", b, 0, p_.sequences - 1);
  in_range("head", h, 0, p_.query_heads - 1);
  const Sequence s = sequence_of(p_, b);
  in_range("first query", i0, 0, s.queries - 1);
  in_range("last query", i1, i0 + 1, s.queries);
  in_range("first key", j0, 0, s.keys - 1);
  in_range("last key", j1, j0 + 1, s.keys);
}

}  // namespace uwaga
