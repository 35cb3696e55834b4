// Keys in pages: the bits of the same keys in rows, at every level, and what is refused.
#include <string.h>

#include <string>
#include <vector>

#include "tests/oracle.h"

namespace uwaga_tests {
namespace {

constexpr int64_t kTop = 3;

// The results of the functions of the weights whose keys go through different code: packed, in place, and one by one.
struct Results {
  Operand maximum, sum, entropy, top_weights, received, weights;
  std::vector<int64_t> top_positions;

  explicit Results(const Shape& s)
      : maximum(UWAGA_FLOAT32, s, s.query_heads, s.queries, 1, 0),
        sum(UWAGA_FLOAT32, s, s.query_heads, s.queries, 1, 0),
        entropy(UWAGA_FLOAT32, s, s.query_heads, s.queries, 1, 0),
        top_weights(UWAGA_FLOAT32, s, s.query_heads, s.queries, kTop, 0),
        received(UWAGA_FLOAT32, s, s.query_heads, s.keys, 1, 0),
        weights(UWAGA_FLOAT32, s, s.query_heads, s.queries, s.keys[0], 0),
        top_positions(top_weights.array().count(), -7) {}

  void read(const uwaga_problem& p, bool dense) {
    uwaga_row_statistics s{};
    s.softmax = {maximum.tensor(), sum.tensor()};
    s.entropy = entropy.tensor();
    s.top = kTop, s.top_weights = top_weights.tensor(), s.top_positions = top_weights.tensor();
    s.top_positions.data = top_positions.data();
    s.top_positions.bytes = static_cast<int64_t>(top_positions.size() * sizeof(int64_t));
    const uwaga_forward_result none{};
    expect(uwaga_rows(&p, &none, &s, nullptr) == UWAGA_OK, "rows refused: %s", uwaga_last_error());
    const uwaga_tensor no_weights{}, r = received.tensor();
    expect(uwaga_received(&p, &s.softmax, &no_weights, &r) == UWAGA_OK, "received refused: %s", uwaga_last_error());
    if (!dense) return;
    std::vector<int64_t> sequences, heads, queries, keys;
    for (int64_t n = 0; n < p.sequences; ++n) sequences.push_back(n);
    for (int64_t n = 0; n < p.query_heads; ++n) heads.push_back(n);
    for (int64_t n = 0; n < p.queries; ++n) queries.push_back(n);
    for (int64_t n = 0; n < p.keys; ++n) keys.push_back(n);
    const uwaga_selection all{integers(sequences), integers(heads), integers(queries)};
    const uwaga_integers every = integers(keys);
    const uwaga_tensor out = weights.tensor();
    expect(uwaga_weights(&p, &s.softmax, &all, &every, &out) == UWAGA_OK, "weights refused: %s", uwaga_last_error());
  }
};

// The keys of a call copied into pages in random order, between pages of NaN; every row of the table ends with -1.
class Pages {
 public:
  Pages(const Call& call, int64_t rows, int layout) : call_(call), rows_(rows) {
    const Shape& s = call.shape;
    int64_t used = 0;
    for (int64_t b = 0; b < s.sequences; ++b) used += (s.keys[b] + rows - 1) / rows;
    row_of_table_ = (s.longest(s.keys) + rows - 1) / rows + 1, count_ = used + 2;
    const Shape cache = dense_shape(count_, 1, 1, 1, rows, 1, 1);
    memory_.reset(new Operand(call.options.dtype, cache, s.key_heads, cache.keys, s.query_width, layout));
    for (int64_t n = 0; n < memory_->array().count(); ++n) memory_->array().set(n, kNan);
    std::vector<int64_t> order;
    for (int64_t n = 0; n < count_; ++n) order.push_back(n);
    Random random(call.options.seed + 9);
    for (int64_t n = count_ - 1; n > 0; --n) std::swap(order[n], order[random.below(n + 1)]);
    table_.assign(s.sequences * row_of_table_, -1);
    for (int64_t b = 0, next = 0; b < s.sequences; ++b) {
      for (int64_t j = 0; j < s.keys[b]; ++j) {
        if (j % rows == 0) table_[b * row_of_table_ + j / rows] = order[next++];
        const int64_t page = table_[b * row_of_table_ + j / rows];
        for (int64_t g = 0; g < s.key_heads; ++g) {
          for (int64_t w = 0; w < s.query_width; ++w) memory_->set(page, g, j % rows, w, call.key.get(b, g, j, w));
        }
      }
    }
  }
  uwaga_problem problem() const {
    uwaga_problem p = call_.problem();
    p.key = memory_->tensor();
    p.key_pages = {integers(table_), row_of_table_, rows_, count_};
    return p;
  }
  std::vector<int64_t>& table() { return table_; }

