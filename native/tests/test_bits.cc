// Bit-identical results: whatever the number of threads, the split over keys, the other sequences of the batch, the form of
// the mask, and the values of masked keys.
#include <string.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/exact_sum.h"
#include "tests/oracle.h"

namespace uwaga_tests {
namespace {

bool same_bits(const Array& a, const Array& b) {
  return a.count() == b.count() &&
         memcmp(a.data(), b.data(), static_cast<size_t>(a.count()) * size_of_type(a.dtype())) == 0;
}

void expect_same(const Call& a, const Call& b, bool backward, const char* what) {
  expect(same_bits(a.output.array(), b.output.array()), "%s: output", what);
  expect(same_bits(a.lse.array(), b.lse.array()), "%s: lse", what);
  if (!backward) return;
  expect(same_bits(a.grad_query.array(), b.grad_query.array()), "%s: grad of query", what);
  expect(same_bits(a.grad_key.array(), b.grad_key.array()), "%s: grad of key", what);
  expect(same_bits(a.grad_value.array(), b.grad_value.array()), "%s: grad of value", what);
  expect(a.grad_relative.empty() ||
             !memcmp(a.grad_relative.data(), b.grad_relative.data(), a.grad_relative.size() * sizeof(float)),
         "%s: grad of relative", what);
  expect(a.grad_sinks.empty() || !memcmp(a.grad_sinks.data(), b.grad_sinks.data(), a.grad_sinks.size() * sizeof(float)),
         "%s: grad of sinks", what);
  if (a.grad_bias) expect(same_bits(a.grad_bias->array(), b.grad_bias->array()), "%s: grad of bias", what);
}

void run(Call& call, bool backward) {
  expect(call.forward() == UWAGA_OK, "forward refused: %s", uwaga_last_error());
  if (!backward) return;
  call.randomize_grad_output();
  expect(call.backward() == UWAGA_OK, "backward refused: %s", uwaga_last_error());
}

void test_threads() {
  uint64_t seed = 1000;
  for (int variant = 0; variant < 10; ++variant) {
    Options options;
    options.seed = ++seed, options.dtype = variant % 2 ? UWAGA_BFLOAT16 : UWAGA_FLOAT32;
    options.relative = variant % 3 == 0, options.sinks = variant % 3 == 1,
    options.dropout = variant % 4 == 0 ? 0.2 : 0.0;
    options.bias = variant == 5;
    // The last variants are split over keys: forward into chunks of 2,048, backward into segments of 512.
    const Shape shape = variant < 4 ? ragged_shape(4, 2, {30, 7, 100, 1}, {30, 0, 150, 9}, 12, 20)
                                    : dense_shape(1, 2, 1, variant < 7 ? 40 : 3, variant < 7 ? 1100 : 6300, 12, 20);
    Call one(shape, options);
    options.threads = 3;
    Call three(shape, options);
    for (Call* call : {&one, &three}) {
      if (variant % 2) call->mask.band(-UWAGA_UNBOUNDED, 0);
      run(*call, true);
    }
    expect_same(one, three, true, "one thread and three");
    Call again(shape, options);
    if (variant % 2) again.mask.band(-UWAGA_UNBOUNDED, 0);
    run(again, true);
    expect_same(again, three, true, "twice");
  }
}

void copy_rows(const Operand& from, int64_t from_batch, Operand& to, int64_t to_batch, int64_t heads, int64_t rows,
               int64_t columns) {
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t w = 0; w < columns; ++w) to.set(to_batch, h, i, w, from.get(from_batch, h, i, w));
    }
  }
}

void expect_same_rows(const Operand& a, int64_t a_batch, const Operand& b, int64_t b_batch, int64_t heads, int64_t rows,
                      int64_t columns, const char* what) {
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t w = 0; w < columns; ++w) {
        const double x = a.get(a_batch, h, i, w), y = b.get(b_batch, h, i, w);
        expect(x == y, "%s: head %d, row %d is %.9g, not %.9g", what, static_cast<int>(h), static_cast<int>(i), y, x);
      }
    }
  }
}

// Sequence b of `all` against the same sequence as a batch of its own.
void expect_same_alone(const Call& all, int64_t b, Call& alone, const char* what) {
  const Shape& s = alone.shape;
  const int64_t q = s.queries[0], k = s.keys[0];
  expect_same_rows(all.output, b, alone.output, 0, s.query_heads, q, s.value_width, what);
  expect_same_rows(all.lse, b, alone.lse, 0, s.query_heads, q, 1, what);
  expect_same_rows(all.grad_query, b, alone.grad_query, 0, s.query_heads, q, s.query_width, what);
  expect_same_rows(all.grad_key, b, alone.grad_key, 0, s.key_heads, k, s.query_width, what);
  expect_same_rows(all.grad_value, b, alone.grad_value, 0, s.key_heads, k, s.value_width, what);
}

