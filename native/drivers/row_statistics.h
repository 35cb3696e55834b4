// Row statistics of the weights (entropy, squares, distance, largest weights): summed by the forward pass beside the outputs,
// merged over chunks of keys, normalised and written.
#ifndef UWAGA_DRIVERS_ROW_STATISTICS_H_
#define UWAGA_DRIVERS_ROW_STATISTICS_H_

#include <stdint.h>

#include <vector>

#include "base/scratch.h"
#include "drivers/problem.h"

namespace uwaga {

// Sums over p = exp(s - maximum), as RowResult::sum is: p log2 p, p^2, p |j - position|.
struct RowMoments {
  float entropy, squares, distance;
};

// The unnormalised statistics of one row; scores in natural units.
struct RowStatistics {
  RowMoments moments;
  float* top_scores;
  int32_t* top_keys;
};

// Memory for the statistics of some rows; empty where none are computed.
class RowStatisticsTable {
 public:
  RowStatisticsTable(const uwaga_row_statistics* wanted, int64_t rows);
  RowStatistics* row(int64_t r) { return rows_.empty() ? nullptr : &rows_[r]; }
  void clear();
  // The statistics of all rows as size() numbers, which another call goes on with.
  int64_t size() const { return static_cast<int64_t>(rows_.size()) * (3 + 2 * top_); }
  void read(const float* from);
  void write(float* to) const;

 private:
  const int64_t top_;
  std::vector<RowStatistics> rows_;
  std::vector<float> scores_;
  std::vector<int32_t> keys_;
};

// The running sums of all tiles of one row block, in scratch memory; see TileStatistics.
class StatisticsAccumulator {
 public:
  StatisticsAccumulator(const uwaga_problem& p, const uwaga_row_statistics& wanted, int rows)
      : p_(p), wanted_(wanted), rows_(rows) {}
  int64_t lay_out(int64_t tiles, float* base);
  void clear_sums(int64_t tiles) const;
  void clear_top(int64_t tiles) const;
  void set_position(int64_t row, const Sequence& s, int64_t query) const;
  TileStatistics statistics(int64_t tile) const;
  // Of row `row` of the block.
  RowMoments moments(int64_t row, const Kernels& kernels) const;
  // Keys by their positions in the whole of which the problem is a part.
  void copy_top(int64_t row, RowStatistics* to) const;

 private:
  const uwaga_problem& p_;
  const uwaga_row_statistics& wanted_;
  const int64_t rows_;  // of a tile
  float *entropy_ = nullptr, *squares_ = nullptr, *distance_ = nullptr, *position_ = nullptr, *top_scores_ = nullptr,
        *top_keys_ = nullptr;
};

// Merge the statistics of a later chunk of keys into those of the row so far. `softmax` and `part_softmax` are the maxima and
// sums of both, which are merged with the outputs.
void merge_moments(const RowResult& softmax, RowStatistics* total, const RowResult& part_softmax,
                   const RowStatistics& part);
void merge_top(RowStatistics* total, const RowStatistics& part, int64_t top);

// A row's softmax with its sink: a_ij = exp(s_ij - maximum) / sum.
struct RowSoftmax {
  double maximum, sum;
};
void write_statistics(const uwaga_problem& p, const uwaga_row_statistics& out, const Sequence& s, GroupedRow at,
                      const RowResult& row, const RowStatistics& found, RowSoftmax softmax);

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_ROW_STATISTICS_H_
