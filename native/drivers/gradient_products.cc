#include "drivers/gradient_products.h"

#include <algorithm>
#include <vector>

#include "base/scratch.h"

namespace uwaga {
namespace {

constexpr int kKeyTiles = (kBlockKeys + kTileRows - 1) / kTileRows;

// For each six keys of a block, the range of rows that see any of them: outside it all weights are zero.
void find_visible_rows(const uint64_t* bits, int first, int last, DepthRange* found) {
  for (int t = 0; t < kKeyTiles; ++t) {
    const uint64_t keys = ((uint64_t{1} << kTileRows) - 1) << (t * kTileRows);
    DepthRange& rows = found[t] = {first, last};
    while (rows.first < rows.last && !(bits[rows.first] & keys)) ++rows.first;
    while (rows.first < rows.last && !(bits[rows.last - 1] & keys)) --rows.last;
  }
}

class FloatGradientProducts final : public GradientProducts {
 public:
  FloatGradientProducts(const uwaga_problem& p, const uwaga_backward_args& args, const Kernels& kernels)
      : p_(p),
        args_(args),
        kernels_(kernels),
        query_width_(static_cast<int>(p.query_width)),
        value_width_(static_cast<int>(p.value_width)),
        at_(query_width_, value_width_) {}

  int block_rows() const override { return kBlockRows; }
  int64_t packed_size() const override { return query_rows_size() + kBlockRows * rounded_up(value_width_, kMaxStrip); }
  int64_t memory_size() const override { return at_.size; }

  void pack_rows(float* packed, const void* const* queries, const void* const* grads, int count) const override {
    // Rows of one head have one stride; the rows of several heads of a group alternate and are packed one by one.
    const int at_once = p_.query_heads == p_.key_heads ? count : 1;
    const uwaga_tensor& grad = args_.grad_output;
    for (int r = 0; r < count; r += at_once) {
      kernels_.pack_rows(packed + r * kernels_.strip, {queries[r], p_.query.row, p_.query.column, p_.query.dtype},
                         at_once, kBlockRows, query_width_);
      kernels_.pack_rows(packed + query_rows_size() + r * kernels_.strip, {grads[r], grad.row, grad.column, grad.dtype},
                         at_once, kBlockRows, value_width_);
    }
  }

  bool rows_are_finite(const float* packed, int count) const override {
    return packed_rows_are_finite(kernels_, packed, count, kBlockRows, query_width_) &&
           packed_rows_are_finite(kernels_, packed + query_rows_size(), count, kBlockRows, value_width_);
  }

  void pack_keys(float* memory, const Rows& keys, int count) const override {
    kernels_.pack_rows(memory + at_.keys, keys, count, kBlockKeys, query_width_);
    std::fill(memory + at_.grad_key, memory + at_.grad_key + kBlockKeys * padded_width(query_width_), 0.0f);
    std::fill(memory + at_.grad_value, memory + at_.grad_value + kBlockKeys * padded_width(value_width_), 0.0f);
  }

  bool keys_are_finite(const float* memory, int count) const override {
    return packed_rows_are_finite(kernels_, memory, count, kBlockKeys, query_width_);  // keys come first
  }

  float* weights(float* memory, int first) const override { return memory + at_.weights + first * kBlockKeys; }
  float* grad_scores(float* memory, int first) const override { return memory + at_.grad_scores + first * kBlockKeys; }

  void clear_tile(float* memory, int first, int count) const override {
    for (float* of_tile : {weights(memory, first), grad_scores(memory, first)})
      std::fill(of_tile, of_tile + count * kBlockKeys, 0.0f);
  }

  void add_tile(float* memory, const GradientTile& tile) const override {
    if (!tile.grad_query) return;
    const float* grad_scores = memory + at_.grad_scores + tile.first * kBlockKeys;
    if (tile.guard) return guarded_grad_query(memory + at_.keys, grad_scores, tile);
    kernels_.product_rows({grad_scores, memory + at_.keys, tile.grad_query, padded_width(query_width_), tile.count,
                           tile.mask.first, tile.mask.last, kBlockKeys, query_width_, nullptr});
  }

