// Random calls of the C interface whose memory sizes are correct, and whose other arguments are arbitrary.
//
// An input is a call as bytes: the number of a function, its structs, the operations of its mask, and then
// numbers for its arrays of int64 (tests/conformance/conftest.py writes such inputs from real calls). Pointers among these
// bytes only say whether there is memory; each operand gets a block of exactly the size in its struct, made
// smaller where that is more than kMostBytes. AddressSanitizer finds every access outside of it.
//
// Built with clang and -fsanitize=fuzzer this is libFuzzer's target; fuzz_main.cc runs it without.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "drivers/checked_problem.h"
#include "fuzz/fuzz_c_api.h"
#include "kernels/kernels.h"
#include "uwaga/c_api.h"

namespace uwaga_fuzz {
namespace {

Counts g_counts;

constexpr int64_t kMostBytes = 1 << 20, kMostNumbers = 1 << 13;
constexpr double kMostWork = 3e7;  // multiply-adds of a call, about

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  void read(void* to, size_t size) {
    memset(to, 0, size);
    const size_t n = std::min(size, left_);
    if (n == 0) return;
    memcpy(to, data_, n);
    data_ += n, left_ -= n;
  }
  template <class T>
  T take() {
    T x;
    read(&x, sizeof x);
    return x;
  }
  bool empty() const { return left_ == 0; }

 private:
  const uint8_t* data_;
  size_t left_;
};

// The memory of one call, freed with it.
class Memory {
 public:
  explicit Memory(Input& input) : input_(input) {}

  void give(uwaga_tensor& t) {
    if (!t.data) return;
    t.bytes = std::min(std::max<int64_t>(t.bytes, 0), kMostBytes);
    t.data = block(t.bytes);
    fill(t.data, t.bytes, t.dtype);
  }
  void give(uwaga_integers& numbers) {
    if (!numbers.data) return;
    numbers.count = std::min(std::max<int64_t>(numbers.count, 0), kMostNumbers);
    auto* data = static_cast<int64_t*>(block(numbers.count * sizeof(int64_t)));
    input_.read(data, numbers.count * sizeof(int64_t));
    numbers.data = data;
  }
  void give(uwaga_floats& numbers) {
    if (!numbers.data) return;
    numbers.count = std::min(std::max<int64_t>(numbers.count, 0), kMostBytes / 4);
    numbers.data = static_cast<float*>(block(numbers.count * sizeof(float)));
    // Like an ALiBi bias, falling with distance on both sides, so that distant keys may be skipped.
    for (int64_t n = 0; n < numbers.count; ++n)
      numbers.data[n] = -0.5f * static_cast<float>(std::abs(n - numbers.count / 2));
  }
  void give(uwaga_mask_operation& op) {
    give(op.start.starts), give(op.ids), give(op.query_ids);
    if (!op.bits) return;
    op.bytes = std::min(std::max<int64_t>(op.bytes, 0), kMostBytes);
    auto* bits = static_cast<uint8_t*>(block(op.bytes));
    for (int64_t n = 0; n < op.bytes; ++n) bits[n] = n % 3 != 0;
    op.bits = bits;
  }
  void give(uwaga_softmax& softmax) { give(softmax.maximum), give(softmax.sum); }
  void give(uwaga_selection& chosen) { give(chosen.sequences), give(chosen.heads), give(chosen.queries); }

  // Reads `count` operations and allocates the memory that they point to.
  std::vector<uwaga_mask_operation> mask(int64_t count) {
    std::vector<uwaga_mask_operation> operations(
        std::min<int64_t>(std::max<int64_t>(count, 0), UWAGA_MASK_MAX_OPERATIONS));
    for (auto& op : operations) op = input_.take<uwaga_mask_operation>();
    for (auto& op : operations) give(op);
    return operations;
  }

