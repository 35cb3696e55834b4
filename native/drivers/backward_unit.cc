#include "drivers/backward_unit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/scratch.h"

namespace uwaga {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// The rows in the size of uwaga_backward_sums::grad_query are a multiple of it: whole tiles at every level.
constexpr int64_t kRowStep = 48;
static_assert(kRowStep % kTileRows == 0 && kRowStep % kMaxTileRows == 0, "whole tiles");
static_assert(UWAGA_PART_KEYS % kSegmentKeys == 0 && UWAGA_PART_QUERIES % kMaxBlockRows == 0, "parts of whole sums");

}  // namespace

// One packed block of keys and what its products need, and the biases of a tile.
struct KeyBlockScratch {
  float *key_columns, *value_columns, *products, *grad_bias, *bias;

  static int64_t lay_out(const uwaga_problem& p, int rows, const GradientProducts& products, float* base,
                         KeyBlockScratch* w) {
    ScratchLayout layout(base);
    w->key_columns = layout.take(packed_keys(p.query_width));
    w->value_columns = layout.take(packed_keys(p.value_width));
    w->products = layout.take(products.memory_size());
    w->grad_bias = layout.take(rows * kBlockKeys);
    w->bias = layout.take(rows * kBlockKeys);
    return layout.used();
  }
};

UnitPass::UnitPass(const uwaga_problem& p, const uwaga_backward_args& args, const uwaga_backward_sums& sums,
                   const Mask& mask, const Kernels& kernels, Unit unit)
    : p_(p),
      args_(args),
      sums_(sums),
      mask_(mask),
      kernels_(kernels),
      scoring_(backward_scoring_of(p, args.grad_output.dtype, kernels)),
      products_(gradient_products(p, args, kernels, scoring_)),
      block_rows_(products_->block_rows()),
      unit_(unit),
      s_(sequence_of(p, unit.sequence)),
      rows_(s_.queries * (p.query_heads / p.key_heads)),
      query_width_(static_cast<int>(p.query_width)),
      value_width_(static_cast<int>(p.value_width)) {}

int64_t UnitPass::packed_size() {
  PackedRows sizes;
  return PackedRows::lay_out(p_, rows_, scoring_.rows, *products_, nullptr, &sizes);
}

float* UnitPass::grad_query_sums() const {
  const int64_t size = rounded_up(rows_, kRowStep) * padded_width(query_width_);
  return sums_.grad_query.data ? sums_.grad_query.data + (unit_.sequence * p_.key_heads + unit_.key_head) * size
                               : nullptr;
}

float* UnitPass::key_sums(const uwaga_floats& sums, int64_t j0, int width) const {
  const int64_t keys = rounded_up(p_.keys, kBlockKeys), unit = unit_.sequence * p_.key_heads + unit_.key_head;
  return sums.data ? sums.data + (unit * keys + j0) * padded_width(width) : nullptr;
}

void UnitPass::set_memory(float* packed) {
  PackedRows::lay_out(p_, rows_, scoring_.rows, *products_, packed, &packed_);
}

void UnitPass::pack(int64_t n) {
  const int64_t first = n * block_rows_;
  const int count = static_cast<int>(std::min<int64_t>(block_rows_, rows_ - first));
  const int size = scoring_.rows;
  const void *queries[kMaxBlockRows], *grads[kMaxBlockRows];
  for (int t = 0; t * size < count; ++t) {
    const TileRows tile(p_, s_, unit_.key_head, first + t * size, first + count, size);
    const void **tile_queries = queries + t * size, **tile_grads = grads + t * size;
    for (int r = 0; r < tile.count; ++r) {
      tile_queries[r] = query_address(p_, p_.query, s_, tile.rows[r].head, tile.rows[r].query);
      tile_grads[r] = query_address(p_, args_.grad_output, s_, tile.rows[r].head, tile.rows[r].query);
      set_lse_and_delta(first + t * size + r, tile.rows[r], tile_grads[r]);
    }
    const int64_t at = n * (block_rows_ / size) + t;
    scoring_.pack_queries(packed_.query_tiles + at * packed_.query_tile, tile_queries, tile.count, query_width_,
                          p_.query.column, p_.query.dtype, scoring_.query_factor);
    scoring_.pack_gradients(packed_.grad_tiles + at * packed_.grad_tile, tile_grads, tile.count, value_width_,
                            args_.grad_output.column, args_.grad_output.dtype, 1.0f);
  }
  products_->pack_rows(packed_.blocks + n * packed_.block, queries, grads, count);
}

