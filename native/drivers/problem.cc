#include "drivers/problem.h"

#include <algorithm>
#include <cmath>

namespace uwaga {
namespace {

bool known_type(const uwaga_tensor& t) { return t.dtype >= UWAGA_FLOAT32 && t.dtype <= UWAGA_FLOAT16; }

bool start_is_readable(const uwaga_start& start) {
  return start.mode == UWAGA_START_LAST || start.mode == UWAGA_START_VALUE ||
         (start.mode == UWAGA_START_PER_ROW && start.starts);
}

bool has_more_queries_than_keys(const uwaga_problem& p) {
  for (int64_t b = 0; b < p.sequences; ++b) {
    const Sequence s = sequence_of(p, b);
    if (s.queries > s.keys) return true;
  }
  return false;
}

const char* reason_to_refuse_mask(const uwaga_problem& p) {
  // Operands without a single entry may have no address; nothing is read of them.
  const bool reads = p.sequences > 0 && p.queries > 0 && p.keys > 0;
  if (p.mask_operations < 0 || p.mask_operations > UWAGA_MASK_MAX_OPERATIONS) return "mask program is too long";
  int depth = 0;
  for (int64_t n = 0; n < p.mask_operations; ++n) {
    const uwaga_mask_operation& op = p.mask[n];
    switch (op.operation) {
      case UWAGA_MASK_AND:
      case UWAGA_MASK_OR:
        if (depth < 2) return "mask program takes two operands where it has fewer";
        --depth;
        continue;
      case UWAGA_MASK_BAND:
        if (reads && !start_is_readable(op.start)) return "mask band has no readable start";
        break;
      case UWAGA_MASK_LENGTHS:
      case UWAGA_MASK_DOCUMENTS:
        if (reads && !op.ids) return "mask operation has no ids";
        if (op.operation == UWAGA_MASK_DOCUMENTS && !op.query_ids && has_more_queries_than_keys(p)) {
          return "documents without ids of the queries need as many keys as queries";
        }
        break;
      case UWAGA_MASK_DENSE:
        if (reads && !op.bits) return "dense mask has no bits";
        break;
      default:
        return "mask program has an unknown operation";
    }
    ++depth;
  }
  return p.mask_operations > 0 && depth != 1 ? "mask program does not end in one value" : nullptr;
}

const char* reason_to_refuse_rows(const int64_t* rows, int64_t count, int64_t queries) {
  for (int64_t n = 0; n < count; ++n) {
    if (rows[n] < 0 || rows[n] >= queries) return "a selected row is none of the queries";
    if (n > 0 && rows[n] <= rows[n - 1]) return "selected rows do not rise";
  }
  return nullptr;
}

const char* reason_to_refuse_offsets(const int64_t* offsets, int64_t sequences, int64_t longest) {
  if (!offsets) return nullptr;
  if (offsets[0] < 0) return "offsets start below zero";
  for (int64_t b = 0; b < sequences; ++b) {
    if (offsets[b + 1] < offsets[b]) return "offsets do not rise";
    if (offsets[b + 1] - offsets[b] > longest) return "a sequence is longer than the longest that was announced";
  }
  return nullptr;
}

}  // namespace

const char* reason_to_refuse(const uwaga_problem& p, bool reads_values) {
  if (p.sequences < 0 || p.queries < 0 || p.keys < 0) return "a size is negative";
  if (p.query_heads < 1 || p.key_heads < 1 || p.query_heads % p.key_heads) return "query heads must be a multiple of key heads";
  if (p.query_width < 1 || (reads_values && p.value_width < 1)) return "a width is below one";
  if (p.query_width > (1 << 16) || (reads_values && p.value_width > (1 << 16))) return "a width is above 65536";
  if (p.queries > (int64_t{1} << 40) || p.keys > (int64_t{1} << 31) - 64) return "a sequence is too long";
  if (!known_type(p.query) || !known_type(p.key) || (reads_values && !known_type(p.value))) return "unknown element type";
  if (p.bias.data && !known_type(p.bias)) return "unknown element type of the bias";
  if (p.sequences > 0 && p.relative && !start_is_readable(p.relative_start)) return "relative bias has no readable start";
  if (!p.normalize && p.sinks) return "sinks take part in a softmax, and there is none";
  if (!(p.dropout >= 0.0f && p.dropout < 1.0f)) return "dropout must lie in [0, 1)";
  if (p.threads < 1) return "threads must be at least one";
  if (const char* reason = reason_to_refuse_offsets(p.query_offsets, p.sequences, p.queries)) return reason;
  if (const char* reason = reason_to_refuse_offsets(p.key_offsets, p.sequences, p.keys)) return reason;
  if (p.rows && (p.query_offsets || p.key_offsets)) return "rows are selected in dense problems only";
  if (p.rows) {
    if (const char* reason = reason_to_refuse_rows(p.rows, p.row_count, p.queries)) return reason;
  }
  return reason_to_refuse_mask(p);
}

ScoreRule rule_of(const uwaga_problem& p) {
  ScoreRule rule{};
  rule.scale = 1.0f;  // packed queries bring it
  rule.softcap = p.softcap;
  rule.biased = p.relative || p.bias.data;
  rule.softmax = p.normalize != 0;
  rule.keep = 1.0f - p.dropout;
  rule.drop_threshold =
      static_cast<uint32_t>(std::min(std::floor(static_cast<double>(p.dropout) * 4294967296.0), 4294967295.0));
  return rule;
}

int useful_threads(const uwaga_problem& p) {
  const int64_t queries = p.rows ? p.row_count : p.queries;
  const double pairs = static_cast<double>(p.sequences) * p.query_heads * queries * p.keys;
  return useful_threads(p, pairs * (p.query_width + p.value_width));
}

int useful_threads(const uwaga_problem& p, double multiply_adds) {
  constexpr double kWorthSharing = 2.5e5;  // some ten microseconds of one thread
  return multiply_adds < kWorthSharing ? 1 : p.threads;
}

}  // namespace uwaga
