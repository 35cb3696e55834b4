#include "drivers/far_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/parallel.h"

namespace uwaga {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// Reading all keys and values costs about as much as one query does.
constexpr int64_t kMinKeys = 1024, kMinQueries = 64;
constexpr int64_t kPeak = 64;  // distances

// 2^-150 rounds to zero beside the smallest float, and the norms are themselves rounded.
constexpr float kUnderflow = 104.0f, kRounding = 1.01f;

bool may_skip_keys(const uwaga_problem& p) {
  return p.relative.data && !p.bias.data && p.normalize && p.softcap == 0.0f && p.query_heads == p.key_heads &&
         p.keys >= kMinKeys && (p.rows.data ? p.rows.count : p.queries) >= kMinQueries;
}

}  // namespace

FarKeys::FarKeys(const uwaga_problem& p, const Mask& mask, const Kernels& kernels, int threads)
    : p_(p), mask_(mask), kernels_(kernels) {
  if (!may_skip_keys(p)) return;
  distances_ = p.relative_head;
  const int64_t peaks = (distances_ + kPeak - 1) / kPeak;
  peaks_.resize(p.query_heads * peaks);
  for (int64_t h = 0; h < p.query_heads; ++h) {
    const float* of_head = p.relative.data + h * p.relative_head;
    for (int64_t n = 0; n < peaks; ++n) {
      const float* first = of_head + n * kPeak;
      peaks_[h * peaks + n] = *std::max_element(first, std::min(first + kPeak, of_head + distances_));
    }
  }
  norms_.resize(p.sequences * p.key_heads);
  parallel_for(threads, static_cast<int64_t>(norms_.size()),
               [&](int64_t n, int) { norms_[n] = norms_of(sequence_of(p_, n / p_.key_heads), n % p_.key_heads); });
}

FarKeys::Norms FarKeys::norms_of(const Sequence& s, int64_t head) const {
  // A square that is not finite makes the sum so, which a maximum alone would not.
  float key = 0.0f, value = 0.0f, sum = 0.0f;
  for (int64_t j = 0; j < s.keys; ++j) {
    const char* k = key_row_address(p_, s, head, j);
    const float square = kernels_.dot_rows(k, p_.key.column, p_.key.dtype, k, p_.key.column, p_.key.dtype,
                                           static_cast<int>(p_.query_width));
    key = std::max(key, square), sum += square - square;
    if (p_.value_width == 0) continue;
    const char* v = key_address(p_, p_.value, s, head, j);
    const float of_value = kernels_.dot_rows(v, p_.value.column, p_.value.dtype, v, p_.value.column, p_.value.dtype,
                                             static_cast<int>(p_.value_width));
    value = std::max(value, of_value), sum += of_value - of_value;
  }
  return {std::sqrt(key) + sum, std::sqrt(value) + sum};
}

bool FarKeys::sees_its_own_key(const Sequence& s, int64_t head, int64_t query) const {
  const int64_t own = query + start_of(p_.relative_start, s);
  if (own < 0 || own >= s.keys) return false;
  const int64_t j0 = own / kBlockKeys * kBlockKeys;
  const int count = static_cast<int>(std::min<int64_t>(kBlockKeys, s.keys - j0));
  return mask_.bits(s, head, query, j0, count) >> (own - j0) & 1;
}

float FarKeys::skip_below(const Sequence& s, const RowBlock& rows) const {
  if (norms_.empty() || s.keys < kMinKeys) return kMinusInfinity;
  const Norms norms = norms_[s.index * p_.key_heads + rows.key_head];
  float query = 0.0f, sum = 0.0f;
  for (int64_t r = rows.first; r < rows.last; ++r) {
    const GroupedRow at = grouped_row(p_, rows.key_head, r);
    if (!sees_its_own_key(s, at.head, at.query)) return kMinusInfinity;
    const char* q = query_address(p_, p_.query, s, at.head, at.query);
    const float square = kernels_.dot_rows(q, p_.query.column, p_.query.dtype, q, p_.query.column, p_.query.dtype,
                                           static_cast<int>(p_.query_width));
    query = std::max(query, square), sum += square - square;
  }
  const float own = p_.relative.data[rows.key_head * p_.relative_head + p_.relative_zero];
  const float reach = 2.0f * kRounding * std::sqrt(query) * norms.key * std::fabs(p_.scale) + sum;
  const float below = own - reach - kUnderflow - std::log(std::max(1.0f, norms.value)) - std::fabs(own) * 1e-5f;
  return std::isfinite(below) ? below : kMinusInfinity;
}

float FarKeys::largest_bias(const Sequence& s, int64_t head, int64_t i0, int64_t i1, int64_t j0, int64_t j1) const {
  const int64_t zero = p_.relative_zero - start_of(p_.relative_start, s);
  const float* peaks = peaks_.data() + head * ((distances_ + kPeak - 1) / kPeak);
  return *std::max_element(peaks + (j0 - i1 + 1 + zero) / kPeak, peaks + (j1 - 1 - i0 + zero) / kPeak + 1);
}

}  // namespace uwaga