 private:
  void* block(int64_t bytes) {
    blocks_.emplace_back(malloc(static_cast<size_t>(bytes)), free);
    return blocks_.back().get();
  }
  // Mostly small numbers, some NaN or infinite.
  void fill(void* data, int64_t bytes, int dtype) {
    const int64_t size = dtype == UWAGA_FLOAT32 ? 4 : 2;
    for (int64_t n = 0; n + size <= bytes; n += size) {
      const uint32_t word = static_cast<uint32_t>(n) * 2654435761u;
      const float x =
          word % 1021 == 0 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(word % 64) / 32.0f - 1.0f;
      uint32_t bits;
      memcpy(&bits, &x, sizeof bits);
      if (size == 2) bits >>= 16;
      memcpy(static_cast<char*>(data) + n, &bits, size);
    }
  }

  Input& input_;
  std::vector<std::unique_ptr<void, void (*)(void*)>> blocks_;
};

// Whether a call is too much work: strides of zero let many rows share little memory.
bool takes_long(const uwaga_problem& given, int64_t top, double cells) {
  try {
    uwaga::CheckedProblem boundary(given, false);
    const uwaga_problem& p = boundary.problem();
    const double heads = static_cast<double>(p.sequences) * p.query_heads;
    double pairs = 0.0;
    if (heads > 1e4) return true;
    for (int64_t b = 0; b < p.sequences; ++b) {
      const uwaga::Sequence s = uwaga::sequence_of(p, b);
      pairs += static_cast<double>(s.queries) * (s.keys + 64) + s.keys;
    }
    const double widths = static_cast<double>(given.query_width) + std::max<int64_t>(given.value_width, 0) + 64.0;
    return pairs * p.query_heads * widths + heads * static_cast<double>(given.queries) * top + cells > kMostWork;
  } catch (const uwaga::InvalidArgument&) {
    return false;  // the library refuses it at once
  }
}

void give_all(Memory& memory, uwaga_problem& p) {
  for (uwaga_tensor* t : {&p.query, &p.key, &p.value, &p.bias}) memory.give(*t);
  memory.give(p.query_offsets), memory.give(p.key_offsets), memory.give(p.relative),
      memory.give(p.relative_start.starts);
  memory.give(p.sinks), memory.give(p.rows), memory.give(p.key_pages.table);
}

int call(Input& input, int function, uwaga_problem p) {
  Memory memory(input);
  uwaga_forward_result result{};
  uwaga_backward_args backward{};
  uwaga_row_statistics statistics{};
  uwaga_softmax softmax{};
  uwaga_selection selection{};
  uwaga_integers keys{};
  uwaga_pool_args pool{};
  uwaga_tensor out{}, weights{};
  int64_t operations = 0;
  uint8_t selects = 0;
  uwaga_forward_sums forward_sums{};
  uwaga_backward_sums backward_sums{};
  if ((function <= 3 && function != 1) || function == kForwardPart || function == kRowsPart)
    result = input.take<uwaga_forward_result>();
  if (function == kForwardPart) forward_sums = input.take<uwaga_forward_sums>();
  if (function == 1 || function == kBackwardPart) backward = input.take<uwaga_backward_args>();
  if (function == kBackwardPart) backward_sums = input.take<uwaga_backward_sums>();
  if (function == 3 || function == kRowsPart) statistics = input.take<uwaga_row_statistics>();
  if (function == 3) selects = input.take<uint8_t>();
  uwaga_row_sums row_sums{};
  if (function == kRowsPart) row_sums = input.take<uwaga_row_sums>();
  if ((function >= 4 && function <= 7) || (function >= kReceivedPart && function != kRowsPart))
    softmax = input.take<uwaga_softmax>();
  if (function == 3 || function == 4) selection = input.take<uwaga_selection>();
  if (function == 4) keys = input.take<uwaga_integers>();
  if (function == 6 || function == kReceivedPart) weights = input.take<uwaga_tensor>();
  if ((function >= 4 && function <= 6) || function == kReceivedPart || function == kDiagonalSums ||
      function == kMassPart)
    out = input.take<uwaga_tensor>();
  uwaga_weight_sums weight_sums{};
  if (function == kReceivedPart || function == kMassPart) weight_sums = input.take<uwaga_weight_sums>();
  if (function == 5 || function == kMassPart) operations = input.take<uint8_t>();
  if (function == 7 || function == kPoolPart) pool = input.take<uwaga_pool_args>();
  uwaga_exact_sums exact_sums{};
  if (function == kPoolPart || function == kDiagonalSumsPart) exact_sums = input.take<uwaga_exact_sums>();

  std::vector<uwaga_mask_operation> mask = memory.mask(p.mask_operations), other = memory.mask(operations);
  p.mask = mask.data(), p.mask_operations = static_cast<int64_t>(mask.size());
  give_all(memory, p);
  memory.give(result.output), memory.give(result.lse);
  for (uwaga_tensor* t : {&backward.output, &backward.grad_output, &backward.lse, &backward.grad_lse,
                          &backward.grad_query, &backward.grad_key, &backward.grad_value, &backward.grad_bias}) {
    memory.give(*t);
  }
  memory.give(backward.grad_relative), memory.give(backward.grad_sinks);
  for (uwaga_floats* sums : {&forward_sums.sums, &row_sums.sums, &backward_sums.grad_query, &backward_sums.grad_key,
                             &backward_sums.grad_value}) {
    memory.give(*sums);
  }
  std::vector<double> doubles(std::min(std::max<int64_t>(weight_sums.count, 0), kMostNumbers));
  if (weight_sums.data) weight_sums.data = doubles.data(), weight_sums.count = static_cast<int64_t>(doubles.size());
  std::vector<uint64_t> words(std::min(std::max<int64_t>(exact_sums.count, 0), kMostNumbers));
  if (exact_sums.data) exact_sums.data = words.data(), exact_sums.count = static_cast<int64_t>(words.size());
  memory.give(statistics.softmax), memory.give(statistics.distance_start.starts);
  for (uwaga_tensor* t : {&statistics.entropy, &statistics.squares, &statistics.distance, &statistics.top_weights,
                          &statistics.top_positions, &out, &weights}) {
    memory.give(*t);
  }
  memory.give(softmax), memory.give(selection), memory.give(keys);
  memory.give(pool.query_edges), memory.give(pool.key_edges), memory.give(pool.cells);
  std::vector<int64_t> positions(std::min(std::max<int64_t>(pool.position_count, 0), kMostNumbers));
  if (pool.positions) pool.positions = positions.data(), pool.position_count = static_cast<int64_t>(positions.size());

  const double cells = pool.cells.data || function == kPoolPart
                           ? static_cast<double>(std::max<int64_t>(pool.rows, 0)) * std::max<int64_t>(pool.columns, 0)
                           : 0.0;
  const double chosen = static_cast<double>(selection.sequences.count) * selection.heads.count * 1e4;
  if (takes_long(p, std::max<int64_t>(statistics.top, 0), cells + (selection.queries.data ? chosen : 0.0))) return -1;
  switch (function) {
    case 0:
      return uwaga_forward(&p, &result);
    case 1:
      return uwaga_backward(&p, &backward);
    case 2:
      return uwaga_linear_forward(&p, &result);
    case 3:
      return uwaga_rows(&p, &result, &statistics, selects % 2 ? &selection : nullptr);
    case 4:
      return uwaga_weights(&p, &softmax, &selection, &keys, &out);
    case 5:
      return uwaga_mass(&p, &softmax, other.data(), static_cast<int64_t>(other.size()), &out);
    case 6:
      return uwaga_received(&p, &softmax, &weights, &out);
    case 7:
      return uwaga_pool(&p, &softmax, &pool);
    case 8: {
      int64_t at[6];
      input.read(at, sizeof at);
      return uwaga_mask_block(&p, at[0], at[1], at[2], at[3], at[4], at[5]) < 0 ? UWAGA_BAD_ARGUMENT : UWAGA_OK;
    }
    case kDiagonalSums:
      return uwaga_diagonal_sums(&p, &softmax, &out);
    case kForwardPart:
      return uwaga_forward_part(&p, &result, &forward_sums);
    case kReceivedPart:
      return uwaga_received_part(&p, &softmax, &weights, &out, &weight_sums);
    case kRowsPart:
      return uwaga_rows_part(&p, &result, &statistics, &row_sums);
    case kMassPart:
      return uwaga_mass_part(&p, &softmax, other.data(), static_cast<int64_t>(other.size()), &out, &weight_sums);
    case kPoolPart:
      return uwaga_pool_part(&p, &softmax, &pool, &exact_sums);
    case kDiagonalSumsPart:
      return uwaga_diagonal_sums_part(&p, &softmax, &exact_sums);
    case kBackwardPart:
      return uwaga_backward_part(&p, &backward, &backward_sums);
    default: {
      int64_t at[4];
      input.read(at, sizeof at);
      uwaga_mask_bits(&p, at[0], at[1], at[2], at[3]);
      return UWAGA_OK;
    }
  }
}

// Strides and memory that fit a matrix; by `order` rows or columns are adjacent.
void fit(uwaga_tensor& t, int64_t rows, int64_t columns, int order) {
  t.row = order % 2 ? 1 : columns, t.column = order % 2 ? rows : 1;
  t.bytes = rows * columns * (t.dtype == UWAGA_FLOAT32 ? 4 : 2);
}

// Every other call gets sizes, strides and memory that fit together: arbitrary ones hardly ever do.
int call_matmul(Input& input) {
  const uint8_t shape = input.take<uint8_t>();
  uwaga_matmul_args p = input.take<uwaga_matmul_args>();
  if (shape % 2) {
    p.rows &= 63, p.columns &= 255, p.depth &= shape & 2 ? 2047 : 127;
    p.a.data = p.b.data = p.out.data = &p, p.bias.dtype &= 1;
    p.a.dtype = p.b.dtype = (shape >> 2) % 3;
    p.out.dtype = p.residual.dtype = p.preactivation.dtype = shape & 64 ? UWAGA_FLOAT32 : p.a.dtype;
    p.activation &= 3, p.threads = 1 + (p.threads & 1);
    fit(p.a, p.rows, p.depth, shape >> 4), fit(p.b, p.columns, p.depth, shape >> 5), fit(p.bias, 1, p.columns, 0);
    for (uwaga_tensor* t : {&p.out, &p.residual, &p.preactivation}) fit(*t, p.rows, p.columns, 0);
  }
  Memory memory(input);
  for (uwaga_tensor* t : {&p.a, &p.b, &p.bias, &p.residual, &p.preactivation, &p.out}) memory.give(*t);
  // Strides of zero let large products share little memory; a negative size is refused at once.
  const double work =
      static_cast<double>(p.rows) * static_cast<double>(p.columns) * (static_cast<double>(p.depth) + 1.0);
  if (work > kMostWork || static_cast<double>(p.threads) > 64.0) return -1;
  return uwaga_matmul(&p);
}

}  // namespace

const Counts& counts() { return g_counts; }

}  // namespace uwaga_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace uwaga_fuzz;
  Input input(data, size);
  const int function = input.take<uint8_t>() % kFunctions, level = input.take<uint8_t>();
  int levels = 0;
  while (uwaga_level_name(levels) && uwaga_level_supported(levels)) ++levels;
  uwaga_set_level(uwaga_level_name(level % levels));
  const int status = function == kMatmul ? call_matmul(input) : call(input, function, input.take<uwaga_problem>());
  ++g_counts.tried[function];
  if (status < 0) ++g_counts.skipped[function];
  if (status == UWAGA_OK) ++g_counts.served[function];
  return 0;
}