  void add_block(float* memory, const GradientBlock& block) const override {
    const float* grad_rows = block.packed + query_rows_size();
    if (block.guard) {
      if (block.grad_value)
        guarded_grad_keys(memory + at_.weights, block, grad_rows, value_width_, memory + at_.grad_value);
      if (block.grad_key)
        guarded_grad_keys(memory + at_.grad_scores, block, block.packed, query_width_, memory + at_.grad_key);
      return;
    }
    DepthRange visible_rows[kKeyTiles];
    if (block.hides) find_visible_rows(block.bits, block.first_visible, block.last_visible, visible_rows);
    const DepthRange* by_tile = block.hides ? visible_rows : nullptr;
    if (block.grad_value)
      kernels_.product_columns({memory + at_.weights, grad_rows, memory + at_.grad_value, padded_width(value_width_),
                                block.keys, block.first_visible, block.last_visible, kBlockRows, value_width_,
                                by_tile});
    if (block.grad_key)
      kernels_.product_columns({memory + at_.grad_scores, block.packed, memory + at_.grad_key,
                                padded_width(query_width_), block.keys, block.first_visible, block.last_visible,
                                kBlockRows, query_width_, by_tile});
  }

  float* grad_key_sums(float* memory) const override { return memory + at_.grad_key; }
  float* grad_value_sums(float* memory) const override { return memory + at_.grad_value; }
  const float* grad_key(float* memory) const override { return memory + at_.grad_key; }
  const float* grad_value(float* memory) const override { return memory + at_.grad_value; }

 private:
  static constexpr int kBlockRows = 48;  // their P and dS are 12 KB each
  static_assert(kBlockRows % kTileRows == 0 && kBlockRows % kMaxTileRows == 0, "row blocks of whole tiles");
  static_assert(UWAGA_PART_QUERIES % kBlockRows == 0, "parts of whole row blocks");

  // Where the parts of `memory` begin. Made once: it is asked for at every tile.
  struct Layout {
    int64_t keys, grad_key, grad_value, weights, grad_scores, size;
    Layout(int query_width, int value_width) {
      ScratchLayout layout(nullptr);
      keys = layout.offset_of(kBlockKeys * rounded_up(query_width, kMaxStrip));
      grad_key = layout.offset_of(kBlockKeys * padded_width(query_width));
      grad_value = layout.offset_of(kBlockKeys * padded_width(value_width));
      weights = layout.offset_of(kBlockRows * kBlockKeys);
      grad_scores = layout.offset_of(kBlockRows * kBlockKeys);
      size = layout.used();
    }
  };

  int64_t query_rows_size() const { return kBlockRows * rounded_up(query_width_, kMaxStrip); }

  // The products without masked pairs, in the same order: masked queries, keys and values may be NaN or infinite, and 0 times
  // that is NaN.
  void guarded_grad_query(const float* keys, const float* grad_scores, const GradientTile& tile) const {
    std::vector<float> sum(padded_width(query_width_));
    for (int r = 0; r < tile.count; ++r) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int n = 0; n < kBlockKeys; ++n) {
        if (!(tile.bits[r] >> n & 1)) continue;
        kernels_.add_scaled_row(sum.data(), grad_scores[r * kBlockKeys + n], keys + n * kernels_.strip, kBlockKeys,
                                query_width_);
      }
      kernels_.add_to(tile.grad_query + r * padded_width(query_width_), sum.data(), padded_width(query_width_));
    }
  }