void run_alone(const Call& all, int64_t b, Call& alone) {
  const Shape& s = alone.shape;
  copy_rows(all.query, b, alone.query, 0, s.query_heads, s.queries[0], s.query_width);
  copy_rows(all.key, b, alone.key, 0, s.key_heads, s.keys[0], s.query_width);
  copy_rows(all.value, b, alone.value, 0, s.key_heads, s.keys[0], s.value_width);
  expect(alone.forward() == UWAGA_OK, "alone refused: %s", uwaga_last_error());
  copy_rows(all.grad_output, b, alone.grad_output, 0, s.query_heads, s.queries[0], s.value_width);
  copy_rows(all.grad_lse, b, alone.grad_lse, 0, s.query_heads, s.queries[0], 1);
  expect(alone.backward() == UWAGA_OK, "alone refused: %s", uwaga_last_error());
}

// A ragged batch, and a padded batch with lengths, compared with each document alone.
void test_company() {
  for (int variant = 0; variant < 8; ++variant) {
    Options options;
    options.seed = 1100 + static_cast<uint64_t>(variant), options.dtype = variant % 2 ? UWAGA_BFLOAT16 : UWAGA_FLOAT32;
    options.threads = 1 + variant % 3, options.layout = variant % 4;
    const bool causal = variant & 2, ragged = variant & 4;
    const std::vector<int64_t> lengths = {17, 1, 90, 33};
    Call all(ragged ? ragged_shape(2, 1, lengths, lengths, 9, 21) : dense_shape(4, 2, 1, 90, 90, 9, 21), options);
    if (!ragged) all.mask.lengths(lengths);
    if (causal) all.mask.band(-UWAGA_UNBOUNDED, 0);
    if (causal && !ragged) all.mask.join(UWAGA_MASK_AND);
    expect(all.forward() == UWAGA_OK, "refused: %s", uwaga_last_error());
    all.randomize_grad_output();
    for (int64_t b = 0; !ragged && b < 4; ++b) {  // rows of padding have no gradient
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t i = lengths[b]; i < 90; ++i) {
          all.grad_lse.set(b, h, i, 0, 0.0);
          for (int64_t w = 0; w < 21; ++w) all.grad_output.set(b, h, i, w, 0.0);
        }
      }
    }
    expect(all.backward() == UWAGA_OK, "refused: %s", uwaga_last_error());
    for (int64_t b = 0; b < 4; ++b) {
      Call alone(dense_shape(1, 2, 1, lengths[b], lengths[b], 9, 21), options);
      if (causal) alone.mask.band(-UWAGA_UNBOUNDED, 0);
      run_alone(all, b, alone);
      expect_same_alone(all, b, alone, ragged ? "ragged" : "padded");
    }
  }
}

// Decoding: few queries read keys and values in place, many from packed copies.
void test_few_queries() {
  uint64_t seed = 1150;
  for (const int dtype : {UWAGA_FLOAT32, UWAGA_BFLOAT16, UWAGA_FLOAT16}) {
    for (const int64_t keys : {64, 150, 2300}) {
      Options options;
      options.seed = ++seed, options.dtype = dtype, options.threads = 2, options.sinks = keys == 150;
      Call many(dense_shape(1, 2, 1, 70, keys, 32, 64), options);
      run(many, false);
      for (const int64_t queries : {1, 2, 6}) {
        Call few(dense_shape(1, 2, 1, queries, keys, 32, 64), options);
        copy_rows(many.query, 0, few.query, 0, 2, queries, 32);
        copy_rows(many.key, 0, few.key, 0, 1, keys, 32);
        copy_rows(many.value, 0, few.value, 0, 1, keys, 64);
        few.sinks = many.sinks;
        run(few, false);
        expect_same_rows(many.output, 0, few.output, 0, 2, queries, 64, "output of few queries");
        expect_same_rows(many.lse, 0, few.lse, 0, 2, queries, 1, "lse of few queries");
      }
    }
  }
}

// An operand's rows from `first` on as an operand of their own.
uwaga_tensor rows_of(const Operand& operand, int64_t first) {
  uwaga_tensor t = operand.tensor();
  const int64_t skipped = first * t.row * size_of_type(t.dtype);
  t.data = static_cast<char*>(t.data) + skipped, t.bytes -= skipped;
  return t;
}

// A call in parts of its queries and keys: the sums of the rows go through the parts of the keys, and those of the keys through the parts
// of the queries.
class InParts {
 public:
  InParts(Call& call, std::vector<int64_t> queries, std::vector<int64_t> keys)
      : call_(call), queries_(queries), keys_(keys) {}

  void forward() {
    const Shape& s = call_.shape;
    for (size_t q = 0; q + 1 < queries_.size(); ++q) {
      Floats sums(s.sequences * s.query_heads * (queries_[q + 1] - queries_[q]) *
                  (UWAGA_PADDED(s.value_width, 16) + 2));
      for (size_t k = 0; k + 1 < keys_.size(); ++k) {
        const uwaga_problem p = part(q, k);
        uwaga_forward_result result{};
        if (k + 2 == keys_.size()) result = {rows_of(call_.output, queries_[q]), rows_of(call_.lse, queries_[q])};
        const uwaga_forward_sums given{{sums.data(), sums.size()}, k > 0, 0};
        expect(uwaga_forward_part(&p, &result, &given) == UWAGA_OK, "forward refused: %s", uwaga_last_error());
      }
    }
  }

