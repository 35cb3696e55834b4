#include "drivers/tiles.h"

#include <string.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "drivers/dropout_hash.h"

namespace uwaga {
namespace {

template <class T>
uint64_t add_dense_row(const T* from, int64_t column, int count, float* bias) {
  uint64_t hidden = 0;
  for (int n = 0; n < count; ++n) {
    const float x = widen(from[n * column]);
    hidden |= static_cast<uint64_t>(x == -std::numeric_limits<float>::infinity()) << n;
    bias[n] += x;
  }
  return hidden;
}

}  // namespace

ScoreRule rule_of(const uwaga_problem& p) {
  ScoreRule rule{};
  rule.scale = 1.0f;  // packed queries bring it
  rule.softcap = p.softcap;
  rule.biased = p.relative.data || p.bias.data;
  rule.softmax = p.normalize != 0;
  rule.keep = 1.0f - p.dropout;
  rule.drop_threshold = drop_threshold(p.dropout);
  return rule;
}

Scoring float_scoring_of(const uwaga_problem& p, const Kernels& kernels) {
  return {false,
          kTileRows,
          p.scale,
          rule_of(p),
          kernels.pack_tile,
          kernels.pack_columns,
          kernels.pack_tile,
          kernels.pack_columns,
          kernels.forward_tile,
          nullptr,
          nullptr,
          kernels.forward_tile_in_place,
          kernels.weights_tile,
          kernels.backward_tile,
          nullptr};
}

Scoring scoring_of(const uwaga_problem& p, const Kernels& kernels, const PairKernels* pairs) {
  if (!pairs || p.query.dtype != UWAGA_BFLOAT16 || p.key.dtype != UWAGA_BFLOAT16 || p.scale == 0.0f) {
    return float_scoring_of(p, kernels);
  }
  ScoreRule rule = rule_of(p);
  rule.scale = std::fabs(p.scale);
  return {true,
          pairs->rows,
          p.scale < 0.0f ? -1.0f : 1.0f,
          rule,
          pairs->pack_queries,
          pairs->pack_keys,
          pairs->pack_gradients,
          kernels.pack_columns,
          pairs->forward_tile,
          pairs->start_tile,
          pairs->finish_tile,
          pairs->forward_tile_in_place,
          pairs->weights_tile,
          pairs->backward_tile,
          nullptr};
}

Scoring backward_scoring_of(const uwaga_problem& p, int grad_dtype, const Kernels& kernels) {
  Scoring scoring = scoring_of(p, kernels);
  if (!scoring.pairs || p.value.dtype != UWAGA_BFLOAT16 || grad_dtype != UWAGA_BFLOAT16) return scoring;
  scoring.gradients = kernels.pairs->gradients;
  if (!scoring.gradients) return scoring;
  scoring.pack_gradients = kernels.pairs->pack_queries;
  scoring.pack_values = kernels.pairs->pack_keys;
  scoring.backward_tile = scoring.gradients->backward_tile;
  return scoring;
}

TileRows::TileRows(const uwaga_problem& p, const Sequence& s, int64_t key_head, int64_t first, int64_t last, int most) {
  for (int64_t r = first; r < last && count < most; ++r) {
    const GroupedRow row = grouped_row(p, key_head, r);
    if (p.dropout > 0.0f) {
      const uint64_t head = p.seed + static_cast<uint64_t>(s.index * p.query_heads + row.head);
      const uint64_t query = static_cast<uint64_t>(p.dropout_query) + static_cast<uint64_t>(row.query);
      row_keys[count] = static_cast<uint32_t>(splitmix(splitmix(head) + query)) +
                        static_cast<uint32_t>(p.dropout_key) * 0x9E3779B1u;  // as keep_bits multiplies a key
    }
    rows[count++] = row;
  }
}

void gather_bias(const uwaga_problem& p, const Sequence& s, const TileRows& tile, int64_t j0, int count, float* bias,
                 uint64_t* bits) {
  const int64_t start = p.relative.data ? start_of(p.relative_start, s) : 0;
  for (int r = 0; r < tile.count; ++r) {
    float* row = bias + r * kBlockKeys;
    const GroupedRow at = tile.rows[r];
    memset(row, 0, kBlockKeys * sizeof(float));
    if (p.relative.data) {
      const float* from = p.relative.data + at.head * p.relative_head + (j0 - at.query - start) + p.relative_zero;
      memcpy(row, from, count * sizeof(float));
    }
    if (!p.bias.data) continue;
    const char* from =
        row_address(p.bias, s.index, at.head, at.query) + j0 * p.bias.column * element_size(p.bias.dtype);
    if (p.bias.dtype == UWAGA_FLOAT32) {
      bits[r] &= ~add_dense_row(reinterpret_cast<const float*>(from), p.bias.column, count, row);
    } else if (p.bias.dtype == UWAGA_BFLOAT16) {
      bits[r] &= ~add_dense_row(reinterpret_cast<const bfloat16*>(from), p.bias.column, count, row);
    } else {
      bits[r] &= ~add_dense_row(reinterpret_cast<const float16*>(from), p.bias.column, count, row);
    }
  }
}

void evaluate_tile_mask(const uwaga_problem& p, const Mask& mask, const Sequence& s, const TileRows& tile,
                        Visibility known, int64_t j0, int count, float* bias, TileVisibility* view) {
  const uint64_t all = ~uint64_t{0} >> (kBlockKeys - count);
  const int64_t i0 = tile.first_query(), i1 = tile.last_query() + 1;
  if (known == Visibility::kPartial) known = mask.block(s, i0, i1, j0, j0 + count);
  view->empty = known == Visibility::kEmpty;
  if (view->empty) return;
  if (known == Visibility::kFull && count == kBlockKeys && !p.bias.data) {
    if (p.relative.data) gather_bias(p, s, tile, j0, count, bias, view->bits);
    view->hides = false;
    view->mask = {nullptr, 0, kBlockKeys, false};
    std::fill(view->bits, view->bits + tile.count, all);
    return;
  }
  if (known == Visibility::kFull) {
    std::fill(view->bits, view->bits + tile.count, all);
  } else {
    mask.bits_of_rows(s, tile.rows, tile.count, j0, count, view->bits);
  }
  if (p.relative.data || p.bias.data) gather_bias(p, s, tile, j0, count, bias, view->bits);
  uint64_t any = 0, every = ~uint64_t{0};
  for (int r = 0; r < tile.count; ++r) {
    any |= view->bits[r];
    every &= view->bits[r];
  }
  view->empty = any == 0;
  if (view->empty) return;
  view->hides = every != all;
  view->mask = {every != ~uint64_t{0} ? view->bits : nullptr, __builtin_ctzll(any), 64 - __builtin_clzll(any), false};
}

bool packed_rows_are_finite(const Kernels& kernels, const float* packed, int count, int depth, int width) {
  for (int64_t w = 0; w < width; w += kernels.strip) {
    if (!kernels.all_finite(packed + w * depth, int64_t{count} * kernels.strip)) return false;
  }
  return true;
}

bool packed_pairs_are_finite(const Kernels& kernels, const float* packed, int count, int depth, int width) {
  const int64_t words = (count + 1) / 2, room = (depth + 1) / 2;
  for (int64_t w = 0; w < width; w += kernels.strip) {
    if (!kernels.pairs->all_finite(packed + w * room, words * kernels.strip)) return false;
  }
  return true;
}

}  // namespace uwaga
