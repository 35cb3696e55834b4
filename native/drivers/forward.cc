// The forward pass: which rows meet which keys, in what order, on which thread.
//
// Work is cut into row blocks (some hundred rows of one sequence and key head). A row block visits its visible key
// blocks in order; each block of 64 keys is packed once and serves all tiles of the row block. Keys are further grouped
// into chunks of 2,048: each chunk has a softmax of its own, and chunks are merged in order. So a row's sums associate
// the same way whether its chunks ran one after another or, when there are few rows (decoding), on many threads.
#include "drivers/forward.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "base/parallel.h"
#include "base/scratch.h"
#include "drivers/mask.h"
#include "drivers/problem.h"
#include "drivers/tiles.h"

namespace uwaga {
namespace {

constexpr int64_t kChunkKeys = 2048;
constexpr int64_t kTilesWorthPacking = 4;
constexpr int64_t kStateRow = kMaxLanes;  // lane sums of one row
constexpr float kLog2E = 1.44269504088896341f;
constexpr double kLn2 = 0.693147180559945309;
constexpr float kHidden = -std::numeric_limits<float>::infinity();

int64_t chunk_count(const Sequence& s) { return (s.keys + kChunkKeys - 1) / kChunkKeys; }

// The queries and outputs of a row block, with one packed block of keys, stay in the second-level cache, and packing is
// paid for by many rows; smaller blocks where these would leave threads without work.
constexpr int64_t kRowBlockFloats = 48 * 1024;

int64_t rows_per_block(const uwaga_problem& p) {
  const int64_t group = p.query_heads / p.key_heads;
  int64_t rows = 768;
  const auto blocks = [&] { return p.sequences * p.key_heads * ((p.queries * group + rows - 1) / rows); };
  while (rows > 48 && (rows * (p.query_width + p.value_width) > kRowBlockFloats || blocks() < 4 * p.threads)) rows /= 2;
  return rows;
}

std::vector<RowBlock> row_blocks(const uwaga_problem& p) {
  const int64_t rows = rows_per_block(p), group = p.query_heads / p.key_heads;
  std::vector<RowBlock> blocks;
  for (int64_t b = 0; b < p.sequences; ++b) {
    const int64_t all = sequence_of(p, b).queries * group;
    for (int64_t g = 0; g < p.key_heads; ++g) {
      // Last rows first: under a causal mask they are the longest pieces, which should not come last.
      for (int64_t r = (all - 1) / rows * rows; all > 0 && r >= 0; r -= rows) {
        blocks.push_back({b, g, r, std::min(all, r + rows)});
      }
    }
  }
  if (p.query_offsets || p.key_offsets) {
    std::stable_sort(blocks.begin(), blocks.end(), [&](const RowBlock& a, const RowBlock& b) {
      return (a.last - a.first) * sequence_of(p, a.sequence).keys > (b.last - b.first) * sequence_of(p, b.sequence).keys;
    });
  }
  return blocks;
}

// The packed operands and softmax states of one row block, in one piece of scratch memory.
struct Workspace {
  float *query, *keys, *values, *scores, *bias, *output, *maximum, *sum;
  int64_t query_tile, output_tile;  // distance from tile to tile

  static int64_t lay_out(const uwaga_problem& p, int64_t tiles, float* base, Workspace* w) {
    Layout layout(base);
    w->query_tile = rounded_up(p.query_width * kTileRows + kMaxLanes, 16);
    w->output_tile = kTileRows * padded_width(p.value_width);
    w->query = layout.take(tiles * w->query_tile);
    w->keys = layout.take(kBlockKeys * (p.query_width + 1));
    w->values = layout.take(kBlockKeys * rounded_up(p.value_width, kMaxStrip));
    w->scores = layout.take(kTileRows * kBlockKeys);
    w->bias = layout.take(kTileRows * kBlockKeys);
    w->output = layout.take(tiles * w->output_tile);
    w->maximum = layout.take(tiles * kMaxLanes);
    w->sum = layout.take(tiles * kTileRows * kStateRow);
    return layout.used();
  }
};

// Softmax results of some rows: unnormalised outputs and, per row, maximum and sum.
struct PartialRows {
  float* output;  // [rows][padded width]
  RowResult* results;
};

class RowBlockPass {
 public:
  RowBlockPass(const uwaga_problem& p, const Mask& mask, const Kernels& kernels, const RowBlock& block)
      : p_(p), mask_(mask), kernels_(kernels), rule_(rule_of(p)), block_(block), s_(sequence_of(p, block.sequence)) {
    tiles_ = (rows() + kTileRows - 1) / kTileRows;
    pairs_ = kernels.pairs && p.query.dtype == UWAGA_BFLOAT16 && p.key.dtype == UWAGA_BFLOAT16 &&
             p.value.dtype == UWAGA_BFLOAT16;
    for (int64_t t = 0; t < tiles_; ++t) {
      rows_.push_back(tile_rows(p, s_, block.key_head, block.first + t * kTileRows, block.last));
    }
    thread_local Scratch scratch;
    Workspace sizes;
    Workspace::lay_out(p, tiles_, scratch.reserve(Workspace::lay_out(p, tiles_, nullptr, &sizes)), &w_);
    pack_queries();
  }