 private:
  const Call& call_;
  const int64_t rows_;
  int64_t row_of_table_, count_;
  std::unique_ptr<Operand> memory_;
  std::vector<int64_t> table_;
};

bool same_bits(const Operand& a, const Operand& b) {
  const auto bytes = [](const Operand& x) { return static_cast<size_t>(x.array().count()) * sizeof(float); };
  return bytes(a) == bytes(b) && !memcmp(a.tensor().data, b.tensor().data, bytes(a));
}

void test_same_bits(int dtype) {
  uint64_t seed = 40;
  for (const int64_t rows : {1, 7, 16, 64, 96, 256}) {
    for (const bool ragged : {false, true}) {
      for (const int64_t queries : {1, 50}) {
        Options options;
        options.dtype = dtype, options.layout = static_cast<int>(seed % 4), options.seed = ++seed;
        options.relative = seed % 2, options.threads = 1 + static_cast<int>(seed % 3);
        const Shape shape = ragged ? ragged_shape(4, 2, {queries, 0, 3}, {2100, 5, 130}, 32, 8)
                                   : dense_shape(2, 4, 2, queries, 300, 24, 8);
        Call call(shape, options);
        call.mask.band(-UWAGA_UNBOUNDED, 0);
        Pages pages(call, rows, static_cast<int>(seed / 4 % 4));
        Results in_rows(shape), in_pages(shape);
        in_rows.read(call.problem(), !ragged), in_pages.read(pages.problem(), !ragged);
        const std::string what = std::to_string(rows) + (ragged ? " rows, ragged" : " rows, dense");
        expect(same_bits(in_rows.maximum, in_pages.maximum) && same_bits(in_rows.sum, in_pages.sum), "%s: softmax",
               what.c_str());
        expect(same_bits(in_rows.entropy, in_pages.entropy), "%s: entropy", what.c_str());
        expect(same_bits(in_rows.top_weights, in_pages.top_weights) && in_rows.top_positions == in_pages.top_positions,
               "%s: largest weights", what.c_str());
        expect(same_bits(in_rows.received, in_pages.received), "%s: received", what.c_str());
        if (!ragged) expect(same_bits(in_rows.weights, in_pages.weights), "%s: weights", what.c_str());
      }
    }
  }
}

void test_refused_pages() {
  Options options;
  Call call(ragged_shape(2, 1, {3, 1}, {40, 2}, 8, 8), options);
  Pages pages(call, 16, 0);
  const auto refuses = [&](const uwaga_problem& p, const char* message) {
    Results results(call.shape);
    uwaga_row_statistics s{};
    s.softmax = {results.maximum.tensor(), results.sum.tensor()};
    const uwaga_forward_result none{};
    expect(uwaga_rows(&p, &none, &s, nullptr) == UWAGA_BAD_ARGUMENT && !strcmp(uwaga_last_error(), message), "%s",
           uwaga_last_error());
  };
  uwaga_problem p = pages.problem();
  p.key_pages.rows = 0;
  refuses(p, "rows of a page: 0 must lie between 1 and 2147483584");
  p = pages.problem(), p.key_pages.count = 1000;
  refuses(p, "key needs 512000 bytes of memory, and has 3072");
  p = pages.problem(), p.key_pages.count = 2;
  refuses(p, "number of a page: 2 must lie between 0 and 1");
  p = pages.problem(), p.key_pages.row_of_table = 2;
  refuses(p, "sequence 0 has 40 keys, and its 2 pages hold 32");
  p = pages.problem(), p.key_pages.table.count = 7;
  refuses(p, "table of pages: 8 elements are needed, and there are 7");
  p = pages.problem(), p.key_pages.row_of_table = -1;
  refuses(p, "pages of a sequence in the table: -1 must lie between 0 and 2147483584");
  pages.table()[2] = -1;
  refuses(pages.problem(), "number of a page: -1 must lie between 0 and 5");
  pages.table()[2] = 0;
  p = pages.problem();
  const uwaga_forward_result result{call.output.tensor(), call.lse.tensor()};
  expect(uwaga_forward(&p, &result) == UWAGA_BAD_ARGUMENT &&
             !strcmp(uwaga_last_error(), "keys in pages serve functions of the weights only, which read no values"),
         "%s", uwaga_last_error());
}

}  // namespace

void test_pages() {
  for_levels([](const uwaga::Kernels& k) {
    expect(uwaga_set_level(k.name) == UWAGA_OK, "%s cannot be set", k.name);
    for (const int dtype : {UWAGA_FLOAT32, UWAGA_BFLOAT16, UWAGA_FLOAT16}) {
      group(std::string(k.name) + ": the bits of keys in rows, " + type_name(dtype), [&] { test_same_bits(dtype); });
    }
  });
  uwaga_set_level(nullptr);
  group("refused", test_refused_pages);
}

}  // namespace uwaga_tests