  // Keys outside, so that each block of keys goes through all queries; the sums of all queries wait meanwhile.
  void backward() {
    const Shape& s = call_.shape;
    const int64_t units = s.sequences * s.key_heads, group = s.query_heads / s.key_heads;
    const int64_t query_width = UWAGA_PADDED(s.query_width, 16), value_width = UWAGA_PADDED(s.value_width, 16);
    std::deque<Floats> of_queries;
    for (size_t q = 0; q + 1 < queries_.size(); ++q)
      of_queries.emplace_back(units * UWAGA_PADDED((queries_[q + 1] - queries_[q]) * group, 48) * query_width);
    for (float& x : call_.grad_relative) x = 0.0f;
    for (float& x : call_.grad_sinks) x = 0.0f;
    for (size_t k = 0; k + 1 < keys_.size(); ++k) {
      const int64_t keys = UWAGA_PADDED(keys_[k + 1] - keys_[k], 64);
      Floats of_key(units * keys * query_width), of_value(units * keys * value_width);
      for (size_t q = 0; q + 1 < queries_.size(); ++q) {
        const uwaga_problem p = part(q, k);
        const int64_t i = queries_[q];
        uwaga_backward_args a{};
        a.output = rows_of(call_.output, i), a.grad_output = rows_of(call_.grad_output, i);
        a.lse = rows_of(call_.lse, i);
        if (call_.options.softmax) a.grad_lse = rows_of(call_.grad_lse, i);
        if (k + 2 == keys_.size()) a.grad_query = rows_of(call_.grad_query, i);
        if (q + 2 == queries_.size())
          a.grad_key = rows_of(call_.grad_key, keys_[k]), a.grad_value = rows_of(call_.grad_value, keys_[k]);
        if (call_.options.relative) a.grad_relative = floats(call_.grad_relative);
        if (call_.options.sinks && k == 0) a.grad_sinks = floats(call_.grad_sinks);
        const uwaga_backward_sums given{{of_queries[q].data(), of_queries[q].size()},
                                        {of_key.data(), of_key.size()},
                                        {of_value.data(), of_value.size()},
                                        k > 0,
                                        q > 0};
        expect(uwaga_backward_part(&p, &a, &given) == UWAGA_OK, "backward refused: %s", uwaga_last_error());
      }
    }
  }

 private:
  uwaga_problem part(size_t q, size_t k) {
    uwaga_problem p = call_.problem();
    const int64_t moved = queries_[q] - keys_[k], start = call_.shape.keys[0] - call_.shape.queries[0] + moved;
    p.queries = queries_[q + 1] - queries_[q], p.keys = keys_[k + 1] - keys_[k];
    p.query = rows_of(call_.query, queries_[q]);
    p.key = rows_of(call_.key, keys_[k]), p.value = rows_of(call_.value, keys_[k]);
    mask_.assign(p.mask, p.mask + p.mask_operations);
    for (uwaga_mask_operation& op : mask_) op.start.mode = UWAGA_START_VALUE, op.start.value = start;
    p.mask = mask_.data();
    p.relative_start.mode = UWAGA_START_VALUE, p.relative_start.value = start;
    return p;
  }

  Call& call_;
  const std::vector<int64_t> queries_, keys_;
  std::vector<uwaga_mask_operation> mask_;
};

void test_parts() {
  constexpr int64_t kKeys = UWAGA_PART_KEYS, kQueries = UWAGA_PART_QUERIES;
  for (int variant = 0; variant < 8; ++variant) {
    Options options;
    options.seed = 1170 + static_cast<uint64_t>(variant), options.dtype = variant % 3;
    options.threads = 1 + 2 * (variant / 4), options.layout = variant % 4, options.softmax = variant != 6;
    options.relative = variant == 1 || variant == 4, options.sinks = variant == 2;
    const int64_t queries = variant % 2 ? 2 * kQueries + 16 : kQueries + 1, keys = (variant < 2 ? 2 : 1) * kKeys + 100;
    const Shape shape = dense_shape(variant == 5 ? 2 : 1, 2, variant % 2 ? 1 : 2, queries, keys, 12, 20);
    Call whole(shape, options), parts(shape, options);
    for (Call* call : {&whole, &parts}) {
      // The last queries see the last keys; a window hides whole parts of them.
      if (variant != 3) call->mask.band(variant % 2 ? -UWAGA_UNBOUNDED : -1500, 0);
    }
    run(whole, true);
    std::vector<int64_t> query_edges = {0, kQueries, queries}, key_edges = {0, kKeys, keys};
    if (variant % 2) query_edges = {0, kQueries, 2 * kQueries, queries};
    if (variant == 0) key_edges = {0, kKeys, 2 * kKeys, keys};
    if (variant == 1) key_edges = {0, 2 * kKeys, keys};
    InParts in_parts(parts, query_edges, key_edges);
    in_parts.forward();
    parts.randomize_grad_output();
    in_parts.backward();
    // Sums over all queries and keys are added up part by part.
    Call& sums = parts;
    for (auto [a, b] : {std::pair{&whole.grad_relative, &sums.grad_relative}, {&whole.grad_sinks, &sums.grad_sinks}}) {
      for (size_t n = 0; n < a->size(); ++n) expect_near((*b)[n], (*a)[n], 1e-3, "sum", static_cast<int64_t>(n));
      *b = *a;
    }
    expect_same(whole, parts, true, "parts and the whole");
  }
}

