// The forward pass: how rows and keys are divided into tasks, in which order these run, and how their results are merged.
//
// A task is a row block: some hundred rows of one sequence and key head. It visits the blocks of 64 keys that its mask leaves,
// in order; each is packed once for all tiles of the row block. Keys are further grouped into chunks of 2,048 with a softmax of
// their own, which are merged in order. So the sums of a row associate in the same way whether its chunks ran one after another
// or, where there are few rows (decoding), on several threads.
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

constexpr int64_t kChunkKeys = UWAGA_PART_KEYS;
constexpr double kLn2 = 0.693147180559945309;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

int64_t chunk_count(const Sequence& s) { return (s.keys + kChunkKeys - 1) / kChunkKeys; }

// Rows per block: the queries and outputs of a row block and one packed block of keys fit into the L2 cache, and many rows
// share the cost of packing. Fewer rows where threads would otherwise have no task.
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
      // Last rows first: under a causal mask they take longest, and a long task at the end leaves other threads idle.
      for (int64_t r = (all - 1) / rows * rows; all > 0 && r >= 0; r -= rows) {
        blocks.push_back({b, g, r, std::min(all, r + rows)});
      }
    }
  }
  if (p.query_offsets.data || p.key_offsets.data) {
    std::stable_sort(blocks.begin(), blocks.end(), [&](const RowBlock& a, const RowBlock& b) {
      return (a.last - a.first) * sequence_of(p, a.sequence).keys >
             (b.last - b.first) * sequence_of(p, b.sequence).keys;
    });
  }
  return blocks;
}

// Of keys that come in parts: the sums of all rows so far, of the outputs, the softmax and the statistics.
struct PartSums {
  float* outputs;
  float* statistics;  // or null
  bool continues, is_last;
};

