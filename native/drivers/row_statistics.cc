#include "drivers/row_statistics.h"

#include <string.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace uwaga {
namespace {

constexpr double kLn2 = 0.693147180559945309;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float* entry(const uwaga_problem& p, const uwaga_tensor& t, const Sequence& s, GroupedRow at) {
  return reinterpret_cast<float*>(query_address(p, t, s, at.head, at.query));
}

// Converts sums relative to one maximum to a higher one; `moved` is log2 of the factor that the weights change by.
RowMoments moved_moments(const RowMoments& x, double sum, double moved) {
  const double factor = std::exp2(moved);
  if (factor == 0.0) return {0.0f, 0.0f, 0.0f};
  return {static_cast<float>(factor * (x.entropy + moved * sum)), static_cast<float>(factor * factor * x.squares),
          static_cast<float>(factor * x.distance)};
}

// Copies numbers of four bytes. memcpy must not get a null pointer, which a table without largest weights has for them.
void copy_numbers(void* to, const void* from, int64_t count) {
  if (count > 0) memcpy(to, from, static_cast<size_t>(count) * 4);
}

}  // namespace

int64_t StatisticsAccumulator::lay_out(int64_t tiles, float* base) {
  ScratchLayout layout(base);
  const auto take = [&](bool wanted, int64_t count) { return wanted ? layout.take(tiles * count) : nullptr; };
  const bool moments = wanted_.squares.data || wanted_.distance.data;
  entropy_ = take(wanted_.entropy.data, rows_ * kMaxLanes);
  squares_ = take(moments, rows_ * kMaxLanes);
  distance_ = take(moments, rows_ * kMaxLanes);
  position_ = take(moments, kMaxLanes);
  top_scores_ = take(wanted_.top > 0, rows_ * top_row(wanted_.top));
  top_keys_ = take(wanted_.top > 0, rows_ * top_row(wanted_.top));
  return layout.used();
}

void StatisticsAccumulator::clear_sums(int64_t tiles) const {
  for (float* sums : {entropy_, squares_, distance_}) {
    if (sums) std::fill(sums, sums + tiles * rows_ * kMaxLanes, 0.0f);
  }
}

void StatisticsAccumulator::clear_top(int64_t tiles) const {
  if (!top_scores_) return;
  const int64_t row = top_row(wanted_.top), rows = tiles * rows_;
  std::fill(top_scores_, top_scores_ + rows * row, kMinusInfinity);
  for (int64_t r = 0; r < rows; ++r) top_scores_[r * row + kTopFirst - 1] = -kMinusInfinity;
}

void StatisticsAccumulator::set_position(int64_t row, const Sequence& s, int64_t query) const {
  if (!position_) return;
  position_[row / rows_ * kMaxLanes + row % rows_] = static_cast<float>(query + start_of(wanted_.distance_start, s));
}

TileStatistics StatisticsAccumulator::statistics(int64_t tile) const {
  const auto at = [&](auto* base, int64_t step) { return base ? base + tile * step : base; };
  return {at(entropy_, rows_ * kMaxLanes),
          at(squares_, rows_ * kMaxLanes),
          at(distance_, rows_ * kMaxLanes),
          at(position_, kMaxLanes),
          at(top_scores_, rows_ * top_row(wanted_.top)),
          at(top_keys_, rows_ * top_row(wanted_.top)),
          static_cast<int>(wanted_.top)};
}

RowMoments StatisticsAccumulator::moments(int64_t row, const Kernels& kernels) const {
  const auto sum = [&](const float* sums) { return sums ? kernels.lane_sum(sums + row * kMaxLanes) : 0.0f; };
  return {sum(entropy_), sum(squares_), sum(distance_)};
}

void StatisticsAccumulator::copy_top(int64_t row, RowStatistics* to) const {
  const int64_t first = row * top_row(wanted_.top) + kTopFirst;
  for (int64_t n = 0; n < wanted_.top; ++n) {
    const float score = top_scores_[first + n];
    to->top_scores[n] = score;
    to->top_keys[n] = -1;
    if (score == kMinusInfinity) continue;
    memcpy(&to->top_keys[n], &top_keys_[first + n], sizeof(int32_t));
    to->top_keys[n] += static_cast<int32_t>(p_.dropout_key);
  }
}

