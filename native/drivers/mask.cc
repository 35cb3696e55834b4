#include "drivers/mask.h"

#include <algorithm>

namespace uwaga {
namespace {

// Sums with an unbounded side stay in range: positions are far below 2^61.
int64_t band_first(const uwaga_mask_operation& op, const Sequence& s, int64_t i) {
  return op.low <= -UWAGA_UNBOUNDED ? -UWAGA_UNBOUNDED : i + start_of(op.start, s) + op.low;
}
int64_t band_last(const uwaga_mask_operation& op, const Sequence& s, int64_t i) {  // inclusive
  return op.high >= UWAGA_UNBOUNDED ? UWAGA_UNBOUNDED : i + start_of(op.start, s) + op.high;
}

Visibility band_block(const uwaga_mask_operation& op, const Sequence& s, int64_t i0, int64_t i1, int64_t j0,
                      int64_t j1) {
  if (j1 - 1 < band_first(op, s, i0) || j0 > band_last(op, s, i1 - 1)) return Visibility::kEmpty;
  if (j0 >= band_first(op, s, i1 - 1) && j1 - 1 <= band_last(op, s, i0)) return Visibility::kFull;
  return Visibility::kPartial;
}

// Bits [first, last] of a word, either end possibly outside it.
uint64_t word_of_range(int64_t first, int64_t last) {
  if (last < 0 || first > 63 || first > last) return 0;
  const int64_t low = std::max<int64_t>(first, 0), high = std::min<int64_t>(last, 63);
  return (~uint64_t{0} >> (63 - high)) & (~uint64_t{0} << low);
}

const int64_t* key_ids(const uwaga_problem& p, const uwaga_mask_operation& op, const Sequence& s) {
  return op.ids.data + (p.key_offsets.data ? s.key_offset : s.index * op.id_batch);
}

const int64_t* query_ids(const uwaga_problem& p, const uwaga_mask_operation& op, const Sequence& s) {
  if (!op.query_ids.data) return key_ids(p, op, s) + s.keys - s.queries;
  return op.query_ids.data + (p.query_offsets.data ? s.query_offset : s.index * op.query_id_batch);
}

Visibility both(Visibility a, Visibility b) { return std::min(a, b); }
Visibility either(Visibility a, Visibility b) { return std::max(a, b); }

// Evaluates a program in postfix notation: atom(op, n) is the value of operand n, `meet` is AND and `join` is OR.
template <class T, class Atom, class Meet, class Join>
T evaluate(const uwaga_problem& p, const Atom& atom, const Meet& meet, const Join& join) {
  if (p.mask_operations == 1) return atom(p.mask[0], 0);
  T stack[UWAGA_MASK_MAX_OPERATIONS];
  int top = 0;
  for (int64_t n = 0; n < p.mask_operations; ++n) {
    const uwaga_mask_operation& op = p.mask[n];
    if (op.operation == UWAGA_MASK_AND || op.operation == UWAGA_MASK_OR) {
      const T right = stack[--top], left = stack[--top];
      stack[top++] = op.operation == UWAGA_MASK_AND ? meet(left, right) : join(left, right);
    } else {
      stack[top++] = atom(op, n);
    }
  }
  return stack[0];
}

}  // namespace

void Mask::IdBlocks::append(const int64_t* ids, int64_t count) {
  first_block.push_back(static_cast<int64_t>(ranges.size()));
  for (int64_t j = 0; j < count; j += kBlockKeys) {
    const auto ends = std::minmax_element(ids + j, ids + std::min(count, j + kBlockKeys));
    ranges.push_back({*ends.first, *ends.second});
  }
}

Mask::IdRange Mask::IdBlocks::cover(int64_t sequence, int64_t first, int64_t last) const {
  const IdRange* block = ranges.data() + first_block[sequence];
  IdRange all = block[first / kBlockKeys];
  for (int64_t n = first / kBlockKeys + 1; n <= (last - 1) / kBlockKeys; ++n) {
    all = {std::min(all.low, block[n].low), std::max(all.high, block[n].high)};
  }
  return all;
}

Mask::Mask(const uwaga_problem& problem) : problem_(problem) {
  documents_.resize(problem.mask_operations);
  for (int64_t n = 0; n < problem.mask_operations; ++n) {
    const uwaga_mask_operation& op = problem.mask[n];
    if (op.operation != UWAGA_MASK_DOCUMENTS) continue;
    for (int64_t b = 0; b < problem.sequences; ++b) {
      const Sequence s = sequence_of(problem, b);
      documents_[n].keys.append(key_ids(problem, op, s), s.keys);
      if (op.query_ids.data) documents_[n].queries.append(query_ids(problem, op, s), s.queries);
    }
  }
}

Mask::IdRange Mask::query_cover(const Documents& documents, const Sequence& s, int64_t i0, int64_t i1) const {
  if (!documents.queries.ranges.empty()) return documents.queries.cover(s.index, i0, i1);
  return documents.keys.cover(s.index, i0 + s.keys - s.queries, i1 + s.keys - s.queries);
}

Visibility Mask::documents_block(const Documents& documents, const Sequence& s, IdRange queries, int64_t j0,
                                 int64_t j1) const {
  const IdRange keys = documents.keys.cover(s.index, j0, j1);
  if (queries.high < keys.low || keys.high < queries.low) return Visibility::kEmpty;
  const bool one = queries.low == queries.high && keys.low == keys.high;
  return one ? Visibility::kFull : Visibility::kPartial;
}

KeyRange Mask::documents_key_range(const Documents& documents, const Sequence& s, IdRange queries) const {
  int64_t first = s.keys, last = 0;
  for (int64_t j = 0; j < s.keys; j += kBlockKeys) {
    const int64_t end = std::min(s.keys, j + kBlockKeys);
    if (documents_block(documents, s, queries, j, end) == Visibility::kEmpty) continue;
    first = std::min(first, j);
    last = end;
  }
  return {first, std::max(first, last)};
}

Visibility Mask::block(const Sequence& s, int64_t i0, int64_t i1, int64_t j0, int64_t j1) const {
  if (sees_all()) return Visibility::kFull;
  const auto atom = [&](const uwaga_mask_operation& op, int64_t n) {
    switch (op.operation) {
      case UWAGA_MASK_BAND:
        return band_block(op, s, i0, i1, j0, j1);
      case UWAGA_MASK_LENGTHS:
        return j1 <= op.ids.data[s.index] ? Visibility::kFull
                                          : (j0 < op.ids.data[s.index] ? Visibility::kPartial : Visibility::kEmpty);
      case UWAGA_MASK_DOCUMENTS:
        return documents_block(documents_[n], s, query_cover(documents_[n], s, i0, i1), j0, j1);
      default:
        return Visibility::kPartial;  // dense: unknown without its bits
    }
  };
  return evaluate<Visibility>(problem_, atom, both, either);
}

KeyRange Mask::key_range(const Sequence& s, int64_t i0, int64_t i1) const {
  if (sees_all()) return {0, s.keys};
  const auto clamped = [&](int64_t first, int64_t last) {
    const int64_t from = std::min(std::max<int64_t>(first, 0), s.keys);
    return KeyRange{from, std::min(std::max(last, from), s.keys)};
  };
  const auto atom = [&](const uwaga_mask_operation& op, int64_t n) {
    switch (op.operation) {
      case UWAGA_MASK_BAND:
        return clamped(band_first(op, s, i0), band_last(op, s, i1 - 1) + 1);
      case UWAGA_MASK_LENGTHS:
        return clamped(0, op.ids.data[s.index]);
      case UWAGA_MASK_DOCUMENTS:
        return documents_key_range(documents_[n], s, query_cover(documents_[n], s, i0, i1));
      default:
        return clamped(0, s.keys);
    }
  };
  const auto meet = [&](KeyRange a, KeyRange b) {
    return clamped(std::max(a.first, b.first), std::min(a.last, b.last));
  };
  const auto join = [](KeyRange a, KeyRange b) {
    if (a.first >= a.last) return b;
    if (b.first >= b.last) return a;
    return KeyRange{std::min(a.first, b.first), std::max(a.last, b.last)};
  };
  return evaluate<KeyRange>(problem_, atom, meet, join);
}

uint64_t Mask::bits(const Sequence& s, int64_t h, int64_t i, int64_t j0, int count) const {
  const uint64_t all = ~uint64_t{0} >> (kBlockKeys - count);
  if (sees_all()) return all;
  const auto atom = [&](const uwaga_mask_operation& op, int64_t) -> uint64_t {
    switch (op.operation) {
      case UWAGA_MASK_BAND:
        return word_of_range(band_first(op, s, i) - j0, band_last(op, s, i) - j0);
      case UWAGA_MASK_LENGTHS:
        return word_of_range(0, op.ids.data[s.index] - 1 - j0);
      case UWAGA_MASK_DOCUMENTS: {
        const int64_t* ids = key_ids(problem_, op, s) + j0;
        const int64_t own = query_ids(problem_, op, s)[i];
        uint64_t word = 0;
        for (int n = 0; n < count; ++n) word |= static_cast<uint64_t>(ids[n] == own) << n;
        return word;
      }
      default: {
        const uint8_t* seen = op.bits + s.index * op.batch + h * op.head + i * op.row + j0 * op.column;
        uint64_t word = 0;
        for (int n = 0; n < count; ++n) word |= static_cast<uint64_t>(seen[n * op.column] != 0) << n;
        return word;
      }
    }
  };
  return all & evaluate<uint64_t>(
                   problem_, atom, [](uint64_t a, uint64_t b) { return a & b; },
                   [](uint64_t a, uint64_t b) { return a | b; });
}

void Mask::bits_of_rows(const Sequence& s, const GroupedRow* rows, int row_count, int64_t j0, int count,
                        uint64_t* bits) const {
  // A causal mask or a window alone: no program to run.
  if (problem_.mask_operations == 1 && problem_.mask[0].operation == UWAGA_MASK_BAND) {
    const uint64_t all = ~uint64_t{0} >> (kBlockKeys - count);
    const int64_t first = band_first(problem_.mask[0], s, 0) - j0, last = band_last(problem_.mask[0], s, 0) - j0;
    for (int r = 0; r < row_count; ++r) bits[r] = all & word_of_range(first + rows[r].query, last + rows[r].query);
    return;
  }
  for (int r = 0; r < row_count; ++r) bits[r] = this->bits(s, rows[r].head, rows[r].query, j0, count);
}

}  // namespace uwaga