// Functions of the weights in parts of queries and keys, and in one call.
class WeightsInParts {
 public:
  explicit WeightsInParts(int variant) : options_(options_of(variant)), call_(shape_of(variant), options_) {
    if (variant != 3) call_.mask.band(variant % 2 ? -UWAGA_UNBOUNDED : -1500, variant % 3 ? 0 : UWAGA_UNBOUNDED);
    other_.push_back({});
    other_[0].operation = UWAGA_MASK_BAND, other_[0].low = -900, other_[0].high = 40;
    other_[0].start.mode = UWAGA_START_VALUE;
  }

  void test() {
    test_rows(0);
    test_rows(kTop);
    test_mass();
    test_received();
    test_sums_of_both();
  }

 private:
  static constexpr int64_t kTop = 4, kFirstKey = UWAGA_PART_KEYS, kFirstQuery = UWAGA_PART_QUERIES;

  // Statistics of rows, as uwaga_rows gives them.
  struct Rows {
    Operand output, maximum, sum, entropy, squares, distance, top;
    std::vector<int64_t> positions;
    explicit Rows(const Call& call)
        : output(call.output),
          maximum(per_row(call, 1)),
          sum(maximum),
          entropy(maximum),
          squares(maximum),
          distance(maximum),
          top(per_row(call, kTop)),
          positions(top.array().count(), -7) {}
    static Operand per_row(const Call& call, int64_t columns) {
      return Operand(UWAGA_FLOAT32, call.shape, call.shape.query_heads, call.shape.queries, columns, 0);
    }
    uwaga_row_statistics wanted(int64_t start, int64_t largest) {
      uwaga_row_statistics s{};
      s.softmax = {maximum.tensor(), sum.tensor()};
      s.entropy = entropy.tensor(), s.squares = squares.tensor(), s.distance = distance.tensor();
      s.distance_start.mode = UWAGA_START_VALUE, s.distance_start.value = start;
      if (largest == 0) return s;
      s.top = largest, s.top_weights = s.top_positions = top.tensor();
      s.top_positions.data = positions.data();
      s.top_positions.bytes = static_cast<int64_t>(positions.size() * sizeof(int64_t));
      return s;
    }
  };

  static Options options_of(int variant) {
    Options options;
    options.seed = 1190 + static_cast<uint64_t>(variant), options.dtype = variant % 3;
    options.threads = 1 + 2 * (variant % 2), options.sinks = variant == 2, options.relative = variant == 1;
    return options;
  }
  // Few rows are divided into chunks of keys, by several threads.
  static Shape shape_of(int variant) {
    return dense_shape(2, 2, variant % 2 ? 1 : 2, variant == 3 ? 20 : kFirstQuery + 100, kFirstKey + 300, 12, 20);
  }

  // Of rows from `first` on, and of the first or the last keys.
  uwaga_problem part(int64_t first_row, int64_t last_row, bool is_last) {
    uwaga_problem p = call_.problem();
    const int64_t j = is_last ? kFirstKey : 0, start = call_.shape.keys[0] - call_.shape.queries[0] + first_row - j;
    p.queries = last_row - first_row, p.keys = is_last ? call_.shape.keys[0] - kFirstKey : kFirstKey;
    p.query = rows_of(call_.query, first_row);
    p.key = rows_of(call_.key, j), p.value = rows_of(call_.value, j);
    p.dropout_query = first_row, p.dropout_key = j;
    mask_.assign(p.mask, p.mask + p.mask_operations);
    for (uwaga_mask_operation& op : mask_) op.start.mode = UWAGA_START_VALUE, op.start.value = start;
    p.mask = mask_.data();
    p.relative_start.mode = UWAGA_START_VALUE, p.relative_start.value = start;
    return p;
  }

  void test_rows(int64_t largest) {
    Rows parts(call_);
    uwaga_problem p = call_.problem();
    const uwaga_row_statistics of_whole = whole_.wanted(3, largest);
    const uwaga_forward_result to_whole{whole_.output.tensor(), {}}, to_parts{parts.output.tensor(), {}};
    expect(uwaga_rows(&p, &to_whole, &of_whole, nullptr) == UWAGA_OK, "rows refused: %s", uwaga_last_error());
    Floats memory(whole_.maximum.array().count() * (UWAGA_PADDED(call_.shape.value_width, 16) + 5 + 2 * largest));
    for (const bool is_last : {false, true}) {
      p = part(0, call_.shape.queries[0], is_last);
      const uwaga_row_statistics of_parts = parts.wanted(is_last ? 3 - kFirstKey : 3, largest);
      const uwaga_row_sums sums{{memory.data(), memory.size()}, is_last, is_last};
      expect(uwaga_rows_part(&p, &to_parts, &of_parts, &sums) == UWAGA_OK, "rows refused: %s", uwaga_last_error());
    }
    const std::pair<const Operand*, const Operand*> pairs[] = {
        {&whole_.output, &parts.output},   {&whole_.maximum, &parts.maximum}, {&whole_.sum, &parts.sum},
        {&whole_.entropy, &parts.entropy}, {&whole_.squares, &parts.squares}, {&whole_.distance, &parts.distance},
        {&whole_.top, &parts.top}};
    for (const auto& [a, b] : pairs) expect(same_bits(a->array(), b->array()), "rows in parts");
    expect(whole_.positions == parts.positions, "positions of the largest weights");
  }

