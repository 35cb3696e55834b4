#include "drivers/backward_unit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/scratch.h"

namespace uwaga {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
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

}  // namespace

// One packed block of keys and its gradients, and the weights of one row block.
struct KeyBlockScratch {
  float *key_columns, *key_rows, *value_columns, *grad_key, *grad_value;
  float *weights, *grad_scores, *grad_bias, *bias;

  static int64_t lay_out(const uwaga_problem& p, int rows, float* base, KeyBlockScratch* w) {
    ScratchLayout layout(base);
    w->key_columns = layout.take(packed_keys(p.query_width));
    w->key_rows = layout.take(kBlockKeys * rounded_up(p.query_width, kMaxStrip));
    w->value_columns = layout.take(kBlockKeys * p.value_width);
    w->grad_key = layout.take(kBlockKeys * padded_width(p.query_width));
    w->grad_value = layout.take(kBlockKeys * padded_width(p.value_width));
    w->weights = layout.take(kBlockRows * kBlockKeys);
    w->grad_scores = layout.take(kBlockRows * kBlockKeys);
    w->grad_bias = layout.take(rows * kBlockKeys);
    w->bias = layout.take(rows * kBlockKeys);
    return layout.used();
  }
};

UnitPass::UnitPass(const uwaga_problem& p, const uwaga_backward_args& args, const Mask& mask, const Kernels& kernels,
                   Unit unit)
    : p_(p),
      args_(args),
      mask_(mask),
      kernels_(kernels),
      scoring_(scoring_of(p, kernels)),
      unit_(unit),
      s_(sequence_of(p, unit.sequence)),
      rows_(s_.queries * (p.query_heads / p.key_heads)),
      query_width_(static_cast<int>(p.query_width)),
      value_width_(static_cast<int>(p.value_width)) {}

int64_t UnitPass::packed_size() {
  PackedRows sizes;
  return PackedRows::lay_out(p_, rows_, scoring_.rows, nullptr, &sizes);
}

void UnitPass::set_memory(float* packed) { PackedRows::lay_out(p_, rows_, scoring_.rows, packed, &packed_); }

void UnitPass::pack(int64_t n) {
  const int64_t first = n * kBlockRows;
  const int count = static_cast<int>(std::min<int64_t>(kBlockRows, rows_ - first));
  const int size = scoring_.rows;
  for (int t = 0; t * size < count; ++t) {
    const TileRows tile(p_, s_, unit_.key_head, first + t * size, first + count, size);
    const void *queries[kMaxTileRows], *grads[kMaxTileRows];
    for (int r = 0; r < tile.count; ++r) {
      queries[r] = query_address(p_, p_.query, s_, tile.rows[r].head, tile.rows[r].query);
      grads[r] = query_address(p_, args_.grad_output, s_, tile.rows[r].head, tile.rows[r].query);
      set_lse_and_delta(first + t * size + r, tile.rows[r], grads[r]);
    }
    pack_rows_of_tile(n, t, tile.count, queries, grads);
    const int64_t at = n * (kBlockRows / size) + t;
    scoring_.pack_queries(packed_.query_tiles + at * packed_.query_tile, queries, tile.count, query_width_,
                          p_.query.column, p_.query.dtype, scoring_.query_factor);
    scoring_.pack_gradients(packed_.grad_tiles + at * packed_.grad_tile, grads, tile.count, value_width_,
                            args_.grad_output.column, args_.grad_output.dtype, 1.0f);
  }
}

void UnitPass::run_segment(int64_t n, float* grad_query, float* grad_relative) const {
  thread_local Scratch scratch;
  KeyBlockScratch w;
  const TileRegisters registers(kernels_);
  KeyBlockScratch::lay_out(p_, scoring_.rows, scratch.reserve(KeyBlockScratch::lay_out(p_, scoring_.rows, nullptr, &w)),
                           &w);
  std::fill(grad_query, grad_query + grad_query_size(), 0.0f);
  const int64_t last = std::min(s_.keys, (n + 1) * kSegmentKeys);
  for (int64_t j0 = n * kSegmentKeys; j0 < last; j0 += kBlockKeys) {
    run_block(w, j0, static_cast<int>(std::min<int64_t>(kBlockKeys, last - j0)), grad_query, grad_relative);
  }
}