RowStatisticsTable::RowStatisticsTable(const uwaga_row_statistics* wanted, int64_t rows)
    : top_(wanted ? wanted->top : 0) {
  if (!wanted) return;
  scores_.resize(rows * top_);
  keys_.resize(rows * top_);
  for (int64_t r = 0; r < rows; ++r) rows_.push_back({{}, scores_.data() + r * top_, keys_.data() + r * top_});
}

void RowStatisticsTable::clear() {
  for (RowStatistics& row : rows_) row.moments = {};
  std::fill(scores_.begin(), scores_.end(), kMinusInfinity);
  std::fill(keys_.begin(), keys_.end(), -1);
}

void RowStatisticsTable::read(const float* from) {
  for (RowStatistics& row : rows_) {
    memcpy(&row.moments, from, sizeof row.moments);
    copy_numbers(row.top_scores, from + 3, top_);
    copy_numbers(row.top_keys, from + 3 + top_, top_);
    from += 3 + 2 * top_;
  }
}

void RowStatisticsTable::write(float* to) const {
  for (const RowStatistics& row : rows_) {
    memcpy(to, &row.moments, sizeof row.moments);
    copy_numbers(to + 3, row.top_scores, top_);
    copy_numbers(to + 3 + top_, row.top_keys, top_);
    to += 3 + 2 * top_;
  }
}

void merge_moments(const RowResult& softmax, RowStatistics* total, const RowResult& part_softmax,
                   const RowStatistics& part) {
  if (part_softmax.sum == 0.0f) return;
  const double highest = std::max<double>(softmax.maximum, part_softmax.maximum);
  const auto at_highest = [&](const RowMoments& moments, const RowResult& row) {
    return row.sum == 0.0f ? RowMoments{} : moved_moments(moments, row.sum, (row.maximum - highest) / kLn2);
  };
  const RowMoments a = at_highest(total->moments, softmax), b = at_highest(part.moments, part_softmax);
  total->moments = {a.entropy + b.entropy, a.squares + b.squares, a.distance + b.distance};
}

void merge_top(RowStatistics* total, const RowStatistics& part, int64_t top) {
  const std::vector<float> scores(total->top_scores, total->top_scores + top);
  const std::vector<int32_t> keys(total->top_keys, total->top_keys + top);
  for (int64_t n = 0, old = 0, fresh = 0; n < top; ++n) {
    const bool keep = scores[old] >= part.top_scores[fresh];  // of equal scores the earlier key comes first
    total->top_scores[n] = keep ? scores[old] : part.top_scores[fresh];
    total->top_keys[n] = keep ? keys[old] : part.top_keys[fresh];
    ++(keep ? old : fresh);
  }
}

void write_statistics(const uwaga_problem& p, const uwaga_row_statistics& out, const Sequence& s, GroupedRow at,
                      const RowResult& row, const RowStatistics& found, RowSoftmax softmax) {
  // a = p * share, with p as the sums have it.
  const double share = row.sum == 0.0f ? 0.0 : std::exp(row.maximum - softmax.maximum) / softmax.sum;
  if (out.softmax.maximum.data) {
    *entry(p, out.softmax.maximum, s, at) = static_cast<float>(softmax.sum == 0.0 ? 0.0 : softmax.maximum);
    *entry(p, out.softmax.sum, s, at) = static_cast<float>(softmax.sum);
  }
  if (out.entropy.data) {
    const double mass = share * row.sum;
    const double entropy = mass == 0.0 ? 0.0 : -(share * kLn2 * found.moments.entropy + mass * std::log(share));
    *entry(p, out.entropy, s, at) = static_cast<float>(entropy);
  }
  if (out.squares.data) *entry(p, out.squares, s, at) = static_cast<float>(share * share * found.moments.squares);
  if (out.distance.data) *entry(p, out.distance, s, at) = static_cast<float>(share * found.moments.distance);
  if (out.top == 0) return;
  float* weights = entry(p, out.top_weights, s, at);
  const uwaga_tensor& t = out.top_positions;
  int64_t* positions = static_cast<int64_t*>(t.data) + (p.query_offsets.data ? 0 : s.index * t.batch) +
                       at.head * t.head + (s.query_offset + at.query) * t.row;
  for (int64_t n = 0; n < out.top; ++n) {
    const int32_t key = found.top_keys[n];
    const double weight = key < 0 ? 0.0 : std::exp(found.top_scores[n] - softmax.maximum) / softmax.sum;
    weights[n * out.top_weights.column] = static_cast<float>(weight);
    positions[n * t.column] = key;
  }
}

}  // namespace uwaga