  void test_mass() {
    Operand whole = Rows::per_row(call_, 1), parts = whole;
    const uwaga_tensor none{}, to_whole = whole.tensor(), to_parts = parts.tensor();
    uwaga_problem p = call_.problem();
    const uwaga_softmax softmax{whole_.maximum.tensor(), whole_.sum.tensor()};
    expect(uwaga_mass(&p, &softmax, other_.data(), 1, &to_whole) == UWAGA_OK, "%s", uwaga_last_error());
    std::vector<double> so_far(whole.array().count(), NAN);
    for (const bool is_last : {false, true}) {
      p = part(0, call_.shape.queries[0], is_last);
      std::vector<uwaga_mask_operation> other = other_;
      other[0].start.value -= is_last ? kFirstKey : 0;
      const uwaga_weight_sums sums{so_far.data(), static_cast<int64_t>(so_far.size()), is_last, 0};
      const int status = uwaga_mass_part(&p, &softmax, other.data(), 1, is_last ? &to_parts : &none, &sums);
      expect(status == UWAGA_OK, "mass refused: %s", uwaga_last_error());
    }
    expect(same_bits(whole.array(), parts.array()), "mass");
  }

  void test_received() {
    Operand whole(UWAGA_FLOAT32, call_.shape, 2, call_.shape.keys, 1, 0), parts = whole, weights = whole_.entropy;
    for (int64_t n = 0; n < weights.array().count(); n += 3) weights.array().set(n, 0.0);
    const uwaga_tensor none{}, to_whole = whole.tensor(), to_parts = parts.tensor();
    for (const bool weighted : {false, true}) {
      uwaga_problem p = call_.problem();
      const uwaga_tensor of_rows = weighted ? weights.tensor() : none;
      const uwaga_softmax known{whole_.maximum.tensor(), whole_.sum.tensor()};
      expect(uwaga_received(&p, &known, &of_rows, &to_whole) == UWAGA_OK, "%s", uwaga_last_error());
      std::vector<double> so_far(whole.array().count(), NAN);
      for_row_parts([&](int64_t first, int64_t last, bool is_last) {
        p = whole_keys(first, last);
        const uwaga_softmax softmax{rows_of(whole_.maximum, first), rows_of(whole_.sum, first)};
        const uwaga_tensor of_part = weighted ? rows_of(weights, first) : none;
        const uwaga_weight_sums sums{so_far.data(), static_cast<int64_t>(so_far.size()), first > 0, 0};
        const int status = uwaga_received_part(&p, &softmax, &of_part, is_last ? &to_parts : &none, &sums);
        expect(status == UWAGA_OK, "received refused: %s", uwaga_last_error());
      });
      expect(same_bits(whole.array(), parts.array()), "received");
    }
  }

