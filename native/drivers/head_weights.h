// The weights of one head, tile by tile, from a softmax that is known.
//
// A row block takes some rows, a key block some keys, and a tile gives the weights of six rows on a block of 64 keys.
// Keys may be packed one block at a time or many at once, where many row blocks are to meet them.
#ifndef UWAGA_DRIVERS_HEAD_WEIGHTS_H_
#define UWAGA_DRIVERS_HEAD_WEIGHTS_H_

#include <stdint.h>

#include <cmath>
#include <vector>

#include "base/scratch.h"
#include "drivers/mask.h"
#include "drivers/problem.h"
#include "drivers/tiles.h"

namespace uwaga {

// One head of one sequence as a dense problem of its own.
class SingleHead {
 public:
  SingleHead(const uwaga_problem& whole, int64_t b, int64_t h);
  SingleHead(const SingleHead&) = delete;  // the problem points at the mask
  const uwaga_problem& problem() const { return problem_; }
  // The same head under another mask; it must outlive the result's use.
  uwaga_problem under(const std::vector<uwaga_mask_operation>& mask) const;
  // A start of the whole problem as this head sees it.
  uwaga_start start_of_sequence(const uwaga_start& start) const;
  // The operations of a mask of the whole problem as this head sees them.
  std::vector<uwaga_mask_operation> mask_of(const uwaga_mask_operation* operations, int64_t count) const;
  // A (B, H, Q, ...) or (B, H, K, ...) tensor of the whole problem from this head's first query or key on.
  uwaga_tensor query_rows(const uwaga_tensor& t, int64_t entry_size) const;
  uwaga_tensor key_rows(const uwaga_tensor& t, int64_t entry_size) const;

 private:
  uwaga_tensor rows(uwaga_tensor t, bool packed, int64_t offset, int64_t entry_size) const;
  const uwaga_problem& whole_;
  const Sequence s_;
  const int64_t h_;
  std::vector<uwaga_mask_operation> mask_;
  uwaga_problem problem_;
};

constexpr int64_t kRowsAtOnce = 96;
constexpr int64_t kTilesAtOnce = kRowsAtOnce / kTileRows;

class HeadWeights {
 public:
  // `hidden` is what hidden entries read as; `blocks` of keys can be packed at once.
  HeadWeights(const uwaga_problem& whole, const uwaga_softmax& softmax, int64_t b, int64_t h, float hidden,
              int64_t blocks);
  HeadWeights(const HeadWeights&) = delete;

  const SingleHead& head() const { return head_; }
  const Mask& mask() const { return mask_; }
  const Sequence& sequence() const { return s_; }

  // Takes up to kRowsAtOnce rising queries; `row_weights`, (Q,) with this stride, or null, multiplies their weights.
  void take_rows(const int64_t* queries, int64_t count, const float* row_weights, int64_t row_weight_step);
  int64_t tiles() const { return (rows_ + kTileRows - 1) / kTileRows; }
  const TileRows& tile_rows(int64_t t) const { return tiles_[t]; }
  // Whether any of the rows sees any of these keys.
  Visibility sees(int64_t j0, int64_t j1) const;
  // A range outside which no row sees a key.
  KeyRange key_range() const;

  // Packs keys [j0, j0 + 64) as number `n`, and returns how many there are.
  int pack_keys(int64_t n, int64_t j0);
  // Weights of tile `t` on packed block `n`, whose first key is j0, `known` being what `sees` said of it: false where
  // the tile sees none of them. Only whole vectors around view->mask's columns are written.
  bool tile(int64_t t, int64_t n, int64_t j0, Visibility known, TileVisibility* view);
  // Whether the softmax of row `r` of a tile is NaN, so that all its visible weights are.
  bool is_nan(int64_t t, int r) const {
    return std::isnan(maxima_[t * kTileRows + r]) || std::isnan(factors_[t * kTileRows + r]);
  }
  const float* weights() const { return weights_; }  // [6][64], of the last tile
  const Kernels& kernels() const { return kernels_; }

 private:
  float softmax_entry(const uwaga_tensor& t, int64_t query) const;

  const SingleHead head_;
  const Mask mask_;
  const Kernels& kernels_;
  const Scoring scoring_;
  const Sequence s_;
  const uwaga_tensor maximum_, sum_;
  const float hidden_;
  int64_t rows_ = 0, query_tile_;
  TileRows tiles_[kTilesAtOnce];
  float *queries_, *keys_, *weights_, *bias_, *maxima_, *factors_;
};

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_HEAD_WEIGHTS_H_
