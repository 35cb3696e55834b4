// Functions of the weights computed column by column: the weight that each key receives, and pooling into cells.
//
// A task is a segment of keys and all rows of a head, so that no two threads add to one column. Rows come in blocks of 96: a
// column is summed over such a block in float32, and over the blocks, in order, in float64. A cell is summed over the rows of a block that
// are its own in float32, over the keys of a block in float64, and over blocks exactly.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "drivers/drivers.h"
#include "drivers/head_weights.h"

namespace uwaga {
namespace {

static_assert(UWAGA_PART_QUERIES % kRowsAtOnce == 0, "parts of whole row blocks");
static_assert(kBlockKeys == 64 && sizeof(float) == sizeof(int32_t),
              "a row's keys are 64 bits, its number those of a float");

// Blocks of keys per segment: packed they fit into the L2 cache, and a short sequence still has a few segments. It depends on
// the shape alone, since the sum of a cell that crosses segments depends on it.
int64_t segment_blocks(const uwaga_problem& p) {
  constexpr int64_t kSegmentFloats = 32 * 1024, kMostBlocks = 8, kSegments = 4;
  const int64_t blocks = (p.keys + kBlockKeys - 1) / kBlockKeys;
  const int64_t fits = std::max<int64_t>(1, kSegmentFloats / (kBlockKeys * p.query_width));
  return std::max<int64_t>(1, std::min({kMostBlocks, fits, (blocks + kSegments - 1) / kSegments}));
}

// For each visible pair of a row block and a block of keys: visitor.begin(), visitor.visit(weights, tile, view) for every tile
// with visible pairs, and visitor.end(first key, count).
// A row block is those of the queries among 96 that lie between multiples of 96, whatever the first one.
template <class Visitor>
void for_each_tile(HeadWeights& weights, const std::vector<int64_t>& queries, const float* row_weights,
                   int64_t row_weight_step, int64_t first_key, int64_t last_key, Visitor& visitor) {
  std::vector<char> packed((last_key - first_key + kBlockKeys - 1) / kBlockKeys, 0);
  const int64_t all = static_cast<int64_t>(queries.size());
  for (int64_t row = 0, count; row < all; row += count) {
    const int64_t end = (queries[row] / kRowsAtOnce + 1) * kRowsAtOnce;
    count = std::lower_bound(queries.begin() + row, queries.end(), end) - queries.begin() - row;
    weights.set_rows(queries.data() + row, count, row_weights, row_weight_step);
    for (int64_t j0 = first_key; j0 < last_key; j0 += kBlockKeys) {
      const int64_t n = (j0 - first_key) / kBlockKeys, j1 = std::min(j0 + kBlockKeys, last_key);
      const Visibility seen = weights.visibility(j0, j1);
      if (seen == Visibility::kEmpty) continue;
      if (!packed[n]) weights.pack_keys(n, j0);
      packed[n] = 1;
      visitor.begin();
      for (int64_t t = 0; t < weights.tiles(); ++t) {
        TileVisibility view;
        if (weights.tile(t, n, j0, seen, &view)) visitor.visit(weights, t, view);
      }
      visitor.end(j0, static_cast<int>(j1 - j0));
    }
  }
}

struct ColumnSums {
  const int64_t first_key;
  std::vector<double> totals;
  alignas(64) float sums[kBlockKeys];

  ColumnSums(int64_t first, int64_t last) : first_key(first), totals(last - first, 0.0) {}
  void begin() { std::fill(sums, sums + kBlockKeys, 0.0f); }
  void visit(const HeadWeights& w, int64_t t, const TileVisibility& view) {
    w.kernels().add_rows(sums, w.weights(), 0, w.tile_rows(t).count, view.mask.first, view.mask.last);
  }
  void end(int64_t j0, int count) {
    for (int n = 0; n < count; ++n) totals[j0 - first_key + n] += sums[n];
  }
};

// The cells of one segment of keys. Bins are intervals of positions. A row block and a block of keys are first pooled over rows,
// to one row of `best_` per row bin and column, then over columns.
class Cells {
 public:
  struct Cell {
    double weight;
    int64_t query, key;
  };

