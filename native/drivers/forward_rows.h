// One row block of the forward pass: some hundred rows of one sequence and key head, against its keys.
#ifndef UWAGA_DRIVERS_FORWARD_ROWS_H_
#define UWAGA_DRIVERS_FORWARD_ROWS_H_

#include <stdint.h>

#include <optional>
#include <vector>

#include "base/scratch.h"
#include "drivers/far_keys.h"
#include "drivers/mask.h"
#include "drivers/problem.h"
#include "drivers/row_statistics.h"
#include "drivers/tiles.h"

namespace uwaga {

// The packed operands and softmax states of one row block, in one array of scratch memory.
struct RowBlockScratch {
  float *query, *keys, *values, *scores, *bias, *output, *maximum, *sum;
  int64_t query_tile, output_tile;  // distance from tile to tile
  int64_t score_tile;  // from the scores and biases of one tile to those of the other, where two are at work

  static int64_t lay_out(const uwaga_problem& p, int64_t tiles, const Scoring& scoring, float* base,
                         RowBlockScratch* w) {
    ScratchLayout layout(base);
    const int rows = scoring.rows, at_work = scoring.start_tile ? 2 : 1;
    w->score_tile = rows * kBlockKeys;
    w->query_tile = rounded_up(packed_tile(p.query_width, rows), 16);
    w->output_tile = rows * padded_width(p.value_width);
    w->query = layout.take(tiles * w->query_tile);
    w->keys = layout.take(packed_keys(p.query_width));
    w->values = layout.take(kBlockKeys * rounded_up(p.value_width, kMaxStrip));
    w->scores = layout.take(at_work * w->score_tile);
    w->bias = layout.take(at_work * w->score_tile);
    w->output = layout.take(tiles * w->output_tile);
    w->maximum = layout.take(tiles * kMaxLanes);
    w->sum = layout.take(tiles * rows * kMaxLanes);
    return layout.used();
  }
};

// Results of some rows over some of their keys: unnormalised outputs, maxima and sums, and statistics.
struct PartialRows {
  float* output;  // [rows][padded width]
  RowResult* results;
  RowStatistics* statistics;  // or null; their softmax is not filled in
};

class RowBlockPass {
 public:
  // `wanted` may be null: outputs only.
  RowBlockPass(const uwaga_problem& p, const Mask& mask, const Kernels& kernels, const FarKeys& far_keys,
               const RowBlock& block, const uwaga_row_statistics* wanted);
  int64_t rows() const { return block_.last - block_.first; }
  const Sequence& sequence() const { return s_; }

  // Resets the softmax states and runs over keys [j_first, j_last), multiples of 64 or the end. The largest weights alone are
  // kept from run to run.
  void run(int64_t j_first, int64_t j_last);
  int64_t tiles() const { return tiles_; }
  int tile_size() const { return scoring_.rows; }
  int rows_of_tile(int64_t t) const { return rows_[t].count; }
  void results(int64_t t, RowResult* of_rows) const;  // of the rows of tile `t`
  float* output(int64_t row) const { return w_.output + row * padded_width(p_.value_width); }

  void copy_to(const PartialRows& part) const;
  RowMoments moments(int64_t row) const { return accumulator_->moments(row, kernels_); }
  void copy_top(int64_t row, RowStatistics* to) const { accumulator_->copy_top(row, to); }

 private:
  int64_t query_of(int64_t r) const { return grouped_row(p_, block_.key_head, r).query; }

  void pack_queries();

  // Whether keys and values of whole blocks are read where they lie, without any packing.
  bool reads_blocks_in_place() const;
  InPlaceBlock block_in_place(int64_t j0, bool more) const;
  // Whether values are read where they lie rather than packed: if whole vectors fit and few tiles would read the packed copy.
  bool reads_values_in_place() const;
  Block pack_block(int64_t j0, int count);
  bool values_are_finite(const Block& block) const;
  // `more`: the next 64 keys will be visited too.
  void visit(int64_t j0, int count, Visibility seen, bool more);

  const uwaga_problem& p_;
  const Mask& mask_;
  const Kernels& kernels_;
  const TileRegisters registers_;
  const FarKeys& far_keys_;
  const Scoring scoring_;
  const bool value_pairs_;  // whether values stay bfloat16 too
  bool in_place_;
  const RowBlock block_;
  const Sequence s_;
  RowBlockScratch w_;
  std::optional<StatisticsAccumulator> accumulator_;
  std::vector<TileRows> rows_;  // of each tile
  int64_t tiles_;
  float skip_below_;  // see far_keys.h
};

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_FORWARD_ROWS_H_