void UnitPass::write_grad_query(const float* grad_query, int64_t first, int64_t last) const {
  for (int64_t r = first; r < last; ++r) {
    const GroupedRow at = grouped_row(p_, unit_.key_head, r);
    kernels_.write_row(query_address(p_, args_.grad_query, s_, at.head, at.query), args_.grad_query.column,
                       args_.grad_query.dtype, grad_query + r * padded_width(query_width_), p_.scale, query_width_);
  }
}

void UnitPass::add_grad_sinks(float* grad_sinks) const {
  const int64_t group = p_.query_heads / p_.key_heads;
  for (int64_t own = 0; own < group; ++own) {
    const float sink = p_.sinks.data[unit_.key_head * group + own];
    double sum = 0.0;
    for (int64_t r = own; r < rows_; r += group) {
      if (packed_.lse[r] != kMinusInfinity) sum -= std::exp(sink - packed_.lse[r]) * packed_.delta[r];
    }
    grad_sinks[own] += static_cast<float>(sum);
  }
}

void UnitPass::set_lse_and_delta(int64_t r, GroupedRow at, const void* grad) {
  float lse = 0.0f, delta = 0.0f;
  if (p_.normalize) {
    lse = *reinterpret_cast<const float*>(query_address(p_, args_.lse, s_, at.head, at.query));
    delta = kernels_.dot_rows(grad, args_.grad_output.column, args_.grad_output.dtype,
                              query_address(p_, args_.output, s_, at.head, at.query), args_.output.column,
                              args_.output.dtype, value_width_);
    if (args_.grad_lse.data) {
      delta -= *reinterpret_cast<const float*>(query_address(p_, args_.grad_lse, s_, at.head, at.query));
    }
  }
  packed_.lse[r] = lse;
  packed_.delta[r] = delta;
}

void UnitPass::pack_rows_of_tile(int64_t block, int tile, int count, const void* const* queries,
                                 const void* const* grads) {
  const int64_t place = int64_t{tile} * scoring_.rows * kernels_.strip;
  float* query_rows = packed_.query_rows + block * packed_.query_block + place;
  float* grad_rows = packed_.grad_rows + block * packed_.grad_block + place;
  // Rows of one head have one stride; the rows of several heads of a group alternate and are packed one by one.
  const bool even = p_.query_heads == p_.key_heads;
  const int at_once = even ? count : 1;
  for (int r = 0; r < count; r += at_once) {
    kernels_.pack_rows(query_rows + r * kernels_.strip, {queries[r], p_.query.row, p_.query.column, p_.query.dtype},
                       at_once, kBlockRows, query_width_);
    kernels_.pack_rows(grad_rows + r * kernels_.strip,
                       {grads[r], args_.grad_output.row, args_.grad_output.column, args_.grad_output.dtype}, at_once,
                       kBlockRows, value_width_);
  }
}

bool UnitPass::rows_are_finite(int64_t n) const {
  const int count = static_cast<int>(std::min<int64_t>(kBlockRows, rows_ - n * kBlockRows));
  return packed_rows_are_finite(kernels_, packed_.query_rows + n * packed_.query_block, count, kBlockRows,
                                query_width_) &&
         packed_rows_are_finite(kernels_, packed_.grad_rows + n * packed_.grad_block, count, kBlockRows, value_width_);
}

void UnitPass::run_block(const KeyBlockScratch& w, int64_t j0, int count, float* grad_query,
                         float* grad_relative) const {
  const Rows keys{key_address(p_, p_.key, s_, unit_.key_head, j0), p_.key.row, p_.key.column, p_.key.dtype};
  const Rows values{key_address(p_, p_.value, s_, unit_.key_head, j0), p_.value.row, p_.value.column, p_.value.dtype};
  scoring_.pack_keys(w.key_columns, keys, count, query_width_);
  kernels_.pack_rows(w.key_rows, keys, count, kBlockKeys, query_width_);
  kernels_.pack_columns(w.value_columns, values, count, value_width_);
  std::fill(w.grad_key, w.grad_key + kBlockKeys * padded_width(query_width_), 0.0f);
  std::fill(w.grad_value, w.grad_value + kBlockKeys * padded_width(value_width_), 0.0f);
  int keys_are_finite = -1;  // not computed yet
  for (int64_t n = 0; n < packed_.blocks; ++n)
    run_row_block(w, n, j0, count, &keys_are_finite, grad_query, grad_relative);
  write_keys(w, j0, count);
}