  // Diagonals and cells: parts of queries and of keys in any order.
  void test_sums_of_both() {
    const Shape& s = call_.shape;
    const int64_t heads = s.sequences * s.query_heads, queries = s.queries[0], keys = s.keys[0];
    const int64_t diagonals = queries + keys - 1;
    Operand whole(UWAGA_FLOAT32, s, s.query_heads, {diagonals, diagonals}, 1, 0);
    const uwaga_tensor to_whole = whole.tensor();
    uwaga_problem p = call_.problem();
    const uwaga_softmax known{whole_.maximum.tensor(), whole_.sum.tensor()};
    expect(uwaga_diagonal_sums(&p, &known, &to_whole) == UWAGA_OK, "%s", uwaga_last_error());
    const std::vector<int64_t> rows = {3, 3, queries / 2, queries - 1}, columns = {0, 70, keys - 5};
    const auto twice = [](const std::vector<int64_t>& x) {
      std::vector<int64_t> both = x;
      both.insert(both.end(), x.begin(), x.end());
      return both;
    };
    std::vector<int64_t> row_edges = twice(rows), column_edges = twice(columns);
    std::vector<float> cells(heads * 6);
    const uwaga_pool_args of_whole{
        UWAGA_POOL_MASS, 0, integers(row_edges), integers(column_edges), 3, 2, floats(cells), {}, 0};
    expect(uwaga_pool(&p, &known, &of_whole) == UWAGA_OK, "%s", uwaga_last_error());

    std::vector<uwaga::ExactSum> of_diagonals(heads * diagonals), of_cells(heads * 6);
    for (const bool last_keys : {true, false}) {
      for_row_parts([&](int64_t first, int64_t last, bool) {
        p = part(first, last, last_keys);
        const int64_t j = last_keys ? kFirstKey : 0;
        const uwaga_softmax softmax{rows_of(whole_.maximum, first), rows_of(whole_.sum, first)};
        const int64_t from = j - last + queries;
        const uwaga_exact_sums to_diagonals{reinterpret_cast<uint64_t*>(of_diagonals.data() + from),
                                            3 * static_cast<int64_t>(of_diagonals.size() - from), diagonals};
        expect(uwaga_diagonal_sums_part(&p, &softmax, &to_diagonals) == UWAGA_OK, "%s", uwaga_last_error());
        const auto moved = [](std::vector<int64_t> edges, int64_t origin, int64_t size) {
          for (int64_t& x : edges) x = std::min(std::max<int64_t>(x - origin, 0), size);
          return edges;
        };
        row_edges = twice(moved(rows, first, last - first)), column_edges = twice(moved(columns, j, p.keys));
        const uwaga_pool_args args{UWAGA_POOL_MASS, 0, integers(row_edges), integers(column_edges), 3, 2, {}, {}, 0};
        const uwaga_exact_sums to_cells{reinterpret_cast<uint64_t*>(of_cells.data()),
                                        3 * static_cast<int64_t>(of_cells.size()), 6};
        expect(uwaga_pool_part(&p, &softmax, &args, &to_cells) == UWAGA_OK, "%s", uwaga_last_error());
      });
    }
    for (int64_t n = 0; n < heads * diagonals; ++n) {
      const float sum = static_cast<float>(of_diagonals[n].value());
      const double expected = whole.get(n / diagonals / 2, n / diagonals % 2, n % diagonals, 0);
      expect(sum == static_cast<float>(expected), "diagonal %d is %.9g, not %.9g", static_cast<int>(n),
             static_cast<double>(sum), expected);
    }
    for (int64_t n = 0; n < heads * 6; ++n) {
      const int64_t row = n % 6 / 2, count = rows[row + 1] - rows[row];
      const double mean = count ? of_cells[n].value() / static_cast<double>(count) : 0.0;
      expect(static_cast<float>(mean) == cells[n], "cell %d", static_cast<int>(n));
    }
  }

  // All keys and the rows [first, last).
  uwaga_problem whole_keys(int64_t first, int64_t last) {
    uwaga_problem p = part(first, last, false);
    p.keys = call_.shape.keys[0];
    return p;
  }

  template <class Work>
  void for_row_parts(const Work& work) {
    const int64_t queries = call_.shape.queries[0], first = std::min(kFirstQuery, queries);
    work(0, first, first == queries);
    if (first < queries) work(first, queries, true);
  }

  const Options options_;
  Call call_;
  Rows whole_{call_};
  std::vector<uwaga_mask_operation> mask_, other_;
};

void test_parts_of_weights() {
  for (int variant = 0; variant < 4; ++variant) WeightsInParts(variant).test();
}

// Numbers of all sizes, in any order; what is no number is none at the end.
void test_exact_sums() {
  uwaga::ExactSum up, down, halves[2];
  double expected = 0.0;
  std::vector<double> numbers;
  for (int n = -149; n < 30; ++n) numbers.push_back(ldexp(1.0, n));
  for (int n = -126; n < 29; ++n) numbers.push_back(static_cast<float>(ldexp(1.2345678, n)));
  for (size_t n = 0; n < numbers.size(); ++n) up.add(numbers[n]), halves[n % 2].add(numbers[n]), expected += numbers[n];
  for (size_t n = numbers.size(); n-- > 0;) down.add(numbers[n]);
  halves[0].add(halves[1]);
  expect(up.value() == down.value() && up.value() == halves[0].value(), "exact sums in another order");
  expect_near(up.value(), expected, 1e-15 * expected, "exact sum", 0);
  uwaga::ExactSum one;
  one.add(0x1p-149), one.add(0.0);
  expect(one.value() == 0x1p-149, "the smallest number");
  for (int n = 0; n < 3000; ++n) one.add(1.0);
  expect(one.value() == 3000.0, "many ones");
  uwaga::ExactSum nan;
  nan.add(3.0), nan.add(static_cast<double>(kNan)), nan.add(1.0), up.add(nan);
  expect(std::isnan(nan.value()) && std::isnan(up.value()), "NaN");
  for (const double x : {-1.0, 0x1p30, 1e300, HUGE_VAL, -HUGE_VAL}) {
    uwaga::ExactSum no_weight;
    no_weight.add(x);
    expect(std::isnan(no_weight.value()), "%g is no weight", x);
  }
}

