// The forward pass: which rows meet which keys, in what order, on which thread.
//
// Work is cut into row blocks (some hundred rows of one sequence and key head). A row block visits its visible key
// blocks in order; each block of 64 keys is packed once and serves all tiles of the row block. Keys are further grouped
// into chunks of 2,048: each chunk has a softmax of its own, and chunks are merged in order. So a row's sums associate
// the same way whether its chunks ran one after another or, when there are few rows (decoding), on many threads.
#include "drivers/drivers.h"

#include <string.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "base/scratch.h"
#include "drivers/forward_rows.h"

namespace uwaga {
namespace {

constexpr int64_t kChunkKeys = 2048;
constexpr double kLn2 = 0.693147180559945309;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

int64_t chunk_count(const Sequence& s) { return (s.keys + kChunkKeys - 1) / kChunkKeys; }

// The queries and outputs of a row block, with one packed block of keys, stay in the second-level cache, and packing is
// paid for by many rows; smaller blocks where these would leave threads without work.
constexpr int64_t kRowBlockFloats = 96 * 1024;

int64_t rows_per_block(const uwaga_problem& p) {
  const int64_t group = p.query_heads / p.key_heads;
  int64_t rows = 768;
  const int64_t queries = p.rows.data ? p.rows.count : p.queries;
  const auto blocks = [&] { return p.sequences * p.key_heads * ((queries * group + rows - 1) / rows); };
  while (rows > 48 && (rows * (p.query_width + p.value_width) > kRowBlockFloats || blocks() < 4 * p.threads)) rows /= 2;
  return rows;
}

std::vector<RowBlock> row_blocks(const uwaga_problem& p) {
  const int64_t rows = rows_per_block(p), group = p.query_heads / p.key_heads;
  std::vector<RowBlock> blocks;
  for (int64_t b = 0; b < p.sequences; ++b) {
    const int64_t all = selected_query_count(p, sequence_of(p, b)) * group;
    for (int64_t g = 0; g < p.key_heads; ++g) {
      // Last rows first: under a causal mask they are the longest pieces, which should not come last.
      for (int64_t r = (all - 1) / rows * rows; all > 0 && r >= 0; r -= rows) {
        blocks.push_back({b, g, r, std::min(all, r + rows)});
      }
    }
  }
  if (p.query_offsets.data || p.key_offsets.data) {
    std::stable_sort(blocks.begin(), blocks.end(), [&](const RowBlock& a, const RowBlock& b) {
      return (a.last - a.first) * sequence_of(p, a.sequence).keys > (b.last - b.first) * sequence_of(p, b.sequence).keys;
    });
  }
  return blocks;
}

class Forward {
 public:
  Forward(const uwaga_problem& p, const uwaga_forward_result& result, const uwaga_row_statistics* wanted)
      : p_(p),
        result_(result),
        wanted_(wanted),
        mask_(p),
        kernels_(*active_level()),
        threads_(useful_threads(p)),
        blocks_(row_blocks(p)),
        far_keys_(p, mask_, kernels_, threads_) {}

  void run() {
    int64_t chunks = 0;
    for (const RowBlock& block : blocks_) chunks += chunk_count(sequence_of(p_, block.sequence));
    const int64_t blocks = static_cast<int64_t>(blocks_.size());
    if (threads_ > 1 && blocks < 4 * threads_ && chunks > blocks) return run_chunks(chunks);
    parallel_for(threads_, blocks, [&](int64_t n, int) { run_block(blocks_[n]); });
  }