void UnitPass::run_row_block(const KeyBlockScratch& w, int64_t n, int64_t j0, int count, int* keys_are_finite,
                             float* grad_query, float* grad_relative) const {
  const int64_t first_row = n * kBlockRows, last_row = std::min(rows_, first_row + kBlockRows);
  const int64_t i0 = grouped_row(p_, unit_.key_head, first_row).query;
  const int64_t i1 = grouped_row(p_, unit_.key_head, last_row - 1).query + 1;
  const Visibility seen = mask_.block(s_, i0, i1, j0, j0 + count);
  if (seen == Visibility::kEmpty) return;
  const Block block{w.key_columns, w.value_columns, 0, 0, static_cast<int>(j0), count};  // both packed as columns
  uint64_t bits[kBlockRows] = {};
  int first_visible = kBlockRows, last_visible = 0;  // rows of the tiles with visible pairs
  bool hides = false;
  int rows_finite = -1;  // not computed yet
  // Whether everything that a masked pair multiplies by zero is finite; computed only where a tile has masked pairs.
  const auto finite = [&] {
    if (*keys_are_finite < 0)
      *keys_are_finite = packed_rows_are_finite(kernels_, w.key_rows, count, kBlockKeys, query_width_);
    if (rows_finite < 0) rows_finite = rows_are_finite(n);
    return *keys_are_finite && rows_finite;
  };
  for (int64_t r0 = first_row; r0 < last_row; r0 += scoring_.rows) {
    const TileRows rows(p_, s_, unit_.key_head, r0, last_row, scoring_.rows);
    TileVisibility view;
    evaluate_tile_mask(p_, mask_, s_, rows, seen, j0, count, w.bias, &view);
    const int at = static_cast<int>(r0 - first_row);
    float* weights = w.weights + at * kBlockKeys;
    float* grad_scores = w.grad_scores + at * kBlockKeys;
    if (view.empty) {
      std::fill(weights, weights + rows.count * kBlockKeys, 0.0f);
      std::fill(grad_scores, grad_scores + rows.count * kBlockKeys, 0.0f);
      hides = true;
      continue;
    }
    std::copy(view.bits, view.bits + rows.count, bits + at);
    hides |= view.hides;
    first_visible = std::min(first_visible, at);
    last_visible = at + rows.count;
    const int64_t tile_index = r0 / scoring_.rows;
    const bool wants_bias = grad_relative || args_.grad_bias.data;
    scoring_.backward_tile(
        {packed_.query_tiles + tile_index * packed_.query_tile, packed_.grad_tiles + tile_index * packed_.grad_tile,
         scoring_.rule.biased ? w.bias : nullptr, packed_.lse + r0, packed_.delta + r0, rows.row_keys, weights,
         grad_scores, wants_bias ? w.grad_bias : nullptr, rows.count, query_width_, value_width_, view.mask},
        block, scoring_.rule);
    if (grad_relative) add_grad_relative(rows, j0, count, w.grad_bias, grad_relative);
    if (args_.grad_bias.data) write_grad_bias(rows, j0, count, w.grad_bias);
    if (!args_.grad_query.data) continue;
    if (!view.hides || finite()) {
      kernels_.product_rows({grad_scores, w.key_rows, grad_query + r0 * padded_width(query_width_),
                             padded_width(query_width_), rows.count, view.mask.first, view.mask.last, kBlockKeys,
                             query_width_, nullptr});
    } else {
      guarded_grad_query(w, grad_scores, view.bits, rows.count, count, grad_query + r0 * padded_width(query_width_));
    }
  }
  const bool wants_key = args_.grad_key.data, wants_value = args_.grad_value.data;
  if (first_visible >= last_visible || !(wants_key || wants_value)) return;
  const float* query_rows = packed_.query_rows + n * packed_.query_block;
  const float* grad_rows = packed_.grad_rows + n * packed_.grad_block;
  if (hides && !finite()) {
    if (wants_value)
      guarded_grad_keys(w.weights, bits, first_visible, last_visible, count, grad_rows, value_width_, w.grad_value);
    if (wants_key)
      guarded_grad_keys(w.grad_scores, bits, first_visible, last_visible, count, query_rows, query_width_, w.grad_key);
    return;
  }
  DepthRange visible_rows[kKeyTiles];
  if (hides) find_visible_rows(bits, first_visible, last_visible, visible_rows);
  const DepthRange* by_tile = hides ? visible_rows : nullptr;
  if (wants_value)
    kernels_.product_columns({w.weights, grad_rows, w.grad_value, padded_width(value_width_), count, first_visible,
                              last_visible, kBlockRows, value_width_, by_tile});
  if (wants_key)
    kernels_.product_columns({w.grad_scores, query_rows, w.grad_key, padded_width(query_width_), count, first_visible,
                              last_visible, kBlockRows, query_width_, by_tile});
}

