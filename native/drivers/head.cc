#include "drivers/head.h"

namespace uwaga {
namespace {

uwaga_tensor from(uwaga_tensor t, int64_t entries, int64_t entry_size) {
  if (t.data) t.data = static_cast<char*>(t.data) + entries * entry_size;
  return t;
}

}  // namespace

Head::Head(const uwaga_problem& whole, int64_t b, int64_t h)
    : whole_(whole), s_(sequence_of(whole, b)), h_(h), mask_(mask_of(whole.mask, whole.mask_operations)), problem_(whole) {
  uwaga_problem& p = problem_;
  const int64_t group = whole.query_heads / whole.key_heads;
  p.sequences = p.query_heads = p.key_heads = 1;
  p.queries = s_.queries, p.keys = s_.keys;
  p.query_offsets = p.key_offsets = nullptr;
  p.query.data = query_address(whole, whole.query, s_, h, 0);
  p.key.data = key_address(whole, whole.key, s_, h / group, 0);
  if (whole.value.data) p.value.data = key_address(whole, whole.value, s_, h / group, 0);
  p.mask = mask_.data();
  p.relative = whole.relative ? whole.relative + h * whole.relative_head : nullptr;
  p.relative_start = start_of_sequence(whole.relative_start);
  if (whole.bias.data) p.bias.data = row_address(whole.bias, b, h, 0);
  p.sinks = whole.sinks ? whole.sinks + h : nullptr;
}

uwaga_start Head::start_of_sequence(const uwaga_start& start) const {
  if (start.mode != UWAGA_START_PER_ROW || !start.starts) return start;
  return {UWAGA_START_VALUE, 0, start.starts[s_.index], nullptr};
}

std::vector<uwaga_mask_operation> Head::mask_of(const uwaga_mask_operation* operations, int64_t count) const {
  std::vector<uwaga_mask_operation> mask(operations, operations + count);
  for (uwaga_mask_operation& op : mask) {
    if (op.operation == UWAGA_MASK_BAND) op.start = start_of_sequence(op.start);
    if (op.operation == UWAGA_MASK_LENGTHS) op.ids += s_.index;
    if (op.operation == UWAGA_MASK_DOCUMENTS) {
      op.ids += s_.index * op.id_batch + s_.key_offset;
      if (op.query_ids) op.query_ids += s_.index * op.query_id_batch + s_.query_offset;
    }
    if (op.operation == UWAGA_MASK_DENSE) op.bits += s_.index * op.batch + h_ * op.head;
  }
  return mask;
}

uwaga_problem Head::under(const std::vector<uwaga_mask_operation>& mask) const {
  uwaga_problem p = problem_;
  p.mask = mask.data();
  p.mask_operations = static_cast<int64_t>(mask.size());
  return p;
}

uwaga_tensor Head::query_rows(const uwaga_tensor& t, int64_t entry_size) const {
  return from(t, (whole_.query_offsets ? 0 : s_.index * t.batch) + h_ * t.head + s_.query_offset * t.row, entry_size);
}

uwaga_tensor Head::key_rows(const uwaga_tensor& t, int64_t entry_size) const {
  return from(t, (whole_.key_offsets ? 0 : s_.index * t.batch) + h_ * t.head + s_.key_offset * t.row, entry_size);
}

}  // namespace uwaga