void test_refused_parts() {
  Options options;
  Call call(dense_shape(1, 1, 1, 3, 5, 4, 4), options);
  const uwaga_problem p = call.problem();
  uwaga_forward_result result{};
  Floats memory(3 * (16 + 2));
  const auto refuses = [](int status, const char* message) {
    expect(status == UWAGA_BAD_ARGUMENT && !strcmp(uwaga_last_error(), message), "%s", uwaga_last_error());
  };
  uwaga_forward_sums sums{{memory.data(), memory.size() - 1}, 0, 0};
  refuses(uwaga_forward_part(&p, &result, &sums), "sums of outputs: 54 elements are needed, and there are 53");
  sums.sums = {};
  refuses(uwaga_forward_part(&p, &result, &sums), "there is no memory for the sums of outputs");
  sums.sums = {memory.data(), memory.size()};
  result.lse = call.lse.tensor();
  refuses(uwaga_forward_part(&p, &result, &sums), "lse: there is none without an output");
  result.lse = {};
  for (uwaga_softmax softmax : {uwaga_softmax{call.lse.tensor(), {}}, uwaga_softmax{{}, call.lse.tensor()}}) {
    const char* missing = softmax.sum.data ? "maximum of the softmax: missing" : "sum of the softmax: missing";
    uwaga_row_statistics wanted{};
    wanted.softmax = softmax;
    const uwaga_row_sums of_rows{{memory.data(), memory.size()}, 0, 1};
    refuses(uwaga_rows_part(&p, &result, &wanted, &of_rows), missing);
  }
  const uwaga_softmax known{call.lse.tensor(), call.lse.tensor()};
  uwaga_row_statistics wanted{};
  wanted.softmax = known;
  refuses(uwaga_rows_part(&p, &result, &wanted, std::array{uwaga_row_sums{{memory.data(), 14}, 0, 0}}.data()),
          "sums of rows: 15 elements are needed, and there are 14");
  double numbers[5];
  uwaga_weight_sums few{numbers, 2, 0, 0};
  refuses(uwaga_mass_part(&p, &known, nullptr, 0, &result.lse, &few),
          "sums of weights: 3 elements are needed, and there are 2");
  few.count = 4;
  refuses(uwaga_received_part(&p, &known, &result.lse, &result.lse, &few),
          "sums of weights: 5 elements are needed, and there are 4");
  uint64_t words[21];
  refuses(uwaga_diagonal_sums_part(&p, &known, std::array{uwaga_exact_sums{words, 20, 7}}.data()),
          "exact sums needs 21 bytes of memory, and has 20");
  refuses(uwaga_diagonal_sums_part(&p, &known, std::array{uwaga_exact_sums{words, 21, 6}}.data()),
          "exact sums of a head: 6 must lie between 7 and 1099511627776");
  const uwaga_pool_args most{UWAGA_POOL_MAX, 0, {}, {}, 0, 0, {}, {}, 0};
  refuses(uwaga_pool_part(&p, &known, &most, std::array{uwaga_exact_sums{words, 21, 7}}.data()),
          "exact sums are those of UWAGA_POOL_MASS");
  Call ragged(ragged_shape(1, 1, {3}, {5}, 4, 4), options);
  const uwaga_problem of_ragged = ragged.problem();
  refuses(uwaga_forward_part(&of_ragged, &result, &sums),
          "sums of outputs go through dense problems without selected rows only");
  uwaga_backward_args a{};
  a.output = call.output.tensor(), a.grad_output = call.grad_output.tensor(), a.lse = call.lse.tensor();
  uwaga_backward_sums gradients{};
  gradients.grad_query = {memory.data(), 48 * 16 - 1};
  refuses(uwaga_backward_part(&p, &a, &gradients),
          "sums of the query's gradient: 768 elements are needed, and there are 767");
  gradients.grad_query = {}, gradients.grad_key = {memory.data(), 64 * 16 - 1};
  refuses(uwaga_backward_part(&p, &a, &gradients),
          "sums of the key's gradient: 1024 elements are needed, and there are 1023");
}

// The same visibility written as a band, as bits, and as a program of both.
void test_spellings() {
  for (int variant = 0; variant < 6; ++variant) {
    Options options;
    options.seed = 1200 + static_cast<uint64_t>(variant), options.dtype = variant % 2 ? UWAGA_BFLOAT16 : UWAGA_FLOAT32;
    const Shape shape = dense_shape(1, 2, 1, 150, 150 + 64 * (variant / 2), 16, 24);
    const int64_t low = variant % 3 == 2 ? -40 : -UWAGA_UNBOUNDED;
    Call band(shape, options), bits(shape, options), both(shape, options);
    band.mask.band(low, 0);
    bits.mask.dense([&](int64_t b, int64_t h, int64_t i, int64_t j) { return band.mask.sees(b, h, i, j); });
    both.mask.band(low, 0);
    both.mask.dense([&](int64_t b, int64_t h, int64_t i, int64_t j) { return band.mask.sees(b, h, i, j); });
    both.mask.join(UWAGA_MASK_OR);
    for (Call* call : {&band, &bits, &both}) run(*call, true);
    expect_same(band, bits, true, "band and bits");
    expect_same(band, both, true, "band and program");
  }
}