  int64_t rows() const { return block_.last - block_.first; }
  const Sequence& sequence() const { return s_; }

  // Runs over keys [j_first, j_last), both multiples of 64 (or the end), from a fresh state.
  void run(int64_t j_first, int64_t j_last) {
    std::fill(w_.output, w_.output + tiles_ * w_.output_tile, 0.0f);
    std::fill(w_.maximum, w_.maximum + tiles_ * kMaxLanes, rule_.softmax ? kHidden : 0.0f);
    std::fill(w_.sum, w_.sum + tiles_ * kTileRows * kStateRow, 0.0f);
    const int64_t i0 = query_of(block_.first), i1 = query_of(block_.last - 1) + 1;
    const KeyRange hull = mask_.hull(s_, i0, i1);
    const int64_t first = std::max(j_first, hull.first / kBlockKeys * kBlockKeys);
    for (int64_t j0 = first; j0 < std::min(j_last, hull.last); j0 += kBlockKeys) {
      const int count = static_cast<int>(std::min<int64_t>(kBlockKeys, s_.keys - j0));
      const Visibility seen = mask_.block(s_, i0, i1, j0, j0 + count);
      if (seen != Visibility::kEmpty) visit(j0, count, seen);
    }
  }

  RowResult result(int64_t row) const {
    if (!rule_.softmax) return {0.0f, 1.0f};
    const float slope = (rule_.plain() ? rule_.scale : 1.0f) * kLog2E;  // as the kernels have it
    const float top = w_.maximum[row / kTileRows * kMaxLanes + row % kTileRows];
    return {top == kHidden ? top : top * slope, kernels_.lane_sum(w_.sum + row * kStateRow)};
  }

  float* output(int64_t row) const { return w_.output + row * padded_width(p_.value_width); }

  void copy_to(const PartialRows& part) const {
    std::copy(w_.output, w_.output + rows() * padded_width(p_.value_width), part.output);
    for (int64_t r = 0; r < rows(); ++r) part.results[r] = result(r);
  }

 private:
  int64_t query_of(int64_t r) const { return row_of_work(p_, block_.key_head, r).query; }

  void pack_queries() {
    const float sign = p_.scale < 0.0f ? -1.0f : 1.0f;
    const auto pack = pairs_ ? kernels_.pack_tile_pairs : kernels_.pack_tile;
    for (int64_t t = 0; t < tiles_; ++t) {
      const TileRows& tile = rows_[t];
      const void* addresses[kTileRows];
      for (int r = 0; r < tile.count; ++r) {
        addresses[r] = query_address(p_, p_.query, s_, tile.rows[r].head, tile.rows[r].query);
      }
      pack(w_.query + t * w_.query_tile, addresses, tile.count, static_cast<int>(p_.query_width), p_.query.column,
           p_.query.dtype, sign);
    }
  }

  // Values can be read where they lie if vectors fit; copying them pays only where many tiles read the copy.
  bool reads_values_in_place() const {
    return !pairs_ && tiles_ <= kTilesWorthPacking && p_.value.dtype == UWAGA_FLOAT32 && p_.value.column == 1 &&
           p_.value_width % kMaxLanes == 0;
  }

  Block pack_block(int64_t j0, int count) {
    const bool ahead = tiles_ <= kTilesWorthPacking;
    const Rows keys{key_address(p_, p_.key, s_, block_.key_head, j0), p_.key.row, p_.key.column, p_.key.dtype, ahead};
    const Rows values{key_address(p_, p_.value, s_, block_.key_head, j0), p_.value.row, p_.value.column,
                      p_.value.dtype, ahead};
    (pairs_ ? kernels_.pack_columns_pairs : kernels_.pack_columns)(w_.keys, keys, count,
                                                                   static_cast<int>(p_.query_width));
    const int first_key = static_cast<int>(j0);
    if (reads_values_in_place()) {
      return {w_.keys, static_cast<const float*>(values.data), values.row, kernels_.strip, first_key, count};
    }
    (pairs_ ? kernels_.pack_rows_pairs : kernels_.pack_rows)(w_.values, values, count, kBlockKeys,
                                                             static_cast<int>(p_.value_width));
    return {w_.keys, w_.values, kernels_.strip, kBlockKeys * kernels_.strip, first_key, count};
  }

