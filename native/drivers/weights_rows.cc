// Functions of the weights computed row by row: entries of a selection, and sums over the keys of a second mask.
#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "drivers/drivers.h"
#include "drivers/head_weights.h"

namespace uwaga {
namespace {

// Keys per task of a rectangle: so many that packing the rows costs little, so few that a single row of a long sequence gives
// every thread a task.
constexpr int64_t kTaskKeys = 4096;

struct Task {
  int64_t sequence, head;  // of a Rectangle: indices into the selection
  int64_t first_row, last_row;
  int64_t first_key, last_key;
};

// The part of the increasing array `keys` that lies in [first_key, last_key).
struct KeySlice {
  const int64_t *first, *last;
  KeySlice(const int64_t* begin, const int64_t* end, int64_t first_key, int64_t last_key)
      : first(std::lower_bound(begin, end, first_key)), last(std::lower_bound(first, end, last_key)) {}
  bool empty() const { return first == last; }
};

class Rectangle {
 public:
  Rectangle(const uwaga_problem& p, const uwaga_softmax& softmax, const uwaga_selection& chosen,
            const uwaga_integers& keys, const uwaga_tensor& out)
      : p_(p), softmax_(softmax), chosen_(chosen), keys_(keys.data), keys_end_(keys.data + keys.count), out_(out) {}

  std::vector<Task> tasks() const {
    std::vector<Task> list;
    for (int64_t b = 0; b < chosen_.sequences.count; ++b) {
      for (int64_t h = 0; h < chosen_.heads.count; ++h) {
        for (int64_t i = 0; i < chosen_.queries.count; i += kRowsAtOnce) {
          for (int64_t j = 0; j < p_.keys; j += kTaskKeys) {
            const Task task{
                b, h, i, std::min(i + kRowsAtOnce, chosen_.queries.count), j, std::min(j + kTaskKeys, p_.keys)};
            if (!keys_of(task.first_key, task.last_key).empty()) list.push_back(task);
          }
        }
      }
    }
    return list;
  }

  // An estimate of the multiply-adds: whole blocks of keys are computed; packing a block costs about as much as eight rows.
  double work(const Task& task) const {
    const KeySlice part = keys_of(task.first_key, task.last_key);
    const int64_t span = part.last[-1] - part.first[0] + kBlockKeys, most = (part.last - part.first) * kBlockKeys;
    return static_cast<double>(std::min(span, most) * (task.last_row - task.first_row + 8) * p_.query_width);
  }

  void run(const Task& task) const {
    HeadWeights weights(p_, softmax_, chosen_.sequences.data[task.sequence], chosen_.heads.data[task.head], 0.0f, 1);
    weights.set_rows(chosen_.queries.data + task.first_row, task.last_row - task.first_row, nullptr, 0);
    for (int64_t j0 = task.first_key; j0 < task.last_key; j0 += kBlockKeys) {
      const int64_t j1 = std::min(j0 + kBlockKeys, task.last_key);
      const KeySlice part = keys_of(j0, j1);
      if (part.empty()) continue;
      const Visibility seen = weights.visibility(j0, j1);
      if (seen == Visibility::kEmpty) continue;
      weights.pack_keys(0, j0);
      for (int64_t t = 0; t < weights.tiles(); ++t) {
        TileVisibility view;
        if (weights.tile(t, 0, j0, seen, &view)) copy(task, t, j0, part, view, weights);
      }
    }
  }

 private:
  KeySlice keys_of(int64_t first, int64_t last) const { return {keys_, keys_end_, first, last}; }

  void copy(const Task& task, int64_t t, int64_t j0, const KeySlice& part, const TileVisibility& view,
            const HeadWeights& weights) const {
    for (int r = 0; r < weights.tile_rows(t).count; ++r) {
      const int64_t row = task.first_row + t * weights.tile_size() + r;
      float* out = static_cast<float*>(out_.data) + task.sequence * out_.batch + task.head * out_.head + row * out_.row;
      for (const int64_t* key = part.first; key < part.last; ++key) {
        const int64_t n = *key - j0;
        if (view.bits[r] >> n & 1) out[(key - keys_) * out_.column] = weights.weights()[r * kBlockKeys + n];
      }
    }
  }

  const uwaga_problem& p_;
  const uwaga_softmax& softmax_;
  const uwaga_selection& chosen_;
  const int64_t *keys_, *keys_end_;
  const uwaga_tensor& out_;
};

class Mass {
 public:
  Mass(const uwaga_problem& p, const uwaga_softmax& softmax, const std::vector<uwaga_mask_operation>& other,
       const uwaga_tensor& out, const uwaga_weight_sums& sums)
      : p_(p), softmax_(softmax), other_(other), out_(out), sums_(sums) {}

