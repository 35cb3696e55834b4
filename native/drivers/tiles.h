// What forward and backward drivers share about tiles: their scores, their masks, their biases, dropout's keys.
#ifndef UWAGA_DRIVERS_TILES_H_
#define UWAGA_DRIVERS_TILES_H_

#include <stdint.h>

#include "drivers/mask.h"
#include "drivers/problem.h"

namespace uwaga {

// How the scores of a problem are computed: in float32, from queries that bring the scale, or on pairs of bfloat16, whose
// products are scaled afterwards. Each pass (forward, weights from a known softmax, backward) takes its kernels from here:
// a weight that is made again needs the very score that was normalised, since the rounding of a score of 1,000 is a factor
// of 1 + 1e-4 to its weight.
struct Scoring {
  bool pairs;
  float query_factor;  // what the packed queries bring
  ScoreRule rule;
  decltype(Kernels::pack_tile) pack_queries;
  decltype(Kernels::pack_columns) pack_keys;
  decltype(Kernels::forward_tile) forward_tile;
  decltype(Kernels::weights_tile) weights_tile;
  decltype(Kernels::backward_tile) backward_tile;
};

ScoreRule rule_of(const uwaga_problem& p);
Scoring scoring_of(const uwaga_problem& p, const Kernels& kernels);

// Rows [first, last) of the work list of one sequence and key head.
struct RowBlock {
  int64_t sequence, key_head, first, last;
};

// Six rows (or fewer) of the work list, with what the kernels want to know of each.
struct TileRows {
  int count;
  GroupedRow rows[kTileRows];
  uint32_t row_keys[kTileRows];
  int64_t first_query() const { return rows[0].query; }
  int64_t last_query() const { return rows[count - 1].query; }
};

TileRows tile_rows(const uwaga_problem& p, const Sequence& s, int64_t key_head, int64_t first, int64_t last);

// Fills bias[6][64] for keys [j0, j0 + count) and clears from `bits` the keys that a dense bias of -inf hides.
void gather_bias(const uwaga_problem& p, const Sequence& s, const TileRows& tile, int64_t j0, int count, float* bias,
                 uint64_t* bits);

// The part of a block that a tile sees.
struct TileVisibility {
  bool empty;
  bool hides;  // whether some row does not see some key; not so where the block just has fewer than 64
  uint64_t bits[kTileRows];
  TileMask mask;  // points into `bits` where the kernel must ask them
};

// `known` is what is already known of the whole row block against this block of keys. `bias` receives the tile's
// biases where the problem has some.
void evaluate_tile_mask(const uwaga_problem& p, const Mask& mask, const Sequence& s, const TileRows& tile, Visibility known,
                  int64_t j0, int count, float* bias, TileVisibility* view);

// Is every number of `count` packed rows (of room for `depth`) finite?
bool packed_rows_are_finite(const Kernels& kernels, const float* packed, int count, int depth, int width);
bool packed_pairs_are_finite(const Kernels& kernels, const float* packed, int count, int depth, int width);

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_TILES_H_