 private:
  void run_block(const RowBlock& block) {
    RowBlockPass pass(p_, mask_, kernels_, far_keys_, block, wanted_);
    const int64_t chunks = chunk_count(pass.sequence());
    RowStatisticsTable found(wanted_, pass.rows());
    if (chunks <= 1) {
      pass.run(0, pass.sequence().keys);
      for (int64_t r = 0; wanted_ && r < pass.rows(); ++r) {
        found.row(r)->moments = pass.moments(r);
        pass.copy_top(r, found.row(r));
      }
      for (int64_t t = 0; t < pass.tiles(); ++t) {
        RowResult results[kTileRows];
        pass.results(t, results);
        const int64_t r = t * kTileRows;
        write(block, pass.sequence(), r, pass.rows_of_tile(t), pass.output(r), results, found.row(r));
      }
      return;
    }
    thread_local Scratch scratch;
    RowStatisticsTable found_in_part(wanted_, pass.rows());
    PartialRows part =
        partial_rows(scratch.reserve(2 * partial_size(pass.rows())), pass.rows(), found_in_part.row(0));
    PartialRows total = partial_rows(part.output + partial_size(pass.rows()), pass.rows(), found.row(0));
    found.clear();
    clear(total, pass.rows());
    for (int64_t c = 0; c < chunks; ++c) {
      pass.run(c * kChunkKeys, std::min(pass.sequence().keys, (c + 1) * kChunkKeys));
      pass.copy_to(part);
      merge(total, part, pass.rows());
    }
    for (int64_t r = 0; wanted_ && r < pass.rows(); ++r) pass.copy_top(r, found.row(r));
    write_all(block, pass.sequence(), total, found);
  }

  // Few rows, many keys: every chunk is a piece of its own, merged afterwards in order.
  void run_chunks(int64_t pieces) {
    struct Piece {
      int64_t block, chunk;
      float* part;
      int64_t first_finding;
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
    int64_t findings = 0;
    for (size_t n = 0; n < blocks_.size(); ++n) {
      first_piece.push_back(list.size());
      for (int64_t c = 0; c < chunk_count(sequence_of(p_, blocks_[n].sequence)); ++c) {
        const int64_t rows = blocks_[n].last - blocks_[n].first;
        list.push_back({static_cast<int64_t>(n), c, next, findings});
        next += partial_size(rows);
        findings += rows;
      }
    }
    first_piece.push_back(list.size());
    RowStatisticsTable found_in_parts(wanted_, findings);
    const auto part_of = [&](const Piece& piece, int64_t rows) {
      return partial_rows(piece.part, rows, found_in_parts.row(piece.first_finding));
    };
    parallel_for(threads_, static_cast<int64_t>(list.size()), [&](int64_t n, int) {
      RowBlockPass pass(p_, mask_, kernels_, far_keys_, blocks_[list[n].block], wanted_);
      const int64_t first = list[n].chunk * kChunkKeys;
      pass.run(first, std::min(pass.sequence().keys, first + kChunkKeys));
      const PartialRows part = part_of(list[n], pass.rows());
      pass.copy_to(part);
      for (int64_t r = 0; wanted_ && r < pass.rows(); ++r) pass.copy_top(r, &part.findings[r]);
    });
    parallel_for(threads_, static_cast<int64_t>(blocks_.size()), [&](int64_t n, int) {
      const int64_t rows = blocks_[n].last - blocks_[n].first;
      const Sequence s = sequence_of(p_, blocks_[n].sequence);
      thread_local Scratch scratch;
      RowStatisticsTable found(wanted_, rows);
      found.clear();
      PartialRows total = partial_rows(scratch.reserve(partial_size(rows)), rows, found.row(0));
      clear(total, rows);
      for (size_t k = first_piece[n]; k < first_piece[n + 1]; ++k) {
        const PartialRows part = part_of(list[k], rows);
        merge(total, part, rows);
        for (int64_t r = 0; wanted_ && r < rows; ++r) merge_top(&total.findings[r], part.findings[r], wanted_->top);
      }
      write_all(blocks_[n], s, total, found);
    });
  }

  int64_t partial_size(int64_t rows) const { return rounded_up(rows * (padded_width(p_.value_width) + 2), 16); }
  PartialRows partial_rows(float* base, int64_t rows, RowStatistics* findings) const {
    return {base, reinterpret_cast<RowResult*>(base + rows * padded_width(p_.value_width)), findings};
  }
  void clear(const PartialRows& total, int64_t rows) const {
    std::fill(total.output, total.output + rows * padded_width(p_.value_width), 0.0f);
    std::fill(total.results, total.results + rows, RowResult{p_.normalize ? kMinusInfinity : 0.0f, 0.0f});
  }
  void merge(const PartialRows& total, const PartialRows& part, int64_t rows) const {
    for (int64_t r = 0; wanted_ && r < rows; ++r) {
      merge_moments(total.results[r], &total.findings[r], part.results[r], part.findings[r]);
    }
    kernels_.merge_rows(total.output, total.results, part.output, part.results, static_cast<int>(rows),
                        static_cast<int>(p_.value_width));
  }

  void write_all(const RowBlock& block, const Sequence& s, const PartialRows& total, RowStatisticsTable& found) const {
    const int64_t rows = block.last - block.first;
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const int count = static_cast<int>(std::min<int64_t>(kTileRows, rows - r));
      write(block, s, r, count, total.output + r * padded_width(p_.value_width), total.results + r, found.row(r));
    }
  }

