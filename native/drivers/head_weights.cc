#include "drivers/head_weights.h"

#include <algorithm>

namespace uwaga {

SingleHead::SingleHead(const uwaga_problem& whole, int64_t b, int64_t h)
    : whole_(whole),
      s_(sequence_of(whole, b)),
      h_(h),
      mask_(mask_of(whole.mask, whole.mask_operations)),
      problem_(whole) {
  uwaga_problem& p = problem_;
  const int64_t group = whole.query_heads / whole.key_heads;
  p.sequences = p.query_heads = p.key_heads = 1;
  p.queries = s_.queries, p.keys = s_.keys;
  p.query_offsets = p.key_offsets = {};
  if (whole.query.data) p.query.data = query_address(whole, whole.query, s_, h, 0);
  if (whole.key_pages.table.data) {
    if (whole.key.data) p.key.data = row_address(whole.key, 0, h / group, 0);
    p.key_pages.table.data += s_.index * whole.key_pages.row_of_table;
  } else if (whole.key.data) {
    p.key.data = key_address(whole, whole.key, s_, h / group, 0);
  }
  if (whole.value.data) p.value.data = key_address(whole, whole.value, s_, h / group, 0);
  p.mask = mask_.data();
  if (whole.relative.data) p.relative.data = whole.relative.data + h * whole.relative_head;
  p.relative_start = start_of_sequence(whole.relative_start);
  if (whole.bias.data) p.bias.data = row_address(whole.bias, b, h, 0);
  if (whole.sinks.data) p.sinks.data = whole.sinks.data + h;
}

uwaga_start SingleHead::start_of_sequence(const uwaga_start& start) const {
  if (start.mode != UWAGA_START_PER_ROW) return start;
  return {UWAGA_START_VALUE, 0, start.starts.data[s_.index], {}};
}

std::vector<uwaga_mask_operation> SingleHead::mask_of(const uwaga_mask_operation* operations, int64_t count) const {
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

uwaga_problem SingleHead::with_mask(const std::vector<uwaga_mask_operation>& mask) const {
  uwaga_problem p = problem_;
  p.mask = mask.data();
  p.mask_operations = static_cast<int64_t>(mask.size());
  return p;
}

uwaga_tensor SingleHead::rows(uwaga_tensor t, bool packed, int64_t offset, int64_t entry_size) const {
  if (!t.data) return t;
  t.data = static_cast<char*>(t.data) + ((packed ? 0 : s_.index * t.batch) + h_ * t.head + offset * t.row) * entry_size;
  return t;
}

uwaga_tensor SingleHead::query_rows(const uwaga_tensor& t, int64_t entry_size) const {
  return rows(t, whole_.query_offsets.data, s_.query_offset, entry_size);
}

uwaga_tensor SingleHead::key_rows(const uwaga_tensor& t, int64_t entry_size) const {
  return rows(t, whole_.key_offsets.data, s_.key_offset, entry_size);
}

HeadWeights::HeadWeights(const uwaga_problem& whole, const uwaga_softmax& softmax, int64_t b, int64_t h, float hidden,
                         int64_t blocks)
    : head_(whole, b, h),
      mask_(head_.problem()),
      kernels_(*active_level()),
      registers_(kernels_),
      scoring_(scoring_of(head_.problem(), kernels_)),
      s_(sequence_of(head_.problem(), 0)),
      maximum_(head_.query_rows(softmax.maximum, sizeof(float))),
      sum_(head_.query_rows(softmax.sum, sizeof(float))),
      hidden_(hidden) {
  const int64_t width = whole.query_width;
  query_tile_ = rounded_up(packed_tile(width, scoring_.rows), 16);
  const auto lay_out = [&](float* base) {
    ScratchLayout layout(base);
    queries_ = layout.take(kTilesAtOnce * query_tile_);
    keys_ = layout.take(blocks * packed_keys(width));
    weights_ = layout.take(scoring_.rows * kBlockKeys);
    bias_ = layout.take(scoring_.rows * kBlockKeys);
    maxima_ = layout.take(kRowsAtOnce);
    factors_ = layout.take(kRowsAtOnce);
    return layout.used();
  };
  thread_local Scratch scratch;
  lay_out(scratch.reserve(lay_out(nullptr)));
}

float HeadWeights::softmax_entry(const uwaga_tensor& t, int64_t query) const {
  return static_cast<const float*>(t.data)[query * t.row];
}

void HeadWeights::set_rows(const int64_t* queries, int64_t count, const float* row_weights, int64_t row_weight_step) {
  rows_ = count;
  const uwaga_problem& p = head_.problem();
  for (int64_t t = 0; t < tiles(); ++t) {
    TileRows& tile = tiles_[t];
    tile.count = static_cast<int>(std::min<int64_t>(scoring_.rows, count - t * scoring_.rows));
    const void* addresses[kMaxTileRows];
    for (int r = 0; r < tile.count; ++r) {
      const int64_t i = queries[t * scoring_.rows + r];
      tile.rows[r] = {i, 0};
      addresses[r] = query_address(p, p.query, s_, 0, i);
      const float sum = softmax_entry(sum_, i), weight = row_weights ? row_weights[i * row_weight_step] : 1.0f;
      maxima_[t * scoring_.rows + r] = softmax_entry(maximum_, i);
      factors_[t * scoring_.rows + r] = sum == 0.0f ? 0.0f : weight / sum;
    }
    scoring_.pack_queries(queries_ + t * query_tile_, addresses, tile.count, static_cast<int>(p.query_width),
                          p.query.column, p.query.dtype, scoring_.query_factor);
  }
}

Visibility HeadWeights::visibility(int64_t j0, int64_t j1) const {
  return mask_.block(s_, tiles_[0].first_query(), tiles_[tiles() - 1].last_query() + 1, j0, j1);
}

KeyRange HeadWeights::key_range() const {
  return mask_.key_range(s_, tiles_[0].first_query(), tiles_[tiles() - 1].last_query() + 1);
}

int HeadWeights::pack_keys(int64_t n, int64_t j0) {
  const uwaga_problem& p = head_.problem();
  const int count = static_cast<int>(std::min<int64_t>(kBlockKeys, s_.keys - j0));
  const Rows keys = key_rows(p, s_, 0, j0, count);
  scoring_.pack_keys(keys_ + n * packed_keys(p.query_width), keys, count, static_cast<int>(p.query_width));
  return count;
}

bool HeadWeights::tile(int64_t t, int64_t n, int64_t j0, Visibility known, TileVisibility* view) {
  const uwaga_problem& p = head_.problem();
  const int count = static_cast<int>(std::min<int64_t>(kBlockKeys, s_.keys - j0));
  evaluate_tile_mask(p, mask_, s_, tiles_[t], known, j0, count, bias_, view);
  if (view->empty) return false;
  const Block block{keys_ + n * packed_keys(p.query_width), nullptr, 0, 0, static_cast<int>(j0), count};
  scoring_.weights_tile(
      {queries_ + t * query_tile_, scoring_.rule.biased ? bias_ : nullptr, maxima_ + t * scoring_.rows,
       factors_ + t * scoring_.rows, hidden_, weights_, tiles_[t].count, static_cast<int>(p.query_width), view->mask},
      block, scoring_.rule);
  return true;
}

}  // namespace uwaga