  bool values_are_finite(const Block& block) const {
    if (block.values == w_.values) {
      const auto all_finite = pairs_ ? packed_pairs_are_finite : packed_rows_are_finite;
      return all_finite(kernels_, w_.values, block.count, kBlockKeys, static_cast<int>(p_.value_width));
    }
    for (int n = 0; n < block.count; ++n) {
      if (!kernels_.all_finite(block.values + n * block.value_row, p_.value_width)) return false;
    }
    return true;
  }

  void visit(int64_t j0, int count, Visibility seen) {
    const Block block = pack_block(j0, count);
    const auto forward_tile = pairs_ ? kernels_.forward_tile_pairs : kernels_.forward_tile;
    int finite = -1;  // not looked yet
    for (int64_t t = 0; t < tiles_; ++t) {
      const TileRows& rows = rows_[t];
      TileView view;
      look_at_tile(p_, mask_, s_, rows, seen, j0, count, w_.bias, &view);
      if (view.empty) continue;
      if (view.masked) {
        const auto all_finite = pairs_ ? packed_pairs_are_finite : packed_rows_are_finite;
        if (finite < 0) finite = all_finite(kernels_, w_.values, count, kBlockKeys, static_cast<int>(p_.value_width));
        view.mask.guard = !finite;
      }
      const TileState state{w_.output + t * w_.output_tile, w_.maximum + t * kMaxLanes,
                            w_.sum + t * kTileRows * kStateRow};
      const ForwardTile tile{w_.query + t * w_.query_tile,
                             w_.scores,
                             rule_.biased ? w_.bias : nullptr,
                             rows.row_keys,
                             rows.count,
                             static_cast<int>(p_.query_width),
                             static_cast<int>(p_.value_width),
                             view.mask,
                             state};
      forward_tile(tile, block, rule_);
    }
  }

  const uwaga_problem& p_;
  const Mask& mask_;
  const Kernels& kernels_;
  const ScoreRule rule_;
  const RowBlock block_;
  const Sequence s_;
  Workspace w_;
  std::vector<TileRows> rows_;  // of each tile
  int64_t tiles_;
  bool pairs_;
};

class Forward {
 public:
  Forward(const uwaga_problem& p, const uwaga_forward_result& result)
      : p_(p), result_(result), mask_(p), kernels_(*active_level()), blocks_(row_blocks(p)) {}

  void run() {
    int64_t chunks = 0;
    for (const RowBlock& block : blocks_) chunks += chunk_count(sequence_of(p_, block.sequence));
    const int64_t blocks = static_cast<int64_t>(blocks_.size());
    if (p_.threads > 1 && blocks < 4 * p_.threads && chunks > blocks) return run_chunks(chunks);
    for_pieces(p_.threads, blocks, [&](int64_t n, int) { guarded([&] { run_block(blocks_[n]); }); });
    raise();
  }

 private:
  // Exceptions must not cross the thread pool.
  template <class Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (const std::bad_alloc&) {
      out_of_memory_.store(true);
    }
  }
  void raise() const {
    if (out_of_memory_.load()) throw std::bad_alloc();
  }

  void run_block(const RowBlock& block) {
    RowBlockPass pass(p_, mask_, kernels_, block);
    const int64_t chunks = chunk_count(pass.sequence());
    if (chunks <= 1) {
      pass.run(0, pass.sequence().keys);
      for (int64_t r = 0; r < pass.rows(); ++r) write(block, r, pass.output(r), pass.result(r));
      return;
    }
    thread_local Scratch scratch;
    PartialRows part = partial_rows(scratch.reserve(2 * partial_size(pass.rows())), pass.rows());
    PartialRows total = partial_rows(part.output + partial_size(pass.rows()), pass.rows());
    clear(total, pass.rows());
    for (int64_t c = 0; c < chunks; ++c) {
      pass.run(c * kChunkKeys, std::min(pass.sequence().keys, (c + 1) * kChunkKeys));
      pass.copy_to(part);
      merge(total, part, pass.rows());
    }
    for (int64_t r = 0; r < pass.rows(); ++r) {
      write(block, r, total.output + r * padded_width(p_.value_width), total.results[r]);
    }
  }