  Cells(const uwaga_pool_args& args, int64_t b, int64_t first_key, int64_t last_key)
      : how_(args.how),
        row_edges_(args.query_edges.data + b * (args.rows + 1)),
        rows_(args.rows),
        key_edges_(args.key_edges.data + b * (args.columns + 1)),
        columns_(args.columns) {
    first_bin_ = bin_of(key_edges_, columns_, std::max(first_key, key_edges_[0]));
    const int64_t last = std::min(last_key, key_edges_[columns_]) - 1;
    bins_ = last < first_key || last < key_edges_[0] ? 0 : bin_of(key_edges_, columns_, last) - first_bin_ + 1;
    if (how_ == UWAGA_POOL_MASS) {
      sums_.resize(rows_ * bins_);
    } else {
      cells_.assign(rows_ * bins_, {-1.0, -1, -1});
    }
    const float none = how_ == UWAGA_POOL_MASS ? 0.0f : -1.0f;
    best_.resize(kRowsAtOnce * kBlockKeys, none);
    at_.resize(how_ == UWAGA_POOL_MASS ? 0 : kRowsAtOnce * kBlockKeys);
  }

  void begin() { groups_.clear(); }

  void visit(const HeadWeights& w, int64_t t, const TileVisibility& view) {
    const TileRows& tile = w.tile_rows(t);
    for (int r = 0; r < tile.count;) {
      const int64_t bin = bin_of(row_edges_, rows_, tile.rows[r].query);
      int end = r + 1;
      while (end < tile.count && tile.rows[end].query < row_edges_[bin + 1]) ++end;
      gather(w, t, group_of(bin), r, end, view);
      r = end;
    }
  }

  void end(int64_t j0, int count) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int64_t row = groups_[g] * bins_;
      int64_t bin = bin_of(key_edges_, columns_, std::max(j0, key_edges_[0]));
      double sum = 0.0;  // of the keys of a bin
      for (int n = 0; n < count; ++n) {
        const int64_t key = j0 + n;
        if (key < key_edges_[0] || key >= key_edges_[columns_]) continue;
        while (key >= key_edges_[bin + 1]) {
          add(row + bin - first_bin_, &sum);
          ++bin;
        }
        if (how_ == UWAGA_POOL_MASS) {
          sum += best_[g * kBlockKeys + n];
        } else {
          keep(&cells_[row + bin - first_bin_], g, n, key);
        }
      }
      add(row + bin - first_bin_, &sum);
    }
  }

