// One head of one sequence as a dense problem, and its attention weights, tile by tile, from a known softmax.
//
// set_rows selects up to 96 rows, pack_keys packs a block of 64 keys, and `tile` computes the weights of a tile on such a
// block. Several blocks can stay packed, for callers that combine them with many row blocks.
#ifndef UWAGA_DRIVERS_HEAD_WEIGHTS_H_
#define UWAGA_DRIVERS_HEAD_WEIGHTS_H_

#include <stdint.h>

#include <cmath>
#include <vector>

#include "base/exact_sum.h"
#include "base/scratch.h"
#include "drivers/mask.h"
#include "drivers/problem.h"
#include "drivers/tiles.h"

namespace uwaga {

// One head of one sequence as a dense problem with B = H = G = 1.
class SingleHead {
 public:
  SingleHead(const uwaga_problem& whole, int64_t b, int64_t h);
  SingleHead(const SingleHead&) = delete;  // problem() points to the mask in here
  const uwaga_problem& problem() const { return problem_; }
  // problem() with another mask, which must outlive the result.
  uwaga_problem with_mask(const std::vector<uwaga_mask_operation>& mask) const;
  // A start of the whole problem, for this head.
  uwaga_start start_of_sequence(const uwaga_start& start) const;
  // The operations of a mask of the whole problem, for this head.
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

// The sums of one of all heads.
inline ExactSum* sums_of(const uwaga_exact_sums& sums, int64_t head) {
  return reinterpret_cast<ExactSum*>(sums.data) + head * sums.head;
}

constexpr int64_t kRowsAtOnce = 96;
constexpr int64_t kTilesAtOnce = kRowsAtOnce / kTileRows;  // or fewer

class HeadWeights {
 public:
  // `hidden` is the value of masked entries; `blocks`: how many blocks of keys can be packed at a time.
  HeadWeights(const uwaga_problem& whole, const uwaga_softmax& softmax, int64_t b, int64_t h, float hidden,
              int64_t blocks);
  HeadWeights(const HeadWeights&) = delete;

  const SingleHead& head() const { return head_; }
  const Mask& mask() const { return mask_; }
  const Sequence& sequence() const { return s_; }

  // Selects up to kRowsAtOnce queries, strictly increasing. Their weights are multiplied by `row_weights`, (Q,) with this
  // stride, unless null.
  void set_rows(const int64_t* queries, int64_t count, const float* row_weights, int64_t row_weight_step);
  int64_t tiles() const { return (rows_ + scoring_.rows - 1) / scoring_.rows; }
  const TileRows& tile_rows(int64_t t) const { return tiles_[t]; }
  // The mask of the selected rows and keys [j0, j1).
  Visibility visibility(int64_t j0, int64_t j1) const;
  // A range of keys outside which no selected row sees any.
  KeyRange key_range() const;

  // Packs keys [j0, j0 + 64) as block `n`, and returns how many there are.
  int pack_keys(int64_t n, int64_t j0);
  // Computes the weights of tile `t` on packed block `n`, whose first key is j0; `known` is visibility() of the block. Returns
  // false where the tile sees none of its keys. Only whole vectors around view->mask's columns are written.
  bool tile(int64_t t, int64_t n, int64_t j0, Visibility known, TileVisibility* view);
  // Whether the softmax of row `r` of a tile is NaN; then all its visible weights are.
  bool is_nan(int64_t t, int r) const {
    return std::isnan(maxima_[t * scoring_.rows + r]) || std::isnan(factors_[t * scoring_.rows + r]);
  }
  const float* weights() const { return weights_; }  // [rows][64], of the last tile
  const Kernels& kernels() const { return kernels_; }
  int tile_size() const { return scoring_.rows; }

 private:
  float softmax_entry(const uwaga_tensor& t, int64_t query) const;

  const SingleHead head_;
  const Mask mask_;
  const Kernels& kernels_;
  const TileRegisters registers_;
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