void UnitPass::guarded_grad_query(const KeyBlockScratch& w, const float* grad_scores, const uint64_t* bits, int rows,
                                  int count, float* grad_query) const {
  std::vector<float> sum(padded_width(query_width_));
  for (int r = 0; r < rows; ++r) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int n = 0; n < count; ++n) {
      if (!(bits[r] >> n & 1)) continue;
      kernels_.add_scaled_row(sum.data(), grad_scores[r * kBlockKeys + n], w.key_rows + n * kernels_.strip, kBlockKeys,
                              query_width_);
    }
    kernels_.add_to(grad_query + r * padded_width(query_width_), sum.data(), padded_width(query_width_));
  }
}

void UnitPass::guarded_grad_keys(const float* weights, const uint64_t* bits, int first, int last, int count,
                                 const float* rows, int width, float* out) const {
  std::vector<float> sum(padded_width(width));
  for (int n = 0; n < count; ++n) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int r = first; r < last; ++r) {
      if (!(bits[r] >> n & 1)) continue;
      kernels_.add_scaled_row(sum.data(), weights[r * kBlockKeys + n], rows + r * kernels_.strip, kBlockRows, width);
    }
    kernels_.add_to(out + n * padded_width(width), sum.data(), padded_width(width));
  }
}

void UnitPass::add_grad_relative(const TileRows& rows, int64_t j0, int count, const float* grad,
                                 float* grad_relative) const {
  const int64_t start = start_of(p_.relative_start, s_), first_head = grouped_row(p_, unit_.key_head, 0).head;
  for (int r = 0; r < rows.count; ++r) {
    const GroupedRow at = rows.rows[r];
    float* to = grad_relative + (at.head - first_head) * p_.relative_head + (j0 - at.query - start) + p_.relative_zero;
    for (int n = 0; n < count; ++n) to[n] += grad[r * kBlockKeys + n];
  }
}

void UnitPass::write_grad_bias(const TileRows& rows, int64_t j0, int count, const float* grad) const {
  const int64_t column = args_.grad_bias.column;
  for (int r = 0; r < rows.count; ++r) {
    char* row = row_address(args_.grad_bias, s_.index, rows.rows[r].head, rows.rows[r].query);
    float* to = reinterpret_cast<float*>(row) + j0 * column;
    for (int n = 0; n < count; ++n) to[n * column] = grad[r * kBlockKeys + n];
  }
}

void UnitPass::write_keys(const KeyBlockScratch& w, int64_t j0, int count) const {
  const float inverse_keep = 1.0f / scoring_.rule.keep;
  for (int n = 0; n < count; ++n) {
    if (args_.grad_key.data) {
      kernels_.write_row(key_address(p_, args_.grad_key, s_, unit_.key_head, j0 + n), args_.grad_key.column,
                         args_.grad_key.dtype, w.grad_key + n * padded_width(query_width_), p_.scale, query_width_);
    }
    if (args_.grad_value.data) {
      kernels_.write_row(key_address(p_, args_.grad_value, s_, unit_.key_head, j0 + n), args_.grad_value.column,
                         args_.grad_value.dtype, w.grad_value + n * padded_width(value_width_), inverse_keep,
                         value_width_);
    }
  }
}

}  // namespace uwaga
