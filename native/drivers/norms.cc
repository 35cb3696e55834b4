// Sums of rows with dropout, and their norms: forward, backward, and over rows of embedding tables.
#include <atomic>
#include <vector>

#include "base/half.h"
#include "base/scratch.h"
#include "drivers/checked_problem.h"
#include "drivers/drivers.h"
#include "drivers/dropout_hash.h"
#include "drivers/rows.h"
#include "kernels/kernels.h"

namespace uwaga {
namespace {

// Rows whose gradients of weight and bias are summed one after another. The blocks' sums are added pairwise: an order that
// depends on the number of rows alone.
constexpr int64_t kGradientRows = 64, kMostBlocks = 512;

int64_t padded(int64_t width) { return (width + kMaxLanes - 1) / kMaxLanes * kMaxLanes; }

// A weight or bias (1, M) as floats, padded to whole vectors; null where it is absent.
class Parameter {
 public:
  Parameter(const uwaga_tensor& t, int64_t width) {
    if (!t.data) return;
    floats_.resize(padded(width), 0.0f);
    for (int64_t w = 0; w < width; ++w) {
      floats_[w] = t.dtype == UWAGA_FLOAT32    ? static_cast<const float*>(t.data)[w]
                   : t.dtype == UWAGA_BFLOAT16 ? widen(static_cast<const bfloat16*>(t.data)[w])
                                               : widen(static_cast<const float16*>(t.data)[w]);
    }
  }
  const float* data() const { return floats_.empty() ? nullptr : floats_.data(); }

 private:
  std::vector<float> floats_;
};

class Dropout {
 public:
  Dropout(float probability, uint64_t seed)
      : seed_(splitmix(seed)), threshold_(drop_threshold(probability)), factor_(1.0f / (1.0f - probability)) {}
  RowDropout row(int64_t n) const {
    if (factor_ == 1.0f) return {0, 0, 1.0f};
    return {static_cast<uint32_t>(splitmix(seed_ + static_cast<uint64_t>(n))), threshold_, factor_};
  }

 private:
  uint64_t seed_;
  uint32_t threshold_;
  float factor_;
};

}  // namespace

void norm_forward(const uwaga_norm_args& args, const uwaga_norm_result& result) {
  const Kernels& kernels = *active_level();
  const Parameter weight(args.weight, args.width), bias(args.bias, args.width);
  const Dropout dropout(args.dropout, args.seed);
  for_row_ranges(args.threads, args.rows, rows_per_task(args.width), [&](int64_t first, int64_t last) {
    thread_local Scratch scratch;
    NormRow row{};
    row.weight = weight.data(), row.bias = bias.data();
    row.floats = scratch.reserve(padded(args.width));
    row.dtype = args.dtype, row.rms = args.kind == UWAGA_RMS_NORM, row.width = args.width, row.epsilon = args.epsilon;
    for (int64_t n = first; n < last; ++n) {
      row.x = row_of(args.x, n), row.added = row_of(args.added, n), row.dropout = dropout.row(n);
      row.sum = row_of(result.sum, n), row.output = row_of(result.output, n);
      kernels.norm_row(row);
    }
  });
}

void norm_backward(const uwaga_norm_args& args, const uwaga_norm_backward_args& backward) {
  const Kernels& kernels = *active_level();
  const Parameter weight(args.weight, args.width);
  const Dropout dropout(args.dropout, args.seed);
  const int64_t width = padded(args.width);
  const int64_t per_block = std::max(kGradientRows, (args.rows + kMostBlocks - 1) / kMostBlocks);
  const int64_t blocks = (args.rows + per_block - 1) / per_block;
  const bool sums_weight = backward.grad_weight.data, sums_bias = backward.grad_bias.data;
  const int64_t parts = sums_weight + sums_bias;
  thread_local Scratch scratch;
  float* const partial = scratch.reserve(std::max<int64_t>(blocks * parts * width, 1));
  for_row_ranges(args.threads, args.rows, per_block, [&](int64_t first, int64_t last) {
    float* own = partial + first / per_block * parts * width;
    std::fill(own, own + parts * width, 0.0f);
    NormGradientRow row{};
    row.weight = weight.data();
    row.grad_weight = sums_weight ? own : nullptr;
    row.grad_bias = sums_bias ? own + sums_weight * width : nullptr;
    row.dtype = args.dtype, row.rms = args.kind == UWAGA_RMS_NORM, row.width = args.width, row.epsilon = args.epsilon;
    for (int64_t n = first; n < last; ++n) {
      row.grad = row_of(backward.grad_output, n), row.grad_sum = row_of(backward.grad_sum, n);
      row.x = row_of(args.x, n), row.dropout = dropout.row(n);
      row.grad_x = row_of(backward.grad_x, n), row.grad_added = row_of(backward.grad_added, n);
      kernels.norm_gradient_row(row);
    }
  });
  if (!parts) return;
  for (int64_t step = 1; step < blocks; step *= 2) {
    for (int64_t n = 0; n + step < blocks; n += 2 * step) {
      kernels.add_to(partial + n * parts * width, partial + (n + step) * parts * width, parts * width);
    }
  }
  const auto give = [&](float* to, const float* from) {
    for (int64_t w = 0; to && w < args.width; ++w) to[w] = blocks ? from[w] : 0.0f;
  };
  give(backward.grad_weight.data, partial);
  give(backward.grad_bias.data, partial + sums_weight * width);
}

void embed(const uwaga_embed_args& args) {
  const Kernels& kernels = *active_level();
  const Parameter weight(args.weight, args.width), bias(args.bias, args.width);
  std::atomic<bool> out_of_range{false};
  // An index is read once: another thread that writes to it later changes nothing.
  const auto entry = [&](const uwaga_lookup& lookup, int64_t n) -> const char* {
    if (!lookup.table.data) return nullptr;
    const int64_t index = lookup.indices.data ? __atomic_load_n(lookup.indices.data + n, __ATOMIC_RELAXED) : 0;
    if (index >= 0 && index < lookup.table_rows) return row_of(lookup.table, index);
    out_of_range.store(true, std::memory_order_relaxed);
    return row_of(lookup.table, 0);
  };
  for_row_ranges(args.threads, args.rows, rows_per_task(args.width), [&](int64_t first, int64_t last) {
    thread_local Scratch scratch;
    NormRow row{};
    row.weight = weight.data(), row.bias = bias.data();
    row.floats = scratch.reserve(padded(args.width));
    row.dtype = args.output.dtype, row.width = args.width, row.epsilon = args.epsilon;
    row.dropout = {0, 0, 1.0f};
    for (int64_t n = first; n < last; ++n) {
      row.x = entry(args.tokens, n), row.more = entry(args.types, n), row.added = entry(args.positions, n);
      row.output = row_of(args.output, n);
      kernels.norm_row(row);
    }
  });
  if (out_of_range.load()) invalid_argument("an index is not a row of its table");
}

}  // namespace uwaga
