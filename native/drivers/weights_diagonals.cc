// The weight on every diagonal of a map: sums over all pairs with the same distance j - i.
//
// A task is some rows of a head and all keys that they see. A diagonal is summed over 96 rows and 64 keys in float32 and over these
// blocks exactly, which makes the sums independent of tasks, threads and parts.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/exact_sum.h"
#include "base/parallel.h"
#include "drivers/drivers.h"
#include "drivers/head_weights.h"

namespace uwaga {
namespace {

constexpr int64_t kTaskRows = 4 * kRowsAtOnce;

// Of the pairs of the queries [first_row, first_row + kTaskRows) and the keys that they see.
class DiagonalSums {
 public:
  DiagonalSums(const uwaga_problem& p, const uwaga_softmax& softmax, int64_t b, int64_t h, int64_t first_row) {
    HeadWeights weights(p, softmax, b, h, 0.0f, 1);
    const int64_t last_row = std::min(first_row + kTaskRows, p.queries);
    std::vector<int64_t> queries(last_row - first_row);
    for (size_t n = 0; n < queries.size(); ++n) queries[n] = first_row + static_cast<int64_t>(n);
    // The keys that the first rows see may lie before or after those of the last ones.
    int64_t first_key = p.keys, last_key = 0;
    const auto set_rows = [&](int64_t i) {
      weights.set_rows(queries.data() + i, std::min<int64_t>(kRowsAtOnce, last_row - first_row - i), nullptr, 0);
      return weights.key_range();
    };
    for (int64_t i = 0; i < last_row - first_row; i += kRowsAtOnce) {
      const KeyRange seen = set_rows(i);
      if (seen.first >= seen.last) continue;
      first_key = std::min(first_key, seen.first), last_key = std::max(last_key, seen.last);
    }
    if (first_key >= last_key) return;
    first_key = first_key / kBlockKeys * kBlockKeys;
    last_key = std::min(p.keys, (last_key + kBlockKeys - 1) / kBlockKeys * kBlockKeys);
    first_distance_ = first_key - last_row + 1;
    totals_.assign(last_key - first_key + last_row - first_row - 1, ExactSum());
    for (int64_t i = 0; i < last_row - first_row; i += kRowsAtOnce) {
      const KeyRange seen = set_rows(i);
      const int64_t rows = std::min<int64_t>(kRowsAtOnce, last_row - first_row - i);
      for (int64_t j0 = seen.first / kBlockKeys * kBlockKeys; j0 < seen.last; j0 += kBlockKeys) {
        add_block(weights, first_row + i, rows, j0, std::min(j0 + kBlockKeys, p.keys));
      }
    }
  }

  // Adds to totals[n], that of the distance n - (Q - 1).
  void add_to(ExactSum* totals, int64_t queries) const {
    ExactSum* to = totals + first_distance_ + queries - 1;
    for (size_t n = 0; n < totals_.size(); ++n) to[n].add(totals_[n]);
  }

 private:
  void add_block(HeadWeights& weights, int64_t first_row, int64_t rows, int64_t j0, int64_t j1) {
    const Visibility seen = weights.visibility(j0, j1);
    if (seen == Visibility::kEmpty) return;
    weights.pack_keys(0, j0);
    // sums[n] is that of the distance j0 - (the last row) + n; the kernel adds whole vectors, with zeros past the last key.
    float sums[kRowsAtOnce + kBlockKeys] = {};
    for (int64_t t = 0; t < weights.tiles(); ++t) {
      TileVisibility view;
      if (!weights.tile(t, 0, j0, seen, &view)) continue;
      const TileRows& tile = weights.tile_rows(t);
      for (int r = 0; r < tile.count; ++r) {
        float* row = sums + first_row + rows - 1 - tile.rows[r].query;
        weights.kernels().add_rows(row, weights.weights(), r, r + 1, view.mask.first, view.mask.last);
      }
    }
    ExactSum* to = totals_.data() + (j0 - (first_row + rows - 1)) - first_distance_;
    for (int64_t n = 0; n < rows + j1 - j0 - 1; ++n) to[n].add(sums[n]);
  }

  int64_t first_distance_ = 0;
  std::vector<ExactSum> totals_;  // of the distances first_distance_ + n
};

void sums_of_head(const uwaga_problem& p, const uwaga_softmax& softmax, int64_t b, int64_t h, int threads,
                  const uwaga_tensor& out, const uwaga_exact_sums* part) {
  std::vector<ExactSum> own(part ? 0 : p.queries + p.keys - 1);
  ExactSum* const totals = part ? sums_of(*part, b * p.query_heads + h) : own.data();
  // Without keys no query sees any: the sums stay 0.
  const int64_t tasks = p.keys ? (p.queries + kTaskRows - 1) / kTaskRows : 0, at_once = 2 * threads;
  for (int64_t first = 0; first < tasks; first += at_once) {
    std::vector<std::unique_ptr<DiagonalSums>> parts(std::min(at_once, tasks - first));
    parallel_for(threads, static_cast<int64_t>(parts.size()), [&](int64_t n, int) {
      parts[n] = std::make_unique<DiagonalSums>(p, softmax, b, h, (first + n) * kTaskRows);
    });
    for (const auto& sums : parts) sums->add_to(totals, p.queries);
  }
  if (part) return;
  float* to = static_cast<float*>(out.data) + b * out.batch + h * out.head;
  for (size_t n = 0; n < own.size(); ++n) to[static_cast<int64_t>(n) * out.row] = static_cast<float>(own[n].value());
}

}  // namespace

void diagonal_sums(const uwaga_problem& p, const uwaga_softmax& softmax, const uwaga_tensor& out,
                   const uwaga_exact_sums* part) {
  if (p.queries + p.keys == 0) return;
  const int64_t heads = p.sequences * p.query_heads;
  const int threads = useful_threads(p);
  const bool by_head = heads >= 2 * threads;
  const auto run = [&](int64_t n, int within) {
    sums_of_head(p, softmax, n / p.query_heads, n % p.query_heads, within, out, part);
  };
  if (by_head) return parallel_for(threads, heads, [&](int64_t n, int) { run(n, 1); });
  for (int64_t n = 0; n < heads; ++n) run(n, threads);
}

}  // namespace uwaga