void UnitPass::run_segment(int64_t n, float* grad_query, float* grad_relative) const {
  thread_local Scratch scratch;
  KeyBlockScratch w;
  const TileRegisters registers(kernels_);
  const int64_t size = KeyBlockScratch::lay_out(p_, scoring_.rows, *products_, nullptr, &w);
  KeyBlockScratch::lay_out(p_, scoring_.rows, *products_, scratch.reserve(size), &w);
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

void UnitPass::run_block(const KeyBlockScratch& w, int64_t j0, int count, float* grad_query,
                         float* grad_relative) const {
  const Rows keys{key_address(p_, p_.key, s_, unit_.key_head, j0), p_.key.row, p_.key.column, p_.key.dtype};
  const Rows values{key_address(p_, p_.value, s_, unit_.key_head, j0), p_.value.row, p_.value.column, p_.value.dtype};
  scoring_.pack_keys(w.key_columns, keys, count, query_width_);
  scoring_.pack_values(w.value_columns, values, count, value_width_);
  products_->pack_keys(w.products, keys, count);
  float* const grad_key = key_sums(sums_.grad_key, j0, query_width_);
  float* const grad_value = key_sums(sums_.grad_value, j0, value_width_);
  const auto copy = [](const float* from, float* to, int width) {
    std::copy(from, from + kBlockKeys * padded_width(width), to);
  };
  if (grad_key && sums_.continues_keys) copy(grad_key, products_->grad_key_sums(w.products), query_width_);
  if (grad_value && sums_.continues_keys) copy(grad_value, products_->grad_value_sums(w.products), value_width_);
  int keys_are_finite = -1;  // not computed yet
  for (int64_t n = 0; n < packed_.count; ++n)
    run_row_block(w, n, j0, count, &keys_are_finite, grad_query, grad_relative);
  if (grad_key) copy(products_->grad_key_sums(w.products), grad_key, query_width_);
  if (grad_value) copy(products_->grad_value_sums(w.products), grad_value, value_width_);
  write_keys(w, j0, count);
}

void UnitPass::run_row_block(const KeyBlockScratch& w, int64_t n, int64_t j0, int count, int* keys_are_finite,
                             float* grad_query, float* grad_relative) const {
  const int64_t first_row = n * block_rows_, last_row = std::min(rows_, first_row + block_rows_);
  const int64_t i0 = grouped_row(p_, unit_.key_head, first_row).query;
  const int64_t i1 = grouped_row(p_, unit_.key_head, last_row - 1).query + 1;
  const Visibility seen = mask_.block(s_, i0, i1, j0, j0 + count);
  if (seen == Visibility::kEmpty) return;
  const Block block{w.key_columns, w.value_columns, 0, 0, static_cast<int>(j0), count};  // both packed as columns
  const float* packed = packed_.blocks + n * packed_.block;
  const int row_count = static_cast<int>(last_row - first_row);
  uint64_t bits[kMaxBlockRows] = {};
  int first_visible = kMaxBlockRows, last_visible = 0;  // rows of the tiles with visible pairs
  bool hides = false;
  int rows_finite = -1;  // not computed yet
  // Whether everything that a masked pair multiplies by zero is finite; computed only where a tile has masked pairs.
  const auto finite = [&] {
    if (*keys_are_finite < 0) *keys_are_finite = products_->keys_are_finite(w.products, count);
    if (rows_finite < 0) rows_finite = products_->rows_are_finite(packed, row_count);
    return *keys_are_finite && rows_finite;
  };
  for (int64_t r0 = first_row; r0 < last_row; r0 += scoring_.rows) {
    const TileRows rows(p_, s_, unit_.key_head, r0, last_row, scoring_.rows);
    TileVisibility view;
    evaluate_tile_mask(p_, mask_, s_, rows, seen, j0, count, w.bias, &view);
    const int at = static_cast<int>(r0 - first_row);
    if (view.empty) {
      products_->clear_tile(w.products, at, rows.count);
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
         scoring_.rule.biased ? w.bias : nullptr, packed_.lse + r0, packed_.delta + r0, rows.row_keys,
         products_->weights(w.products, at), products_->grad_scores(w.products, at), wants_bias ? w.grad_bias : nullptr,
         rows.count, query_width_, value_width_, view.mask},
        block, scoring_.rule);
    if (grad_relative) add_grad_relative(rows, j0, count, w.grad_bias, grad_relative);
    if (args_.grad_bias.data) write_grad_bias(rows, j0, count, w.grad_bias);
    const bool wants_query = args_.grad_query.data || sums_.grad_query.data;
    float* tile_gradient = wants_query ? grad_query + r0 * padded_width(query_width_) : nullptr;
    const bool guard = tile_gradient && view.hides && !finite();
    products_->add_tile(w.products, {at, rows.count, view.bits, view.mask, guard, tile_gradient});
  }
  const bool wants_key = args_.grad_key.data || sums_.grad_key.data;
  const bool wants_value = args_.grad_value.data || sums_.grad_value.data;
  if (first_visible >= last_visible || !(wants_key || wants_value)) return;
  products_->add_block(w.products, {packed, bits, first_visible, last_visible, row_count, count, hides,
                                    hides && !finite(), wants_key, wants_value});
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
  const auto write = [&](const uwaga_tensor& to, const float* rows, float factor, int width) {
    for (int n = 0; n < count; ++n) {
      kernels_.write_row(key_address(p_, to, s_, unit_.key_head, j0 + n), to.column, to.dtype,
                         rows + n * padded_width(width), factor, width);
    }
  };
  if (args_.grad_key.data) write(args_.grad_key, products_->grad_key(w.products), p_.scale, query_width_);
  if (args_.grad_value.data)
    write(args_.grad_value, products_->grad_value(w.products), 1.0f / scoring_.rule.keep, value_width_);
}

}  // namespace uwaga
