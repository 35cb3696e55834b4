// What all drivers need of a tile (six query rows, or as many as the level takes, by 64 keys): how its scores are computed,
// its mask bits, its biases, and the hash of its rows for dropout.
#ifndef UWAGA_DRIVERS_TILES_H_
#define UWAGA_DRIVERS_TILES_H_

#include <stdint.h>

#include "drivers/mask.h"
#include "drivers/problem.h"

namespace uwaga {

// How the scores of a problem are computed: in float32, from queries that bring the scale, or on pairs of bfloat16, whose
// products are scaled afterwards. Each pass (forward, weights from a known softmax, backward) takes its kernels from here:
// a weight that is recomputed needs the very score that was normalised, since the rounding of a score of 1,000 changes its
// weight by a factor of 1 + 1e-4.
struct Scoring {
  bool pairs;
  int rows;            // of a tile
  float query_factor;  // queries are multiplied by it when they are packed
  ScoreRule rule;
  decltype(Kernels::pack_tile) pack_queries;
  decltype(Kernels::pack_columns) pack_keys;
  decltype(Kernels::pack_tile) pack_gradients;  // of the outputs
  decltype(Kernels::pack_columns) pack_values;  // of the backward pass
  decltype(Kernels::forward_tile) forward_tile;
  decltype(Kernels::forward_tile) start_tile, finish_tile;  // or null, see PairKernels
  decltype(Kernels::forward_tile_in_place) forward_tile_in_place;
  decltype(Kernels::weights_tile) weights_tile;
  decltype(Kernels::backward_tile) backward_tile;
  const PairGradientKernels* gradients;  // or null: the gradients are sums of float32 products
};

ScoreRule rule_of(const uwaga_problem& p);
// `pairs` may be null: float32.
Scoring scoring_of(const uwaga_problem& p, const Kernels& kernels, const PairKernels* pairs);
inline Scoring scoring_of(const uwaga_problem& p, const Kernels& kernels) {
  return scoring_of(p, kernels, kernels.pairs);
}
Scoring float_scoring_of(const uwaga_problem& p, const Kernels& kernels);  // in float32 whatever the level has
// Of the backward pass: all its products are of pairs where the level has them and the output gradients, of type `grad_dtype`, and
// the values are bfloat16 too.
Scoring backward_scoring_of(const uwaga_problem& p, int grad_dtype, const Kernels& kernels);

// Grouped rows [first, last) of one sequence and key head (see GroupedRow).
struct RowBlock {
  int64_t sequence, key_head, first, last;
};

// The grouped rows of one tile, each with its hash for dropout. Places past the last row are not set: filling or copying them
// took 2 to 3 per cent of a call on 64 tokens.
struct TileRows {
  TileRows() {}
  // The first of these rows, `most` or fewer.
  TileRows(const uwaga_problem& p, const Sequence& s, int64_t key_head, int64_t first, int64_t last, int most);
  int count = 0;
  GroupedRow rows[kMaxTileRows];
  uint32_t row_keys[kMaxTileRows];
  int64_t first_query() const { return rows[0].query; }
  int64_t last_query() const { return rows[count - 1].query; }
};

// Fills bias[rows][64] for keys [j0, j0 + count) and clears from `bits` the keys that a dense bias of -inf hides.
void gather_bias(const uwaga_problem& p, const Sequence& s, const TileRows& tile, int64_t j0, int count, float* bias,
                 uint64_t* bits);

// Which pairs of a tile are visible.
struct TileVisibility {
  bool empty;
  bool hides;  // whether some pair is masked; places past a block's last key do not count
  uint64_t bits[kMaxTileRows];
  TileMask mask;  // points into `bits`, unless every key of a whole block is visible
};

// `known` is the mask of the tile's whole row block against this block of keys, or kPartial. Writes bias[rows][64] where the
// problem has biases.
void evaluate_tile_mask(const uwaga_problem& p, const Mask& mask, const Sequence& s, const TileRows& tile,
                        Visibility known, int64_t j0, int count, float* bias, TileVisibility* view);

// Whether all entries of `count` packed rows (in memory for `depth` rows) are finite.
bool packed_rows_are_finite(const Kernels& kernels, const float* packed, int count, int depth, int width);
bool packed_pairs_are_finite(const Kernels& kernels, const float* packed, int count, int depth, int width);

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_TILES_H_