// In one of two calls, masked keys and the gradients of some outputs are NaN and infinity. Results that do not depend on them
// must be bit-identical.
class HiddenNumbers {
 public:
  HiddenNumbers(const Shape& shape, const Options& options, std::vector<int64_t> bad_keys, bool short_keys,
                bool bad_gradients)
      : shape_(shape),
        bad_keys_(bad_keys),
        clean_(shape, options),
        poisoned_(shape, options),
        bad_gradients_(bad_gradients) {
    for (Call* call : {&clean_, &poisoned_}) {
      call->mask.band(-UWAGA_UNBOUNDED, 0);
      if (short_keys) call->mask.lengths({101}), call->mask.join(UWAGA_MASK_AND);
    }
    for (const int64_t j : bad_keys_) {
      for (int64_t w = 0; w < shape_.query_width; ++w) poisoned_.key.set(0, 0, j, w, w % 2 ? kNan : kInfinity);
      for (int64_t w = 0; w < shape_.value_width; ++w) poisoned_.value.set(0, 0, j, w, w % 3 ? kInfinity : kNan);
    }
    for (Call* call : {&clean_, &poisoned_}) {
      expect(call->forward() == UWAGA_OK, "forward refused");
      call->randomize_grad_output();
    }
    for_rows(shape_, [&](int64_t b, int64_t h, int64_t i) {
      if (!gradient_is_bad(h, i)) return;
      for (int64_t w = 0; w < shape_.value_width; ++w) poisoned_.grad_output.set(b, h, i, w, kNan);
    });
    for (Call* call : {&clean_, &poisoned_}) expect(call->backward() == UWAGA_OK, "backward refused");
  }

  void check() const {
    for_rows(shape_, [&](int64_t, int64_t h, int64_t i) {
      if (sees_bad_key(h, i)) return;
      check_row(clean_.output, poisoned_.output, h, i, shape_.value_width, "output of query");
      check_row(clean_.lse, poisoned_.lse, h, i, 1, "lse of query");
      if (gradient_is_bad(h, i)) return;
      check_row(clean_.grad_query, poisoned_.grad_query, h, i, shape_.query_width, "grad of query");
    });
    for (int64_t j = 0; j < shape_.keys[0]; ++j) {
      bool touched = false;
      for_rows(shape_, [&](int64_t b, int64_t h, int64_t i) {
        touched |= clean_.sees(b, h, i, j) && (sees_bad_key(h, i) || gradient_is_bad(h, i));
      });
      if (touched) continue;
      check_row(clean_.grad_key, poisoned_.grad_key, 0, j, shape_.query_width, "grad of key");
      check_row(clean_.grad_value, poisoned_.grad_value, 0, j, shape_.value_width, "grad of value");
    }
  }

 private:
  bool gradient_is_bad(int64_t h, int64_t i) const {
    return bad_gradients_ && h == 1 && (i == shape_.queries[0] / 2 || i == shape_.queries[0] - 1);
  }
  bool sees_bad_key(int64_t h, int64_t i) const {
    bool sees = false;
    for (const int64_t j : bad_keys_) sees |= clean_.sees(0, h, i, j);
    return sees;
  }
  static void check_row(const Operand& a, const Operand& b, int64_t h, int64_t row, int64_t columns, const char* what) {
    for (int64_t w = 0; w < columns; ++w) {
      const double x = a.get(0, h, row, w), y = b.get(0, h, row, w);
      expect(x == y, "%s %d is %g, not %g", what, static_cast<int>(row), y, x);
    }
  }

  const Shape shape_;
  const std::vector<int64_t> bad_keys_;
  Call clean_, poisoned_;
  const bool bad_gradients_;
};

void test_hidden_numbers() {
  Random random(1300);
  for (int variant = 0; variant < 36; ++variant) {
    Options options;
    options.seed = random.word(), options.dtype = variant % 3 == 1 || variant >= 24 ? UWAGA_BFLOAT16 : UWAGA_FLOAT32;
    options.threads = 1 + variant % 2, options.layout = variant % 4, options.softmax = variant % 5 != 4;
    // Few rows and whole vectors: values are then read without packing.
    const Shape shape =
        variant < 16 || variant >= 24 ? dense_shape(1, 2, 1, 70, 150, 12, 20) : dense_shape(1, 2, 1, 11, 150, 12, 32);
    // A finite call leaves finite numbers in scratch memory, which a stale read would return.
    Options packed = options;
    packed.layout = 2, packed.threads = 1;
    Call finite(shape, packed);
    run(finite, true);
    std::vector<int64_t> bad_keys = {149};                                     // the last of its block
    if (variant % 3 == 0) bad_keys.push_back(150 - shape.queries[0] / 2 - 1);  // visible to some rows of a tile only
    HiddenNumbers(shape, options, bad_keys, variant % 2, variant % 4 == 3).check();
  }
}

}  // namespace

void test_bits() {
  group("refused parts", test_refused_parts);
  group("exact sums", test_exact_sums);
  for_levels([](const uwaga::Kernels& k) {
    expect(uwaga_set_level(k.name) == UWAGA_OK, "%s cannot be set", k.name);
    const std::string level = std::string(k.name) + ": same bits, ";
    group(level + "threads and split keys", test_threads);
    group(level + "ragged, padded and alone", test_company);
    group(level + "few queries and many", test_few_queries);
    group(level + "parts of queries and keys", test_parts);
    group(level + "parts of weights", test_parts_of_weights);
    group(level + "one mask, three spellings", test_spellings);
    group(level + "whatever masked keys hold", test_hidden_numbers);
  });
}

}  // namespace uwaga_tests