  // Adds these cells to those of the head.
  void merge_into(Cell* all) const {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t n = 0; n < bins_; ++n) {
        Cell& total = all[r * columns_ + first_bin_ + n];
        if (is_better(cells_[r * bins_ + n], total)) total = cells_[r * bins_ + n];
      }
    }
  }
  void add_to(ExactSum* all) const {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t n = 0; n < bins_; ++n) all[r * columns_ + first_bin_ + n].add(sums_[r * bins_ + n]);
    }
  }

 private:
  // The bin of position x, which lies between the outer edges; no empty bin.
  static int64_t bin_of(const int64_t* edges, int64_t bins, int64_t x) {
    return std::min<int64_t>(std::max<int64_t>(std::upper_bound(edges, edges + bins + 1, x) - edges - 1, 0), bins - 1);
  }

  // NaN before every number; then the larger weight, the earlier query, the earlier key.
  static bool is_better(const Cell& a, const Cell& b) {
    if (std::isnan(a.weight) != std::isnan(b.weight)) return std::isnan(a.weight);
    if (a.weight != b.weight && !std::isnan(a.weight)) return a.weight > b.weight;
    return a.query != -1 && (b.query == -1 || a.query < b.query || (a.query == b.query && a.key < b.key));
  }

  int64_t group_of(int64_t bin) {
    if (groups_.empty() || groups_.back() != bin) {
      groups_.push_back(bin);
      const int64_t at = (static_cast<int64_t>(groups_.size()) - 1) * kBlockKeys;
      std::fill(best_.begin() + at, best_.begin() + at + kBlockKeys, how_ == UWAGA_POOL_MASS ? 0.0f : -1.0f);
    }
    return static_cast<int64_t>(groups_.size()) - 1;
  }

  void gather(const HeadWeights& w, int64_t t, int64_t group, int first, int last, const TileVisibility& view) {
    float* best = best_.data() + group * kBlockKeys;
    if (how_ == UWAGA_POOL_MASS) {
      return w.kernels().add_rows(best, w.weights(), first, last, view.mask.first, view.mask.last);
    }
    const int64_t bin_start = row_edges_[groups_[group]];
    float* at = at_.data() + group * kBlockKeys;
    // The rows of a bin are consecutive queries, so the first one's number gives the others.
    const int number = static_cast<int>(w.tile_rows(t).rows[first].query - bin_start);
    for (int r = first; r < last; ++r) {
      if (w.is_nan(t, r)) mark_nan(best, at, view.bits[r], number + r - first);
    }
    w.kernels().keep_largest(best, at, w.weights(), first, last, number, view.mask.first, view.mask.last);
  }

  // NaN counts as the largest weight: a row whose softmax is NaN is the maximum of every column that it sees.
  static void mark_nan(float* best, float* at, uint64_t bits, int32_t number) {
    for (; bits; bits &= bits - 1) {
      const int n = __builtin_ctzll(bits);
      if (std::isnan(best[n])) continue;
      best[n] = std::numeric_limits<float>::quiet_NaN();
      memcpy(&at[n], &number, sizeof number);
    }
  }

  // Adds a sum to that of a cell, and begins it anew.
  void add(int64_t cell, double* sum) {
    if (*sum != 0.0) sums_[cell].add(*sum);
    *sum = 0.0;
  }

  void keep(Cell* cell, int64_t group, int n, int64_t key) const {
    const float weight = best_[group * kBlockKeys + n];
    if (weight == -1.0f) return;  // no pair of this column is visible
    int32_t number;
    memcpy(&number, &at_[group * kBlockKeys + n], sizeof number);
    const Cell found{weight, row_edges_[groups_[group]] + number, key};
    if (is_better(found, *cell)) *cell = found;
  }

  const int how_;
  const int64_t* row_edges_;
  const int64_t rows_;
  const int64_t* key_edges_;
  const int64_t columns_;
  int64_t first_bin_, bins_;
  std::vector<ExactSum> sums_;  // of the cells, or
  std::vector<Cell> cells_;
  std::vector<int64_t> groups_;  // the row bins of this row block
  std::vector<float> best_, at_;
};

class Pool {
 public:
  Pool(const uwaga_problem& p, const uwaga_softmax& softmax, const uwaga_pool_args& args, const uwaga_exact_sums* part)
      : p_(p), softmax_(softmax), args_(args), part_(part) {}

  void run_head(int64_t b, int64_t h, int threads) const {
    const int64_t* edges = args_.query_edges.data + b * (args_.rows + 1);
    std::vector<int64_t> queries;
    for (int64_t i = edges[0]; i < edges[args_.rows]; ++i) queries.push_back(i);
    const int64_t keys = sequence_of(p_, b).keys, step = segment_blocks(p_) * kBlockKeys;
    const int64_t segments = (keys + step - 1) / step;
    const bool sums = args_.how == UWAGA_POOL_MASS;
    const int64_t cells = args_.rows * args_.columns;
    std::vector<Cells::Cell> best(sums ? 0 : cells, {-1.0, -1, -1});
    std::vector<ExactSum> own(sums && !part_ ? cells : 0);
    ExactSum* const totals = part_ ? sums_of(*part_, b * p_.query_heads + h) : own.data();
    // Some segments at a time; their cells are then merged in order.
    const int64_t at_once = 4 * threads;
    for (int64_t first = 0; first < segments; first += at_once) {
      const int64_t count = std::min(at_once, segments - first);
      std::vector<Cells> parts;
      for (int64_t n = first; n < first + count; ++n) {
        parts.emplace_back(args_, b, n * step, std::min(keys, (n + 1) * step));
      }
      parallel_for(threads, count, [&](int64_t n, int) {
        HeadWeights weights(p_, softmax_, b, h, sums ? 0.0f : -1.0f, step / kBlockKeys);
        for_each_tile(weights, queries, nullptr, 0, (first + n) * step, std::min(keys, (first + n + 1) * step),
                      parts[n]);
      });
      for (const Cells& part : parts) {
        if (sums) {
          part.add_to(totals);
        } else {
          part.merge_into(best.data());
        }
      }
    }
    if (part_) return;
    for (const ExactSum& sum : own) best.push_back({sum.value(), -1, -1});
    write(b, h, edges, best);
  }

