// The oracle's masks: programs with the memory that they point to, evaluated for each query and key.
#include "tests/oracle.h"

namespace uwaga_tests {

void MaskProgram::band(int64_t low, int64_t high, int mode, int64_t value) {
  uwaga_mask_operation op{};
  op.operation = UWAGA_MASK_BAND, op.low = low, op.high = high, op.start.mode = mode, op.start.value = value;
  operations_.push_back(op);
}
void MaskProgram::band_per_row(int64_t low, int64_t high, std::vector<int64_t> starts) {
  numbers_.push_back(starts);
  band(low, high, UWAGA_START_PER_ROW);
  operations_.back().start.starts = integers(numbers_.back());
}
void MaskProgram::lengths(std::vector<int64_t> lengths) {
  numbers_.push_back(lengths);
  uwaga_mask_operation op{};
  op.operation = UWAGA_MASK_LENGTHS, op.ids = integers(numbers_.back());
  operations_.push_back(op);
}
void MaskProgram::documents(Random& random, int64_t mean_length, bool own_query_ids, bool sorted) {
  const auto ids_for = [&](const std::vector<int64_t>& lengths) {
    std::vector<int64_t> ids;
    for (const int64_t length : lengths) {
      int64_t id = 0;
      for (int64_t n = 0; n < length; ++n) {
        if (random.below(mean_length) == 0) id = sorted ? id + 1 : random.between(-1, 3);
        ids.push_back(id);
      }
    }
    numbers_.push_back(ids);
    return integers(numbers_.back());
  };
  uwaga_mask_operation op{};
  op.operation = UWAGA_MASK_DOCUMENTS;
  op.ids = ids_for(shape_.keys);
  op.id_batch = shape_.ragged ? 0 : shape_.longest(shape_.keys);
  if (own_query_ids) {
    op.query_ids = ids_for(shape_.queries);
    op.query_id_batch = shape_.ragged ? 0 : shape_.longest(shape_.queries);
  }
  operations_.push_back(op);
}
void MaskProgram::dense(Random& random, double visible) {
  dense([&](int64_t, int64_t, int64_t, int64_t) { return random.chance(visible); });
}
void MaskProgram::dense(const std::function<bool(int64_t, int64_t, int64_t, int64_t)>& sees) {
  const int64_t q = shape_.longest(shape_.queries), k = shape_.longest(shape_.keys);
  std::vector<uint8_t> bits;
  for (int64_t b = 0; b < shape_.sequences; ++b) {
    for (int64_t h = 0; h < shape_.query_heads; ++h) {
      for (int64_t i = 0; i < q; ++i) {
        for (int64_t j = 0; j < k; ++j) bits.push_back(sees(b, h, i, j));
      }
    }
  }
  bytes_.push_back(bits);
  uwaga_mask_operation op{};
  op.operation = UWAGA_MASK_DENSE, op.bits = bytes_.back().data(),
  op.bytes = static_cast<int64_t>(bytes_.back().size());
  op.column = 1, op.row = k, op.head = q * k, op.batch = shape_.query_heads * q * k;
  operations_.push_back(op);
}
void MaskProgram::join(int operation) {
  uwaga_mask_operation op{};
  op.operation = operation;
  operations_.push_back(op);
}

void MaskProgram::randomize(Random& random, int leaves) {
  const int64_t q = shape_.longest(shape_.queries), k = shape_.longest(shape_.keys);
  bool ids_align = true;
  for (int64_t b = 0; b < shape_.sequences; ++b) ids_align &= shape_.keys[b] >= shape_.queries[b];
  int depth = 0;
  for (int n = 0; n < leaves; ++n) {
    const int kind = static_cast<int>(random.below(5));
    if (kind <= 1) {
      const int64_t low = random.chance(0.5) ? -UWAGA_UNBOUNDED : -random.below(k + 1);
      const int64_t high = random.chance(0.4) ? UWAGA_UNBOUNDED : random.between(-3, k);
      std::vector<int64_t> starts;
      for (int64_t b = 0; b < shape_.sequences; ++b) starts.push_back(random.between(-q, k));
      if (random.chance(0.3)) {
        band_per_row(low, high, starts);
      } else {
        band(low, high, random.chance(0.5) ? UWAGA_START_LAST : UWAGA_START_VALUE, random.between(-q, k));
      }
    } else if (kind == 2) {
      std::vector<int64_t> each;
      for (int64_t b = 0; b < shape_.sequences; ++b) each.push_back(random.between(-2, k + 2));
      lengths(each);
    } else if (kind == 3) {
      documents(random, random.between(1, 90), !ids_align || random.chance(0.5), random.chance(0.5));
    } else {
      dense(random, random.chance(0.3) ? 0.02 : 0.7);
    }
    ++depth;
    while (depth > 1 && random.chance(0.6)) {
      join(random.chance(0.5) ? UWAGA_MASK_AND : UWAGA_MASK_OR);
      --depth;
    }
  }
  for (; depth > 1; --depth) join(random.chance(0.5) ? UWAGA_MASK_AND : UWAGA_MASK_OR);
}

bool MaskProgram::atom_sees(const uwaga_mask_operation& op, int64_t b, int64_t h, int64_t i, int64_t j) const {
  switch (op.operation) {
    case UWAGA_MASK_BAND: {
      int64_t start = shape_.keys[b] - shape_.queries[b];
      if (op.start.mode == UWAGA_START_VALUE) start = op.start.value;
      if (op.start.mode == UWAGA_START_PER_ROW) start = op.start.starts.data[b];
      const int64_t distance = j - (i + start);
      return op.low <= distance && distance <= op.high;
    }
    case UWAGA_MASK_LENGTHS:
      return j < op.ids.data[b];
    case UWAGA_MASK_DOCUMENTS: {
      const int64_t* keys = op.ids.data + (shape_.ragged ? Shape::offset(shape_.keys, b) : b * op.id_batch);
      if (!op.query_ids.data) return keys[j] == keys[i + shape_.keys[b] - shape_.queries[b]];
      const int64_t* queries =
          op.query_ids.data + (shape_.ragged ? Shape::offset(shape_.queries, b) : b * op.query_id_batch);
      return keys[j] == queries[i];
    }
    default:
      return op.bits[b * op.batch + h * op.head + i * op.row + j * op.column] != 0;
  }
}

bool MaskProgram::sees(int64_t b, int64_t h, int64_t i, int64_t j) const {
  if (operations_.empty()) return true;
  std::vector<bool> stack;
  for (const uwaga_mask_operation& op : operations_) {
    if (op.operation != UWAGA_MASK_AND && op.operation != UWAGA_MASK_OR) {
      stack.push_back(atom_sees(op, b, h, i, j));
      continue;
    }
    const bool right = stack.back();
    stack.pop_back();
    stack.back() = op.operation == UWAGA_MASK_AND ? stack.back() && right : stack.back() || right;
  }
  return stack.back();
}

}  // namespace uwaga_tests