  // Few rows, many keys: every chunk is a piece of its own, merged afterwards in order.
  void run_chunks(int64_t pieces) {
    struct Piece {
      int64_t block, chunk;
      float* part;
    };
    std::vector<Piece> list;
    list.reserve(pieces);
    int64_t floats = 0;
    for (size_t n = 0; n < blocks_.size(); ++n) {
      const Sequence s = sequence_of(p_, blocks_[n].sequence);
      floats += chunk_count(s) * partial_size(blocks_[n].last - blocks_[n].first);
    }
    Scratch parts;
    float* next = parts.reserve(floats);
    std::vector<size_t> first_piece;
    for (size_t n = 0; n < blocks_.size(); ++n) {
      first_piece.push_back(list.size());
      for (int64_t c = 0; c < chunk_count(sequence_of(p_, blocks_[n].sequence)); ++c) {
        list.push_back({static_cast<int64_t>(n), c, next});
        next += partial_size(blocks_[n].last - blocks_[n].first);
      }
    }
    first_piece.push_back(list.size());
    for_pieces(p_.threads, static_cast<int64_t>(list.size()), [&](int64_t n, int) {
      guarded([&] {
        RowBlockPass pass(p_, mask_, kernels_, blocks_[list[n].block]);
        const int64_t first = list[n].chunk * kChunkKeys;
        pass.run(first, std::min(pass.sequence().keys, first + kChunkKeys));
        pass.copy_to(partial_rows(list[n].part, pass.rows()));
      });
    });
    raise();
    for_pieces(p_.threads, static_cast<int64_t>(blocks_.size()), [&](int64_t n, int) {
      guarded([&] {
        const int64_t rows = blocks_[n].last - blocks_[n].first;
        thread_local Scratch scratch;
        PartialRows total = partial_rows(scratch.reserve(partial_size(rows)), rows);
        clear(total, rows);
        for (size_t k = first_piece[n]; k < first_piece[n + 1]; ++k) merge(total, partial_rows(list[k].part, rows), rows);
        for (int64_t r = 0; r < rows; ++r) {
          write(blocks_[n], r, total.output + r * padded_width(p_.value_width), total.results[r]);
        }
      });
    });
    raise();
  }

  int64_t partial_size(int64_t rows) const { return rounded_up(rows * (padded_width(p_.value_width) + 2), 16); }
  PartialRows partial_rows(float* base, int64_t rows) const {
    return {base, reinterpret_cast<RowResult*>(base + rows * padded_width(p_.value_width))};
  }
  void clear(const PartialRows& total, int64_t rows) const {
    std::fill(total.output, total.output + rows * padded_width(p_.value_width), 0.0f);
    std::fill(total.results, total.results + rows, RowResult{p_.normalize ? kHidden : 0.0f, 0.0f});
  }
  void merge(const PartialRows& total, const PartialRows& part, int64_t rows) const {
    kernels_.merge_rows(total.output, total.results, part.output, part.results, static_cast<int>(rows),
                        static_cast<int>(p_.value_width));
  }

  // Normalises row `r` of a block and writes it in the caller's type.
  void write(const RowBlock& block, int64_t r, const float* row, RowResult sum) const {
    const Sequence s = sequence_of(p_, block.sequence);
    const RowOfWork at = row_of_work(p_, block.key_head, block.first + r);
    float factor = 1.0f / (1.0f - p_.dropout), lse = 0.0f;
    if (p_.normalize) {
      const bool sees_none = sum.sum == 0.0f;
      double top = sees_none ? kHidden : sum.offset * kLn2;
      if (p_.sinks) {  // one more key, with a logit but no value
        const double sink = p_.sinks[at.head], highest = std::max(top, sink);
        const double share = sees_none ? 0.0 : std::exp(top - highest);
        factor *= static_cast<float>(share);
        sum.sum = static_cast<float>(sum.sum * share + std::exp(sink - highest));
        top = highest;
      }
      if (result_.lse.data) lse = sum.sum == 0.0f ? kHidden : log_sum(top, sum.sum);
      factor = sees_none ? 0.0f : factor / sum.sum;
    }
    kernels_.write_row(query_address(p_, result_.output, s, at.head, at.query), result_.output.column,
                       result_.output.dtype, row, factor, static_cast<int>(p_.value_width));
    if (result_.lse.data) *reinterpret_cast<float*>(query_address(p_, result_.lse, s, at.head, at.query)) = lse;
  }

  // top + log(sum), rounded once: a float logarithm of a number near 1 loses nothing that shows.
  static float log_sum(double top, float sum) {
    int exponent;
    const float fraction = std::frexp(sum, &exponent);
    return static_cast<float>(top + exponent * kLn2 + std::log(fraction));
  }

  const uwaga_problem& p_;
  const uwaga_forward_result& result_;
  const Mask mask_;
  const Kernels& kernels_;
  const std::vector<RowBlock> blocks_;
  std::atomic<bool> out_of_memory_{false};
};

}  // namespace

void forward(const uwaga_problem& problem, const uwaga_forward_result& result) { Forward(problem, result).run(); }

}  // namespace uwaga
