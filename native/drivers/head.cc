#include "drivers/head.h"

namespace uwaga {
Head::Head(const uwaga_problem& whole, int64_t b, int64_t h)
    : whole_(whole), s_(sequence_of(whole, b)), h_(h), mask_(mask_of(whole.mask, whole.mask_operations)), problem_(whole) {
  uwaga_problem& p = problem_;
  const int64_t group = whole.query_heads / whole.key_heads;
  p.sequences = p.query_heads = p.key_heads = 1;
  p.queries = s_.queries, p.keys = s_.keys;
  p.query_offsets = p.key_offsets = {};
  if (whole.query.data) p.query.data = query_address(whole, whole.query, s_, h, 0);
  if (whole.key.data) p.key.data = key_address(whole, whole.key, s_, h / group, 0);
  if (whole.value.data) p.value.data = key_address(whole, whole.value, s_, h / group, 0);
  p.mask = mask_.data();
  if (whole.relative.data) p.relative.data = whole.relative.data + h * whole.relative_head;
  p.relative_start = start_of_sequence(whole.relative_start);
  if (whole.bias.data) p.bias.data = row_address(whole.bias, b, h, 0);
  if (whole.sinks.data) p.sinks.data = whole.sinks.data + h;
}

uwaga_start Head::start_of_sequence(const uwaga_start& start) const {
  if (start.mode != UWAGA_START_PER_ROW) return start;
  return {UWAGA_START_VALUE, 0, start.starts.data[s_.index], {}};
}

std::vector<uwaga_mask_operation> Head::mask_of(const uwaga_mask_operation* operations, int64_t count) const {
  std::vector<uwaga_mask_operation> mask(operations, operations + count);
  for (uwaga_mask_operation& op : mask) {
    if (op.operation == UWAGA_MASK_BAND) op.start = start_of_sequence(op.start);
    if (op.operation == UWAGA_MASK_LENGTHS) op.ids.data += s_.index;
    if (op.operation == UWAGA_MASK_DOCUMENTS) {
      op.ids.data += s_.index * op.id_batch + s_.key_offset;
      if (op.query_ids.data) op.query_ids.data += s_.index * op.query_id_batch + s_.query_offset;
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

uwaga_tensor Head::rows(uwaga_tensor t, bool packed, int64_t offset, int64_t entry_size) const {
  if (!t.data) return t;
  t.data = static_cast<char*>(t.data) + ((packed ? 0 : s_.index * t.batch) + h_ * t.head + offset * t.row) * entry_size;
  return t;
}

uwaga_tensor Head::query_rows(const uwaga_tensor& t, int64_t entry_size) const {
  return rows(t, whole_.query_offsets.data, s_.query_offset, entry_size);
}

uwaga_tensor Head::key_rows(const uwaga_tensor& t, int64_t entry_size) const {
  return rows(t, whole_.key_offsets.data, s_.key_offset, entry_size);
}

}  // namespace uwaga