  void run(const Task& task) const {
    HeadWeights weights(p_, softmax_, task.sequence, task.head, 0.0f, 1);
    const std::vector<uwaga_mask_operation> operations = weights.head().mask_of(other_.data(), other_.size());
    const uwaga_problem problem = weights.head().with_mask(operations);
    const Mask other(problem);
    std::vector<int64_t> queries;
    for (int64_t i = task.first_row; i < task.last_row; ++i) queries.push_back(i);
    weights.set_rows(queries.data(), static_cast<int64_t>(queries.size()), nullptr, 0);

    // Summed over a block of keys in float32 and over blocks in float64: as exact as a float64 sum of the weights.
    double totals[kRowsAtOnce] = {};
    double* const so_far =
        sums_.data ? sums_.data + (task.sequence * p_.query_heads + task.head) * p_.queries + task.first_row : nullptr;
    if (so_far && sums_.continues) std::copy(so_far, so_far + queries.size(), totals);
    const Sequence& s = weights.sequence();
    const KeyRange a = weights.key_range(), b = other.key_range(s, task.first_row, task.last_row);
    for (int64_t j0 = std::max(a.first, b.first) / kBlockKeys * kBlockKeys; j0 < std::min(a.last, b.last);
         j0 += kBlockKeys) {
      const int64_t j1 = std::min(j0 + kBlockKeys, s.keys);
      const Visibility seen = weights.visibility(j0, j1);
      if (seen == Visibility::kEmpty) continue;
      if (other.block(s, task.first_row, task.last_row, j0, j1) == Visibility::kEmpty) continue;
      weights.pack_keys(0, j0);
      for (int64_t t = 0; t < weights.tiles(); ++t) add(weights, other, t, j0, j1, seen, totals);
    }
    if (so_far) std::copy(totals, totals + queries.size(), so_far);
    if (!out_.data) return;
    const uwaga_tensor out = weights.head().query_rows(out_, sizeof(float));
    for (size_t r = 0; r < queries.size(); ++r) {
      static_cast<float*>(out.data)[queries[r] * out.row] = static_cast<float>(totals[r]);
    }
  }

 private:
  void add(HeadWeights& weights, const Mask& other, int64_t t, int64_t j0, int64_t j1, Visibility seen,
           double* totals) const {
    const TileRows& rows = weights.tile_rows(t);
    const Sequence& s = weights.sequence();
    if (other.block(s, rows.first_query(), rows.last_query() + 1, j0, j1) == Visibility::kEmpty) return;
    TileVisibility view;
    if (!weights.tile(t, 0, j0, seen, &view)) return;
    uint64_t bits[kMaxTileRows];
    alignas(64) float sums[kMaxTileRows * kMaxLanes] = {};
    for (int r = 0; r < rows.count; ++r) {
      bits[r] = view.bits[r] & other.bits(s, 0, rows.rows[r].query, j0, static_cast<int>(j1 - j0));
    }
    weights.kernels().add_seen(sums, weights.weights(), bits, rows.count, view.mask.first, view.mask.last);
    for (int r = 0; r < rows.count; ++r)
      totals[t * weights.tile_size() + r] += weights.kernels().lane_sum(sums + r * kMaxLanes);
  }

  const uwaga_problem& p_;
  const uwaga_softmax& softmax_;
  const std::vector<uwaga_mask_operation>& other_;
  const uwaga_tensor& out_;
  const uwaga_weight_sums& sums_;  // without data: none
};

}  // namespace

void selected_rows(const uwaga_problem& p, const uwaga_forward_result& result, const uwaga_row_statistics& statistics,
                   const uwaga_selection& chosen) {
  for (int64_t b = 0; b < chosen.sequences.count; ++b) {
    for (int64_t h = 0; h < chosen.heads.count; ++h) {
      const SingleHead head(p, chosen.sequences.data[b], chosen.heads.data[h]);
      uwaga_problem one = head.problem();
      one.rows = chosen.queries;
      const auto at = [&](const uwaga_tensor& t, int64_t size) { return head.query_rows(t, size); };
      const uwaga_forward_result here{at(result.output, element_size(result.output.dtype)),
                                      at(result.lse, sizeof(float))};
      uwaga_row_statistics row = statistics;
      for (uwaga_tensor* t :
           {&row.softmax.maximum, &row.softmax.sum, &row.entropy, &row.squares, &row.distance, &row.top_weights}) {
        *t = at(*t, sizeof(float));
      }
      row.top_positions = at(row.top_positions, sizeof(int64_t));
      row.distance_start = head.start_of_sequence(row.distance_start);
      forward(one, here, &row);
    }
  }
}

void weights(const uwaga_problem& p, const uwaga_softmax& softmax, const uwaga_selection& chosen,
             const uwaga_integers& keys, const uwaga_tensor& out) {
  const Rectangle rectangle(p, softmax, chosen, keys, out);
  const std::vector<Task> tasks = rectangle.tasks();
  double work = 0.0;
  for (const Task& task : tasks) work += rectangle.work(task);
  parallel_for(useful_threads(p, work), static_cast<int64_t>(tasks.size()),
               [&](int64_t n, int) { rectangle.run(tasks[n]); });
}

void mass(const uwaga_problem& p, const uwaga_softmax& softmax, const std::vector<uwaga_mask_operation>& other,
          const uwaga_tensor& out, const uwaga_weight_sums& sums) {
  const Mass mass(p, softmax, other, out, sums);
  std::vector<Task> tasks;
  for (int64_t b = 0; b < p.sequences; ++b) {
    const Sequence s = sequence_of(p, b);
    for (int64_t h = 0; h < p.query_heads; ++h) {
      for (int64_t i = 0; i < s.queries; i += kRowsAtOnce) {
        tasks.push_back({b, h, i, std::min(i + kRowsAtOnce, s.queries), 0, s.keys});
      }
    }
  }
  parallel_for(useful_threads(p), static_cast<int64_t>(tasks.size()), [&](int64_t n, int) { mass.run(tasks[n]); });
}

}  // namespace uwaga