  // Normalises up to six rows of a block, from row `r` on, and writes them in the caller's type.
  void write(const RowBlock& block, const Sequence& s, int64_t r, int count, const float* rows, const RowResult* sums,
             const RowStatistics* found) const {
    void* places[kTileRows];
    float factors[kTileRows];
    for (int n = 0; n < count; ++n) {
      const GroupedRow at = grouped_row(p_, block.key_head, block.first + r + n);
      factors[n] = finish_row(s, at, sums[n], found ? found + n : nullptr);
      if (result_.output.data) places[n] = query_address(p_, result_.output, s, at.head, at.query);
    }
    if (!result_.output.data) return;
    kernels_.write_rows(places, result_.output.column, result_.output.dtype, rows, padded_width(p_.value_width),
                        factors, count, static_cast<int>(p_.value_width));
  }

  // What the output of a row is to be multiplied by; writes its lse and its statistics.
  float finish_row(const Sequence& s, GroupedRow at, RowResult sum, const RowStatistics* found) const {
    float factor = growth_, lse = 0.0f;
    if (p_.normalize) {
      const RowResult without_sink = sum;
      const bool sees_none = sum.sum == 0.0f;
      double top = sees_none ? kMinusInfinity : sum.maximum;
      const double sink = p_.sinks.data ? p_.sinks.data[at.head] : kMinusInfinity;
      if (sink != kMinusInfinity) {  // one more key, with a logit but no value
        const double highest = std::max(top, sink);
        const double share = sees_none ? 0.0 : std::exp(top - highest);
        factor *= static_cast<float>(share);
        sum.sum = static_cast<float>(sum.sum * share + std::exp(sink - highest));
        top = highest;
      }
      if (result_.lse.data) lse = sum.sum == 0.0f ? kMinusInfinity : log_sum(top, sum.sum);
      factor = sees_none ? 0.0f : factor / sum.sum;
      if (found) write_statistics(p_, *wanted_, s, at, without_sink, *found, {top, sum.sum});
    }
    if (result_.lse.data) *reinterpret_cast<float*>(query_address(p_, result_.lse, s, at.head, at.query)) = lse;
    return factor;
  }

  // top + log(sum), rounded once: a float logarithm of a number near 1 loses nothing that shows.
  static float log_sum(double top, float sum) {
    uint32_t word;
    memcpy(&word, &sum, sizeof word);
    int exponent = static_cast<int>(word >> 23) - 126;
    if (exponent < -125 || exponent > 128) {  // below the smallest normal number, not finite, or negative
      sum = std::frexp(sum, &exponent);
    } else {
      word = (word & 0x7FFFFF) | 0x3F000000;  // in [1/2, 1)
      memcpy(&sum, &word, sizeof word);
    }
    return static_cast<float>(top + exponent * kLn2 + std::log(sum));
  }

  const uwaga_problem& p_;
  const uwaga_forward_result& result_;
  const uwaga_row_statistics* const wanted_;  // or null
  const Mask mask_;
  const Kernels& kernels_;
  const int threads_;
  const std::vector<RowBlock> blocks_;
  const FarKeys far_keys_;
  const float growth_ = 1.0f / (1.0f - p_.dropout);
};

}  // namespace

void forward(const uwaga_problem& problem, const uwaga_forward_result& result, const uwaga_row_statistics* wanted) {
  Forward(problem, result, wanted).run();
}

}  // namespace uwaga
