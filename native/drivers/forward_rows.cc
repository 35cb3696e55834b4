#include "drivers/forward_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/scratch.h"

namespace uwaga {
namespace {

constexpr int64_t kTilesWorthPacking = 4, kTilesWorthPackingKeys = 2;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

RowBlockPass::RowBlockPass(const uwaga_problem& p, const Mask& mask, const Kernels& kernels, const FarKeys& far_keys,
                           const RowBlock& block, const uwaga_row_statistics* wanted)
    : p_(p),
      mask_(mask),
      kernels_(kernels),
      registers_(kernels),
      far_keys_(far_keys),
      scoring_(scoring_of(p, kernels)),
      value_pairs_(scoring_.pairs && p.value_width > 0 && p.value.dtype == UWAGA_BFLOAT16),
      block_(block),
      s_(sequence_of(p, block.sequence)) {
  // The largest weights are returned in order, however small, so no key may be skipped.
  skip_below_ = wanted && wanted->top > 0 ? kMinusInfinity : far_keys.skip_below(s_, block);
  tiles_ = (rows() + scoring_.rows - 1) / scoring_.rows;
  rows_.reserve(tiles_);
  for (int64_t t = 0; t < tiles_; ++t) {
    rows_.emplace_back(p, s_, block.key_head, block.first + t * scoring_.rows, block.last, scoring_.rows);
  }
  in_place_ = reads_blocks_in_place();
  thread_local Scratch scratch;
  RowBlockScratch sizes;
  const int64_t size = RowBlockScratch::lay_out(p, tiles_, scoring_, nullptr, &sizes);
  if (wanted) accumulator_.emplace(p, *wanted, scoring_.rows);
  float* space = scratch.reserve(size + (wanted ? accumulator_->lay_out(tiles_, nullptr) : 0));
  RowBlockScratch::lay_out(p, tiles_, scoring_, space, &w_);
  if (wanted) {
    accumulator_->lay_out(tiles_, space + size);
    accumulator_->clear_top(tiles_);
    for (int64_t r = 0; r < rows(); ++r) accumulator_->set_position(r, s_, query_of(block.first + r));
  }
  pack_queries();
}

void RowBlockPass::run(int64_t j_first, int64_t j_last) {
  std::fill(w_.output, w_.output + tiles_ * w_.output_tile, 0.0f);
  std::fill(w_.maximum, w_.maximum + tiles_ * kMaxLanes, scoring_.rule.softmax ? kMinusInfinity : 0.0f);
  std::fill(w_.sum, w_.sum + tiles_ * scoring_.rows * kMaxLanes, 0.0f);
  if (accumulator_) accumulator_->clear_sums(tiles_);
  const int64_t i0 = query_of(block_.first), i1 = query_of(block_.last - 1) + 1;
  const KeyRange key_range = mask_.key_range(s_, i0, i1);
  const int64_t first = std::max(j_first, key_range.first / kBlockKeys * kBlockKeys);
  const int64_t last = std::min(j_last, key_range.last);
  for (int64_t j0 = first; j0 < last; j0 += kBlockKeys) {
    const int count = static_cast<int>(std::min<int64_t>(kBlockKeys, s_.keys - j0));
    if (skip_below_ > kMinusInfinity &&
        far_keys_.largest_bias(s_, block_.key_head, i0, i1, j0, j0 + count) < skip_below_)
      continue;
    const Visibility seen = mask_.block(s_, i0, i1, j0, j0 + count);
    if (seen != Visibility::kEmpty) visit(j0, count, seen, j0 + 2 * kBlockKeys <= last);
  }
}

void RowBlockPass::results(int64_t t, RowResult* of_rows) const {
  if (!scoring_.rule.softmax) {
    std::fill(of_rows, of_rows + rows_[t].count, RowResult{0.0f, 1.0f});
    return;
  }
  float sums[kMaxTileRows];
  kernels_.lane_sums(w_.sum + t * scoring_.rows * kMaxLanes, sums, rows_[t].count);
  for (int r = 0; r < rows_[t].count; ++r) {
    of_rows[r] = {w_.maximum[t * kMaxLanes + r], sums[r]};
  }
}

void RowBlockPass::copy_to(const PartialRows& part) const {
  std::copy(w_.output, w_.output + rows() * padded_width(p_.value_width), part.output);
  for (int64_t t = 0; t < tiles_; ++t) results(t, part.results + t * scoring_.rows);
  for (int64_t r = 0; accumulator_ && r < rows(); ++r) part.statistics[r].moments = moments(r);
}

void RowBlockPass::pack_queries() {
  for (int64_t t = 0; t < tiles_; ++t) {
    const TileRows& tile = rows_[t];
    const void* addresses[kMaxTileRows];
    for (int r = 0; r < tile.count; ++r) {
      addresses[r] = query_address(p_, p_.query, s_, tile.rows[r].head, tile.rows[r].query);
    }
    scoring_.pack_queries(w_.query + t * w_.query_tile, addresses, tile.count, static_cast<int>(p_.query_width),
                          p_.query.column, p_.query.dtype, scoring_.query_factor);
  }
}

bool RowBlockPass::reads_values_in_place() const {
  return !value_pairs_ && tiles_ <= kTilesWorthPacking && p_.value.dtype == UWAGA_FLOAT32 && p_.value.column == 1 &&
         p_.value_width % kMaxLanes == 0;
}

bool RowBlockPass::reads_blocks_in_place() const {
  const auto whole_vectors = [](const uwaga_tensor& t, int64_t width) {
    return t.column == 1 && width % (t.dtype == UWAGA_BFLOAT16 ? 2 * kMaxLanes : kMaxLanes) == 0;
  };
  return scoring_.rows == kTileRows && tiles_ <= kTilesWorthPackingKeys && whole_vectors(p_.key, p_.query_width) &&
         (p_.value_width == 0 || whole_vectors(p_.value, p_.value_width));
}

InPlaceBlock RowBlockPass::block_in_place(int64_t j0, bool more) const {
  const Rows keys = key_rows(p_, s_, block_.key_head, j0, kBlockKeys);
  const bool adjacent = !p_.key_pages.table.data;
  const int readable = more && adjacent ? 2 * kBlockKeys : kBlockKeys;
  if (more && !adjacent) prefetch_keys(p_, s_, block_.key_head, j0 + kBlockKeys, kBlockKeys);
  if (p_.value_width == 0) return {keys, Rows{}, static_cast<int>(j0), readable};
  const Rows values{key_address(p_, p_.value, s_, block_.key_head, j0), p_.value.row, p_.value.column, p_.value.dtype};
  return {keys, values, static_cast<int>(j0), readable};
}

Block RowBlockPass::pack_block(int64_t j0, int count) {
  const Rows keys = key_rows(p_, s_, block_.key_head, j0, count);
  scoring_.pack_keys(w_.keys, keys, count, static_cast<int>(p_.query_width));
  const int first_key = static_cast<int>(j0);
  if (p_.value_width == 0) return {w_.keys, w_.values, kernels_.strip, kBlockKeys * kernels_.strip, first_key, count};
  const Rows values{key_address(p_, p_.value, s_, block_.key_head, j0), p_.value.row, p_.value.column, p_.value.dtype};
  if (reads_values_in_place()) {
    return {w_.keys, static_cast<const float*>(values.data), values.row, kernels_.strip, first_key, count};
  }
  (value_pairs_ ? kernels_.pairs->pack_values : kernels_.pack_rows)(w_.values, values, count, kBlockKeys,
                                                                    static_cast<int>(p_.value_width));
  return {w_.keys, w_.values, kernels_.strip, kBlockKeys * kernels_.strip, first_key, count, value_pairs_};
}

bool RowBlockPass::values_are_finite(const Block& block) const {
  if (block.values == w_.values) {
    const auto all_finite = value_pairs_ ? packed_pairs_are_finite : packed_rows_are_finite;
    return all_finite(kernels_, w_.values, block.count, kBlockKeys, static_cast<int>(p_.value_width));
  }
  for (int n = 0; n < block.count; ++n) {
    if (!kernels_.all_finite(block.values + n * block.value_row, p_.value_width)) return false;
  }
  return true;
}

void RowBlockPass::visit(int64_t j0, int count, Visibility seen, bool more) {
  const bool in_place = in_place_ && count == kBlockKeys;
  InPlaceBlock rows_in_place{};
  if (in_place) rows_in_place = block_in_place(j0, more);
  Block block{};
  int finite = -1;  // not computed yet
  int at = 0;       // of two tiles, where the level starts one before it finishes the other
  TileVisibility views[2];
  TileStatistics statistics[2];
  ForwardTile started;
  bool waits = false;
  for (int64_t t = 0; t < tiles_; ++t) {
    const TileRows& rows = rows_[t];
    TileVisibility& view = views[at];
    float* bias = w_.bias + at * w_.score_tile;
    evaluate_tile_mask(p_, mask_, s_, rows, seen, j0, count, bias, &view);
    if (view.empty) continue;
    const bool packed = !in_place || view.mask.bits;
    if (packed && !block.keys) block = pack_block(j0, count);
    if (view.hides) {
      if (finite < 0) finite = values_are_finite(block);
      view.mask.guard = !finite;
    }
    const TileState state{w_.output + t * w_.output_tile, w_.maximum + t * kMaxLanes,
                          w_.sum + t * scoring_.rows * kMaxLanes};
    if (accumulator_) statistics[at] = accumulator_->statistics(t);
    const ForwardTile tile{w_.query + t * w_.query_tile,
                           w_.scores + at * w_.score_tile,
                           scoring_.rule.biased ? bias : nullptr,
                           rows.row_keys,
                           rows.count,
                           static_cast<int>(p_.query_width),
                           static_cast<int>(p_.value_width),
                           view.mask,
                           state,
                           accumulator_ ? &statistics[at] : nullptr};
    if (packed && scoring_.start_tile) {
      scoring_.start_tile(tile, block, scoring_.rule);
      if (waits) scoring_.finish_tile(started, block, scoring_.rule);
      started = tile;
      waits = true;
      at ^= 1;
      continue;
    }
    if (packed) {
      scoring_.forward_tile(tile, block, scoring_.rule);
      continue;
    }
    scoring_.forward_tile_in_place(tile, rows_in_place, scoring_.rule);
    rows_in_place.readable_keys = 0;  // the first tile has prefetched them
  }
  if (waits) scoring_.finish_tile(started, block, scoring_.rule);
}

}  // namespace uwaga