  // dK or dV: out[n] += sum over rows of weights[r][n] * packed rows[r].
  void guarded_grad_keys(const float* weights, const GradientBlock& block, const float* rows, int width,
                         float* out) const {
    std::vector<float> sum(padded_width(width));
    for (int n = 0; n < block.keys; ++n) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int r = block.first_visible; r < block.last_visible; ++r) {
        if (!(block.bits[r] >> n & 1)) continue;
        kernels_.add_scaled_row(sum.data(), weights[r * kBlockKeys + n], rows + r * kernels_.strip, kBlockRows, width);
      }
      kernels_.add_to(out + n * padded_width(width), sum.data(), padded_width(width));
    }
  }

  const uwaga_problem& p_;
  const uwaga_backward_args& args_;
  const Kernels& kernels_;
  const int query_width_, value_width_;
  const Layout at_;
};

// On pairs of bfloat16: gradients of keys and values are summed transposed, see amx_gradients-inl.h.
class PairGradientProducts final : public GradientProducts {
 public:
  PairGradientProducts(const uwaga_problem& p, const uwaga_backward_args& args, const Kernels& kernels,
                       const PairGradientKernels& pairs)
      : query_column_(p.query.column),
        grad_column_(args.grad_output.column),
        kernels_(kernels),
        pairs_(pairs),
        query_width_(static_cast<int>(p.query_width)),
        value_width_(static_cast<int>(p.value_width)),
        at_(query_width_, value_width_) {}

  int block_rows() const override { return kBlockRows; }
  int64_t packed_size() const override { return kGroups * (group_size(query_width_) + group_size(value_width_)); }
  int64_t memory_size() const override { return at_.size; }

  void pack_rows(float* packed, const void* const* queries, const void* const* grads, int count) const override {
    for (int g = 0; g < kGroups; ++g) {
      const int first = g * kGroupRows, rows = std::clamp(count - first, 0, kGroupRows);
      pairs_.pack_transposed(packed + g * group_size(query_width_), queries + first, rows, query_width_, query_column_);
      pairs_.pack_transposed(packed_grads(packed) + g * group_size(value_width_), grads + first, rows, value_width_,
                             grad_column_);
    }
  }

  bool rows_are_finite(const float* packed, int) const override {
    return kernels_.pairs->all_finite(packed, packed_size());
  }

  void pack_keys(float* memory, const Rows& keys, int count) const override {
    kernels_.pairs->pack_values(memory + at_.keys, keys, count, kBlockKeys, query_width_);
    std::fill(memory + at_.grad_key, memory + at_.grad_key + kBlockKeys * padded_width(query_width_), 0.0f);
    std::fill(memory + at_.grad_value, memory + at_.grad_value + kBlockKeys * padded_width(value_width_), 0.0f);
  }

  bool keys_are_finite(const float* memory, int count) const override {
    return packed_pairs_are_finite(kernels_, memory, count, kBlockKeys, query_width_);  // keys come first
  }

  float* weights(float* memory, int) const override { return memory + at_.weights; }
  float* grad_scores(float* memory, int) const override { return memory + at_.grad_scores; }

  void clear_tile(float* memory, int first, int) const override {
    for (float* columns : {memory + at_.weight_columns, memory + at_.grad_score_columns}) {
      for (const int64_t part : {int64_t{0}, kColumns}) {
        float* of_tile = columns + part + first / 2 * kBlockKeys;
        std::fill(of_tile, of_tile + kMaxTileRows / 2 * kBlockKeys, 0.0f);
      }
    }
  }

  void add_tile(float* memory, const GradientTile& tile) const override {
    const int64_t at = tile.first / 2 * kBlockKeys;
    pairs_.split_weights({memory + at_.weights, tile.count, nullptr, memory + at_.weight_columns + at, kColumns});
    pairs_.split_weights({memory + at_.grad_scores, tile.count, memory + at_.grad_score_rows,
                          memory + at_.grad_score_columns + at, kColumns});
    if (!tile.grad_query) return;
    pairs_.add_rows_gradient({memory + at_.grad_score_rows, memory + at_.keys, tile.grad_query,
                              padded_width(query_width_), tile.mask.first, tile.mask.last, tile.count, query_width_,
                              tile.guard ? tile.bits : nullptr});
  }