 private:
  void write(int64_t b, int64_t h, const int64_t* edges, const std::vector<Cells::Cell>& all) const {
    const int64_t at = (b * p_.query_heads + h) * args_.rows * args_.columns;
    for (int64_t n = 0; n < args_.rows * args_.columns; ++n) {
      const int64_t row = n / args_.columns;
      const double queries = static_cast<double>(edges[row + 1] - edges[row]);
      const Cells::Cell& cell = all[n];
      double weight = cell.weight;
      if (args_.how == UWAGA_POOL_MASS) weight = queries > 0 ? weight / queries : 0.0;
      if (args_.how == UWAGA_POOL_MAX && cell.query < 0) weight = 0.0;
      args_.cells.data[at + n] = static_cast<float>(weight);
      if (!args_.positions) continue;
      args_.positions[2 * (at + n)] = cell.query;
      args_.positions[2 * (at + n) + 1] = cell.key;
    }
  }

  const uwaga_problem& p_;
  const uwaga_softmax& softmax_;
  const uwaga_pool_args& args_;
  const uwaga_exact_sums* const part_;  // or null
};

}  // namespace

void received(const uwaga_problem& p, const uwaga_softmax& softmax, const uwaga_tensor& row_weights,
              const uwaga_tensor& out, const uwaga_weight_sums& given) {
  struct Task {
    int64_t sequence, head, first, last;
  };
  const int64_t step = segment_blocks(p) * kBlockKeys;
  std::vector<Task> tasks;
  for (int64_t b = 0; b < p.sequences; ++b) {
    const int64_t keys = sequence_of(p, b).keys;
    for (int64_t h = 0; h < p.query_heads; ++h) {
      for (int64_t j = 0; j < keys; j += step) tasks.push_back({b, h, j, std::min(keys, j + step)});
    }
  }
  parallel_for(useful_threads(p), static_cast<int64_t>(tasks.size()), [&](int64_t n, int) {
    const Task& task = tasks[n];
    HeadWeights weights(p, softmax, task.sequence, task.head, 0.0f, step / kBlockKeys);
    const uwaga_tensor of_rows = weights.head().query_rows(row_weights, sizeof(float));
    const float* row_weight = static_cast<const float*>(of_rows.data);
    std::vector<int64_t> queries;
    for (int64_t i = 0; i < weights.sequence().queries; ++i) {
      if (!row_weight || row_weight[i * of_rows.row] != 0.0f) queries.push_back(i);
    }
    ColumnSums sums(task.first, task.last);
    double* const so_far =
        given.data ? given.data + (task.sequence * p.query_heads + task.head) * p.keys + task.first : nullptr;
    if (so_far && given.continues) std::copy(so_far, so_far + (task.last - task.first), sums.totals.begin());
    for_each_tile(weights, queries, row_weight, of_rows.row, task.first, task.last, sums);
    if (so_far) std::copy(sums.totals.begin(), sums.totals.end(), so_far);
    if (!out.data) return;
    const uwaga_tensor to = weights.head().key_rows(out, sizeof(float));
    for (int64_t j = task.first; j < task.last; ++j) {
      static_cast<float*>(to.data)[j * to.row] = static_cast<float>(sums.totals[j - task.first]);
    }
  });
}

void pool(const uwaga_problem& p, const uwaga_softmax& softmax, const uwaga_pool_args& args,
          const uwaga_exact_sums* part) {
  if (args.rows == 0 || args.columns == 0) return;
  const Pool pool(p, softmax, args, part);
  const int64_t heads = p.sequences * p.query_heads;
  const int threads = useful_threads(p);
  const bool by_head = heads >= 2 * threads;
  const auto run = [&](int64_t n, int within) { pool.run_head(n / p.query_heads, n % p.query_heads, within); };
  if (by_head) return parallel_for(threads, heads, [&](int64_t n, int) { run(n, 1); });
  for (int64_t n = 0; n < heads; ++n) run(n, threads);
}

}  // namespace uwaga
