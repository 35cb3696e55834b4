#include "drivers/problem.h"

#include <algorithm>
#include <cmath>

namespace uwaga {
ScoreRule rule_of(const uwaga_problem& p) {
  ScoreRule rule{};
  rule.scale = 1.0f;  // packed queries bring it
  rule.softcap = p.softcap;
  rule.biased = p.relative.data || p.bias.data;
  rule.softmax = p.normalize != 0;
  rule.keep = 1.0f - p.dropout;
  rule.drop_threshold =
      static_cast<uint32_t>(std::min(std::floor(static_cast<double>(p.dropout) * 4294967296.0), 4294967295.0));
  return rule;
}

int useful_threads(const uwaga_problem& p) {
  const int64_t queries = p.rows.data ? p.rows.count : p.queries;
  const double pairs = static_cast<double>(p.sequences) * p.query_heads * queries * p.keys;
  return useful_threads(p, pairs * (p.query_width + p.value_width));
}

int useful_threads(const uwaga_problem& p, double multiply_adds) {
  constexpr double kWorthSharing = 2.5e5;  // some ten microseconds of one thread
  return multiply_adds < kWorthSharing ? 1 : p.threads;
}

}  // namespace uwaga