  void add_block(float* memory, const GradientBlock& block) const override {
    // The last rows may end before those of a tile of words do, where another row block's weights are left.
    for (int r = static_cast<int>(rounded_up(block.rows, kMaxTileRows)); r % kGroupRows; r += kMaxTileRows)
      clear_tile(memory, r, kMaxTileRows);
    DepthRange keys[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      uint64_t seen = 0;
      for (int r = g * kGroupRows; r < (g + 1) * kGroupRows; ++r) seen |= block.bits[r];
      keys[g] = {0, 0};
      if (seen) keys[g] = {__builtin_ctzll(seen), 64 - __builtin_clzll(seen)};
    }
    const uint64_t* seen = block.guard ? block.bits : nullptr;
    const auto add = [&](const float* rows, const float* columns, float* out, int width) {
      pairs_.add_columns_gradient(
          {rows, group_size(width), columns, columns + kColumns, out, keys, kGroups, width, block.keys, seen});
    };
    if (block.grad_value)
      add(packed_grads(block.packed), memory + at_.weight_columns, memory + at_.grad_value, value_width_);
    if (block.grad_key) add(block.packed, memory + at_.grad_score_columns, memory + at_.grad_key, query_width_);
  }

  float* grad_key_sums(float* memory) const override { return memory + at_.grad_key; }
  float* grad_value_sums(float* memory) const override { return memory + at_.grad_value; }
  const float* grad_key(float* memory) const override {
    return transposed(memory, memory + at_.grad_key, query_width_);
  }
  const float* grad_value(float* memory) const override {
    return transposed(memory, memory + at_.grad_value, value_width_);
  }

 private:
  static constexpr int kBlockRows = kMaxBlockRows;
  static constexpr int kGroupRows = ColumnsGradient::kRows, kGroups = kBlockRows / kGroupRows;
  static constexpr int64_t kColumns = kBlockRows / 2 * kBlockKeys;  // words of two rows

  // Where the parts of `memory` begin.
  struct Layout {
    int64_t keys, grad_key, grad_value, transposed;
    int64_t weights, grad_scores;                // of one tile
    int64_t grad_score_rows;                     // of one tile, split
    int64_t weight_columns, grad_score_columns;  // of a row block, split
    int64_t size;
    Layout(int query_width, int value_width) {
      ScratchLayout layout(nullptr);
      keys = layout.offset_of(kBlockKeys / 2 * rounded_up(query_width, kMaxStrip));
      grad_key = layout.offset_of(kBlockKeys * padded_width(query_width));
      grad_value = layout.offset_of(kBlockKeys * padded_width(value_width));
      transposed = layout.offset_of(kBlockKeys * padded_width(std::max(query_width, value_width)));
      weights = layout.offset_of(kMaxTileRows * kBlockKeys);
      grad_scores = layout.offset_of(kMaxTileRows * kBlockKeys);
      grad_score_rows = layout.offset_of(kMaxTileRows * kBlockKeys);
      weight_columns = layout.offset_of(2 * kColumns);
      grad_score_columns = layout.offset_of(2 * kColumns);
      size = layout.used();
    }
  };

  static int64_t group_size(int width) { return padded_width(width) * (kGroupRows / 2); }
  template <class Float>
  Float* packed_grads(Float* packed) const {
    return packed + kGroups * group_size(query_width_);
  }
  const float* transposed(float* memory, const float* sums, int width) const {
    pairs_.transpose_gradient(memory + at_.transposed, sums, width);
    return memory + at_.transposed;
  }

  const int64_t query_column_, grad_column_;
  const Kernels& kernels_;
  const PairGradientKernels& pairs_;
  const int query_width_, value_width_;
  const Layout at_;
};

}  // namespace

std::unique_ptr<const GradientProducts> gradient_products(const uwaga_problem& p, const uwaga_backward_args& args,
                                                          const Kernels& kernels, const Scoring& scoring) {
  if (scoring.gradients) return std::make_unique<PairGradientProducts>(p, args, kernels, *scoring.gradients);
  return std::make_unique<FloatGradientProducts>(p, args, kernels);
}

}  // namespace uwaga