class Forward {
 public:
  Forward(const uwaga_problem& p, const uwaga_forward_result& result, const uwaga_row_statistics* wanted,
          const PartSums* sums)
      : p_(p),
        result_(result),
        wanted_(wanted),
        sums_(sums),
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
    RowStatisticsTable statistics(wanted_, pass.rows());
    if (chunks <= 1 && !sums_) {
      pass.run(0, pass.sequence().keys);
      for (int64_t r = 0; wanted_ && r < pass.rows(); ++r) {
        statistics.row(r)->moments = pass.moments(r);
        pass.copy_top(r, statistics.row(r));
      }
      for (int64_t t = 0; t < pass.tiles(); ++t) {
        RowResult results[kMaxTileRows];
        pass.results(t, results);
        const int64_t r = t * pass.tile_size();
        write(block, pass.sequence(), r, pass.rows_of_tile(t), pass.output(r), results, statistics.row(r));
      }
      return;
    }
    thread_local Scratch scratch;
    RowStatisticsTable part_statistics(wanted_, pass.rows());
    PartialRows part =
        partial_rows(scratch.reserve(2 * partial_size(pass.rows())), pass.rows(), part_statistics.row(0));
    const PartialRows total = total_rows(block, part.output + partial_size(pass.rows()), statistics);
    for (int64_t c = 0; c < chunks; ++c) {
      pass.run(c * kChunkKeys, std::min(pass.sequence().keys, (c + 1) * kChunkKeys));
      pass.copy_to(part);
      merge(total, part, pass.rows());
    }
    for (int64_t r = 0; wanted_ && r < pass.rows(); ++r) {
      pass.copy_top(r, part_statistics.row(r));
      merge_top(statistics.row(r), *part_statistics.row(r), wanted_->top);
    }
    write_all(block, pass.sequence(), total, statistics);
  }

  // Few rows and many keys: a task is one chunk of a row block; the chunks are merged afterwards, in order.
  void run_chunks(int64_t tasks) {
    struct Task {
      int64_t block, chunk;
      float* part;
      int64_t first_row;
    };
    std::vector<Task> list;
    list.reserve(tasks);
    int64_t floats = 0;
    for (size_t n = 0; n < blocks_.size(); ++n) {
      const Sequence s = sequence_of(p_, blocks_[n].sequence);
      floats += chunk_count(s) * partial_size(blocks_[n].last - blocks_[n].first);
    }
    Scratch parts;
    float* next = parts.reserve(floats);
    std::vector<size_t> first_task;
    int64_t all_rows = 0;
    for (size_t n = 0; n < blocks_.size(); ++n) {
      first_task.push_back(list.size());
      for (int64_t c = 0; c < chunk_count(sequence_of(p_, blocks_[n].sequence)); ++c) {
        const int64_t rows = blocks_[n].last - blocks_[n].first;
        list.push_back({static_cast<int64_t>(n), c, next, all_rows});
        next += partial_size(rows);
        all_rows += rows;
      }
    }
    first_task.push_back(list.size());
    RowStatisticsTable part_statistics(wanted_, all_rows);
    const auto part_of = [&](const Task& task, int64_t rows) {
      return partial_rows(task.part, rows, part_statistics.row(task.first_row));
    };
    parallel_for(threads_, static_cast<int64_t>(list.size()), [&](int64_t n, int) {
      RowBlockPass pass(p_, mask_, kernels_, far_keys_, blocks_[list[n].block], wanted_);
      const int64_t first = list[n].chunk * kChunkKeys;
      pass.run(first, std::min(pass.sequence().keys, first + kChunkKeys));
      const PartialRows part = part_of(list[n], pass.rows());
      pass.copy_to(part);
      for (int64_t r = 0; wanted_ && r < pass.rows(); ++r) pass.copy_top(r, &part.statistics[r]);
    });
    parallel_for(threads_, static_cast<int64_t>(blocks_.size()), [&](int64_t n, int) {
      const int64_t rows = blocks_[n].last - blocks_[n].first;
      const Sequence s = sequence_of(p_, blocks_[n].sequence);
      thread_local Scratch scratch;
      RowStatisticsTable statistics(wanted_, rows);
      const PartialRows total = total_rows(blocks_[n], scratch.reserve(partial_size(rows)), statistics);
      for (size_t k = first_task[n]; k < first_task[n + 1]; ++k) {
        const PartialRows part = part_of(list[k], rows);
        merge(total, part, rows);
        for (int64_t r = 0; wanted_ && r < rows; ++r) merge_top(&total.statistics[r], part.statistics[r], wanted_->top);
      }
      write_all(blocks_[n], s, total, statistics);
    });
  }

  int64_t partial_size(int64_t rows) const { return rounded_up(rows * (padded_width(p_.value_width) + 2), 16); }
  PartialRows partial_rows(float* base, int64_t rows, RowStatistics* statistics) const {
    return {base, reinterpret_cast<RowResult*>(base + rows * padded_width(p_.value_width)), statistics};
  }
  // Where the sums of a row block over its chunks are: in `scratch`, or in the caller's memory, whose sums of earlier parts continue.
  PartialRows total_rows(const RowBlock& block, float* scratch, RowStatisticsTable& statistics) const {
    const int64_t rows = block.last - block.first;
    PartialRows total = partial_rows(scratch, rows, statistics.row(0));
    if (sums_) {
      const PartialRows given = partial_rows(sums_->outputs, p_.sequences * p_.key_heads * rows_of_unit(), nullptr);
      total.output = given.output + first_of_all(block) * padded_width(p_.value_width);
      total.results = given.results + first_of_all(block);
    }
    if (!sums_ || !sums_->continues) {
      clear(total, rows);
      statistics.clear();
    } else if (wanted_) {
      statistics.read(statistics_of(block, statistics));
    }
    return total;
  }
  int64_t rows_of_unit() const { return p_.queries * (p_.query_heads / p_.key_heads); }
  // The first row of a block among the rows of all blocks.
  int64_t first_of_all(const RowBlock& block) const {
    return (block.sequence * p_.key_heads + block.key_head) * rows_of_unit() + block.first;
  }
  float* statistics_of(const RowBlock& block, const RowStatisticsTable& statistics) const {
    return sums_->statistics + first_of_all(block) * (statistics.size() / (block.last - block.first));
  }
  void clear(const PartialRows& total, int64_t rows) const {
    std::fill(total.output, total.output + rows * padded_width(p_.value_width), 0.0f);
    std::fill(total.results, total.results + rows, RowResult{p_.normalize ? kMinusInfinity : 0.0f, 0.0f});
  }
  void merge(const PartialRows& total, const PartialRows& part, int64_t rows) const {
    for (int64_t r = 0; wanted_ && r < rows; ++r) {
      merge_moments(total.results[r], &total.statistics[r], part.results[r], part.statistics[r]);
    }
    kernels_.merge_rows(total.output, total.results, part.output, part.results, static_cast<int>(rows),
                        static_cast<int>(p_.value_width));
  }

  void write_all(const RowBlock& block, const Sequence& s, const PartialRows& total,
                 RowStatisticsTable& statistics) const {
    if (sums_ && wanted_) statistics.write(statistics_of(block, statistics));
    if (sums_ && !sums_->is_last) return;
    const int64_t rows = block.last - block.first;
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const int count = static_cast<int>(std::min<int64_t>(kTileRows, rows - r));
      write(block, s, r, count, total.output + r * padded_width(p_.value_width), total.results + r, statistics.row(r));
    }
  }

  // Normalises some rows of a block, from row `r` on, and writes them in the caller's type.
  void write(const RowBlock& block, const Sequence& s, int64_t r, int count, const float* rows, const RowResult* sums,
             const RowStatistics* statistics) const {
    void* places[kMaxTileRows];
    float factors[kMaxTileRows];
    for (int n = 0; n < count; ++n) {
      const GroupedRow at = grouped_row(p_, block.key_head, block.first + r + n);
      factors[n] = finish_row(s, at, sums[n], statistics ? statistics + n : nullptr);
      if (result_.output.data) places[n] = query_address(p_, result_.output, s, at.head, at.query);
    }
    if (!result_.output.data) return;
    kernels_.write_rows(places, result_.output.column, result_.output.dtype, rows, padded_width(p_.value_width),
                        factors, count, static_cast<int>(p_.value_width));
  }

  // Writes the lse and the statistics of a row, and returns the factor that normalises its output.
  float finish_row(const Sequence& s, GroupedRow at, RowResult sum, const RowStatistics* statistics) const {
    float factor = inverse_keep_, lse = 0.0f;
    if (p_.normalize) {
      const RowResult without_sink = sum;
      const bool sees_none = sum.sum == 0.0f;
      double top = sees_none ? kMinusInfinity : sum.maximum;
      const double sink = p_.sinks.data ? p_.sinks.data[at.head] : kMinusInfinity;
      if (sink != kMinusInfinity) {  // the sink: one more key, with a logit and no value
        const double highest = std::max(top, sink);
        const double share = sees_none ? 0.0 : std::exp(top - highest);
        factor *= static_cast<float>(share);
        sum.sum = static_cast<float>(sum.sum * share + std::exp(sink - highest));
        top = highest;
      }
      if (result_.lse.data) lse = sum.sum == 0.0f ? kMinusInfinity : log_sum(top, sum.sum);
      factor = sees_none ? 0.0f : factor / sum.sum;
      if (statistics) write_statistics(p_, *wanted_, s, at, without_sink, *statistics, {top, sum.sum});
    }
    if (result_.lse.data) *reinterpret_cast<float*>(query_address(p_, result_.lse, s, at.head, at.query)) = lse;
    return factor;
  }

  // top + log(sum), rounded once. The float logarithm is taken of the mantissa alone, where its error does not show.
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
  const PartSums* const sums_;                // or null
  const Mask mask_;
  const Kernels& kernels_;
  const int threads_;
  const std::vector<RowBlock> blocks_;
  const FarKeys far_keys_;
  const float inverse_keep_ = 1.0f / (1.0f - p_.dropout);
};

}  // namespace

void forward(const uwaga_problem& problem, const uwaga_forward_result& result, const uwaga_row_statistics* wanted,
             const uwaga_forward_sums* sums) {
  if (!sums) return Forward(problem, result, wanted, nullptr).run();
  const PartSums given{sums->sums.data, nullptr, sums->continues != 0, result.output.data != nullptr};
  Forward(problem, result, wanted, &given).run();
}

void rows_part(const uwaga_problem& problem, const uwaga_forward_result& result, const uwaga_row_statistics& wanted,
               const uwaga_row_sums& sums) {
  const int64_t rows = problem.sequences * problem.query_heads * problem.queries;
  const int64_t of_outputs = rows * (padded_width(problem.value_width) + 2);
  const PartSums given{sums.sums.data, sums.sums.data + of_outputs, sums.continues != 0, sums.is_last != 0};
  Forward(problem, result, &wanted, &given).run();
}

}  // namespace uwaga
