#include "drivers/checked_rows.h"

#include "drivers/checked_problem.h"

namespace uwaga {
namespace {

using LongLong = long long;  // what %lld takes

constexpr int64_t kMaxRows = int64_t{1} << 40, kMaxWidth = int64_t{1} << 24, kMaxThreads = 1 << 12;

void check_range(const char* name, int64_t x, int64_t low, int64_t high) {
  if (x < low || x > high)
    invalid_argument("%s: %lld must lie between %lld and %lld", name, LongLong{x}, LongLong{low}, LongLong{high});
}

void check_dtype(const char* name, const uwaga_tensor& t, int dtype) {
  if (t.dtype < UWAGA_FLOAT32 || t.dtype > UWAGA_FLOAT16) invalid_argument("%s has an unknown dtype", name);
  if (t.dtype != dtype) invalid_argument("%s must have the dtype of the input", name);
}

// `rows` rows of `width` numbers of this dtype lie in the operand's memory.
void check_rows(const char* name, const uwaga_tensor& t, int64_t rows, int64_t width, int dtype) {
  check_dtype(name, t, dtype);
  if (rows == 0) return;
  if (!t.data) invalid_argument("%s: missing", name);
  if (t.column != 1 && width > 1) invalid_argument("%s: the numbers of a row must be adjacent", name);
  int64_t last = 0, entries = 0, bytes = 0;
  if ((rows > 1 && (t.row < 0 || __builtin_mul_overflow(rows - 1, t.row, &last))) ||
      __builtin_add_overflow(last, width, &entries) ||
      __builtin_mul_overflow(entries, int64_t{dtype == UWAGA_FLOAT32 ? 4 : 2}, &bytes)) {
    invalid_argument("%s has a stride that is negative or too large", name);
  }
  if (bytes > t.bytes) {
    invalid_argument("%s needs %lld bytes of memory, and has %lld", name, LongLong{bytes}, LongLong{t.bytes});
  }
}

// The same for an operand that is written to: its rows may not overlap, or threads would write to the same memory.
void check_written_rows(const char* name, const uwaga_tensor& t, int64_t rows, int64_t width, int dtype) {
  check_rows(name, t, rows, width, dtype);
  if (rows > 1 && t.row < width) invalid_argument("%s: its rows overlap", name);
}

// The same for an operand that is float32 whatever the dtype of the input.
void check_float32_rows(const char* name, const uwaga_tensor& t, int64_t rows, int64_t width) {
  if (t.dtype != UWAGA_FLOAT32) invalid_argument("%s must be float32", name);
  check_rows(name, t, rows, width, UWAGA_FLOAT32);
}

void check_sizes(int64_t rows, int64_t width, int threads) {
  check_range("number of rows", rows, 0, kMaxRows);
  check_range("width", width, 1, kMaxWidth);
  check_range("number of threads", threads, 1, kMaxThreads);
}

void check_parameter(const char* name, const uwaga_tensor& t, int64_t width, int dtype) {
  if (t.data) check_rows(name, t, 1, width, dtype);
}

void check_floats(const char* name, const uwaga_floats& floats, int64_t count) {
  if (floats.data && floats.count < count)
    invalid_argument("%s: %lld elements are needed, and there are %lld", name, LongLong{count}, LongLong{floats.count});
}

void check_norm(const uwaga_norm_args& args) {
  check_sizes(args.rows, args.width, args.threads);
  check_range("kind of norm", args.kind, UWAGA_NO_NORM, UWAGA_RMS_NORM);
  if (!(args.dropout >= 0.0f && args.dropout < 1.0f)) invalid_argument("dropout must lie in [0, 1)");
  if (args.x.data) check_rows("x", args.x, args.rows, args.width, args.dtype);
  if (args.added.data) check_rows("added", args.added, args.rows, args.width, args.dtype);
  check_parameter("weight", args.weight, args.width, args.dtype);
  check_parameter("bias", args.bias, args.width, args.dtype);
}

void check_lookup(const char* name, const uwaga_lookup& lookup, int64_t rows, int64_t width, int dtype) {
  if (!lookup.table.data) return;
  check_range("number of rows of a table", lookup.table_rows, rows ? 1 : 0, kMaxRows);
  check_rows(name, lookup.table, lookup.table_rows, width, dtype);
  if (lookup.indices.data && lookup.indices.count < rows)
    invalid_argument("%s: %lld indices are needed, and there are %lld", name, LongLong{rows},
                     LongLong{lookup.indices.count});
}

}  // namespace

void check(const uwaga_norm_args& args, const uwaga_norm_result& result) {
  check_norm(args);
  const bool norms = args.kind != UWAGA_NO_NORM;
  if (norms || result.output.data) check_written_rows("output", result.output, args.rows, args.width, args.dtype);
  if (!norms && result.output.data) invalid_argument("output: there is no norm");
  if (result.sum.data) check_written_rows("sum", result.sum, args.rows, args.width, args.dtype);
}

void check(const uwaga_norm_args& args, const uwaga_norm_backward_args& backward) {
  check_norm(args);
  if (args.kind == UWAGA_NO_NORM) invalid_argument("kind of norm: there is none");
  check_rows("x", args.x, args.rows, args.width, args.dtype);
  check_rows("gradient", backward.grad_output, args.rows, args.width, args.dtype);
  if (backward.grad_sum.data) check_rows("gradient of the sum", backward.grad_sum, args.rows, args.width, args.dtype);
  for (const uwaga_tensor* t : {&backward.grad_x, &backward.grad_added}) {
    if (t->data) check_written_rows("gradient of an input", *t, args.rows, args.width, args.dtype);
  }
  check_floats("gradient of the weight", backward.grad_weight, args.width);
  check_floats("gradient of the bias", backward.grad_bias, args.width);
}

void check(const uwaga_embed_args& args) {
  check_sizes(args.rows, args.width, args.threads);
  const int dtype = args.output.dtype;
  check_lookup("tokens", args.tokens, args.rows, args.width, dtype);
  check_lookup("types", args.types, args.rows, args.width, dtype);
  check_lookup("positions", args.positions, args.rows, args.width, dtype);
  if (args.types.table.data && !args.tokens.table.data) invalid_argument("tokens: missing");
  check_parameter("weight", args.weight, args.width, dtype);
  check_parameter("bias", args.bias, args.width, dtype);
  check_written_rows("output", args.output, args.rows, args.width, dtype);
}

void check(const uwaga_rotate_args& args) {
  check_sizes(args.rows, args.width, args.threads);
  check_range("number of heads", args.heads, 1, kMaxWidth);
  check_range("number of pairs", args.pairs, 1, args.width / 2);
  check_range("number of positions", args.positions, 1, kMaxRows);
  const int64_t numbers = args.heads * args.width;
  check_rows("x", args.x, args.rows, numbers, args.x.dtype);
  check_written_rows("output", args.out, args.rows, numbers, args.x.dtype);
  const int64_t positions = args.rows < args.positions ? args.rows : args.positions;
  check_float32_rows("cosines", args.cos, positions, args.pairs);
  check_float32_rows("sines", args.sin, positions, args.pairs);
}

void check(const uwaga_activation_backward_args& args) {
  check_sizes(args.rows, args.width, args.threads);
  check_range("activation", args.activation, UWAGA_GELU, UWAGA_GELU_TANH);
  const int dtype = args.input.dtype;
  check_rows("input", args.input, args.rows, args.width, dtype);
  check_rows("gradient", args.grad_output, args.rows, args.width, dtype);
  check_written_rows("gradient of the input", args.grad_input, args.rows, args.width, dtype);
}

}  // namespace uwaga
