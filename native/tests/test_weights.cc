// The functions of attention maps, compared with the oracle: statistics, entries, sums and cells,
// at every level; and bit-identical results for other numbers of threads and masked values.
#include <string.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "tests/oracle.h"

namespace uwaga_tests {
namespace {

constexpr int64_t kTop = 5, kStart = -3;

// How many diagonals the matrix of queries and keys of each sequence has.
std::vector<int64_t> diagonals_of(const Shape& shape) {
  std::vector<int64_t> counts;
  for (int64_t b = 0; b < shape.sequences; ++b)
    counts.push_back(std::max<int64_t>(shape.queries[b] + shape.keys[b] - 1, 0));
  return counts;
}

// A call, and the results of every function of its attention weights.
struct Readings {
  Call& call;
  const Shape& shape = call.shape;
  Operand maximum, sum, entropy, squares, distance, top_weights, row_weights, masses, received, diagonals;
  std::vector<int64_t> top_positions;

  explicit Readings(Call& c)
      : call(c),
        maximum(per_row(1)),
        sum(per_row(1)),
        entropy(per_row(1)),
        squares(per_row(1)),
        distance(per_row(1)),
        top_weights(per_row(kTop)),
        row_weights(per_row(1)),
        masses(per_row(1)),
        received(UWAGA_FLOAT32, c.shape, c.shape.query_heads, c.shape.keys, 1, 0),
        diagonals(UWAGA_FLOAT32, c.shape, c.shape.query_heads, diagonals_of(c.shape), 1, 0),
        top_positions(top_weights.array().count(), -7) {
    Random random(c.options.seed + 3);
    for (int64_t n = 0; n < row_weights.array().count(); ++n) {
      row_weights.array().set(n, random.chance(0.3) ? 0.0 : random.uniform(-1.0, 2.0));
    }
  }
  Operand per_row(int64_t columns) const {
    return Operand(UWAGA_FLOAT32, call.shape, call.shape.query_heads, call.shape.queries, columns, 0);
  }
  uwaga_softmax softmax() const { return {maximum.tensor(), sum.tensor()}; }

  void read_rows(bool with_output, const uwaga_selection* selection = nullptr) {
    uwaga_row_statistics s{};
    s.softmax = softmax();
    s.entropy = entropy.tensor(), s.squares = squares.tensor(), s.distance = distance.tensor();
    s.distance_start.mode = UWAGA_START_VALUE, s.distance_start.value = kStart;
    s.top = kTop, s.top_weights = top_weights.tensor(), s.top_positions = top_weights.tensor();
    s.top_positions.data = top_positions.data();
    s.top_positions.bytes = static_cast<int64_t>(top_positions.size() * sizeof(int64_t));
    const uwaga_problem p = call.problem();
    uwaga_forward_result result{};
    if (with_output) result = {call.output.tensor(), call.lse.tensor()};
    expect(uwaga_rows(&p, &result, &s, selection) == UWAGA_OK, "rows refused: %s", uwaga_last_error());
  }
  void read_sums(const MaskProgram& other) {
    const uwaga_problem p = call.problem();
    const uwaga_softmax known = softmax();
    const uwaga_tensor m = masses.tensor(), r = received.tensor(), w = row_weights.tensor();
    const auto& operations = other.operations();
    expect(uwaga_mass(&p, &known, operations.data(), static_cast<int64_t>(operations.size()), &m) == UWAGA_OK,
           "mass refused: %s", uwaga_last_error());
    expect(uwaga_received(&p, &known, &w, &r) == UWAGA_OK, "received refused: %s", uwaga_last_error());
    const uwaga_tensor d = diagonals.tensor();
    const int status = shape.ragged ? UWAGA_BAD_ARGUMENT : UWAGA_OK;
    expect(uwaga_diagonal_sums(&p, &known, &d) == status, "sums of diagonals: %s", uwaga_last_error());
  }
};

double log_or_zero(double x) { return x > 0.0 ? log(x) : 0.0; }

// A sum of float32 terms, each with a relative error of its own.
struct Sum {
  double value = 0.0, error = 0.0, size = 0.0;
  void add(double x, double relative_error) { value += x, error += fabs(x) * relative_error, size += fabs(x); }
  double bound(double terms) const { return error + (terms + 16) * kEps * size + 1e-36; }
};

void check_row(const Readings& r, int64_t b, int64_t h, int64_t i) {
  const RowWeights row = r.call.row_weights(b, h, i);
  const int64_t keys = r.shape.keys[b], at = (b * 100 + h) * 1000000 + i;
  const double total = r.sum.get(b, h, i, 0);
  const double lse = total == 0.0 ? -INFINITY : r.maximum.get(b, h, i, 0) + log(total);
  if (row.lse == -INFINITY) {
    expect(total == 0.0, "the sum of a row that sees nothing is %g", total);
  } else {
    expect_near(lse, row.lse, row.lse_error + kEps, "maximum + log(sum)", at);
  }
  Sum entropy, squares, distance;
  double most = 0.0, mass = 0.0;
  for (int64_t j = 0; j < keys; ++j) {
    const double a = row.weights[j], error = row.relative_error[j];
    entropy.add(-a * log_or_zero(a), error), entropy.error += a * error;
    squares.add(a * a, 2 * error), distance.add(a * llabs(j - i - kStart), error);
    most = std::max(most, a), mass += a;
  }
  entropy.size += 2 * mass * fabs(log_or_zero(most));  // sums begin relative to the largest weight
  const double terms = static_cast<double>(keys);
  expect_near(r.entropy.get(b, h, i, 0), entropy.value, entropy.bound(terms), "entropy", at);
  expect_near(r.squares.get(b, h, i, 0), squares.value, squares.bound(terms), "squares", at);
  expect_near(r.distance.get(b, h, i, 0), distance.value, distance.bound(terms), "distance", at);

  std::vector<double> falling = row.weights;
  std::sort(falling.rbegin(), falling.rend());
  std::vector<int64_t> seen;
  const int64_t visible =
      std::count_if(row.relative_error.begin(), row.relative_error.end(), [](double e) { return e > 0.0; });
  for (int64_t n = 0; n < kTop; ++n) {
    const double weight = r.top_weights.get(b, h, i, n);
    const uwaga_tensor t = r.top_weights.tensor();
    const int64_t packed = r.shape.ragged ? Shape::offset(r.shape.queries, b) + i : i;
    const int64_t key =
        r.top_positions[(r.shape.ragged ? 0 : b) * t.batch + h * t.head + packed * t.row + n * t.column];
    if (n >= visible) {
      expect(key == -1 && weight == 0.0, "there are %d keys, but number %d is %d", static_cast<int>(visible),
             static_cast<int>(n), static_cast<int>(key));
      continue;
    }
    if (!expect(key >= 0 && key < keys && r.call.sees(b, h, i, key), "a hidden key is among the largest")) continue;
    const double bound = row.relative_error[key] * row.weights[key] + 1e-37;
    expect_near(weight, row.weights[key], bound, "top weight", at);
    expect_near(weight, falling[n], 2 * bound, "rank of top weight", at);
    expect(std::find(seen.begin(), seen.end(), key) == seen.end(), "a key is twice among the largest");
    seen.push_back(key);
  }
}

void check_sums(const Readings& r, const MaskProgram& other) {
  for (int64_t b = 0; b < r.shape.sequences; ++b) {
    for (int64_t h = 0; h < r.shape.query_heads; ++h) {
      std::vector<Sum> columns(r.shape.keys[b]), diagonals(r.shape.queries[b] + r.shape.keys[b]);
      for (int64_t i = 0; i < r.shape.queries[b]; ++i) {
        const RowWeights row = r.call.row_weights(b, h, i);
        Sum mass;
        for (int64_t j = 0; j < r.shape.keys[b]; ++j) {
          if (other.sees(b, h, i, j)) mass.add(row.weights[j], row.relative_error[j]);
          diagonals[j - i + r.shape.queries[b] - 1].add(row.weights[j], row.relative_error[j]);
          columns[j].add(r.row_weights.get(b, h, i, 0) * row.weights[j], row.relative_error[j] + 2 * kEps);
        }
        expect_near(r.masses.get(b, h, i, 0), mass.value, mass.bound(64), "mass", i);
      }
      for (int64_t j = 0; j < r.shape.keys[b]; ++j) {
        expect_near(r.received.get(b, h, j, 0), columns[j].value, columns[j].bound(96), "received", j);
      }
      for (int64_t n = 0; n < r.shape.queries[b] + r.shape.keys[b] - 1 && !r.shape.ragged; ++n) {
        expect_near(r.diagonals.get(b, h, n, 0), diagonals[n].value, diagonals[n].bound(64), "diagonal", n);
      }
    }
  }
}

std::vector<int64_t> random_edges(Random& random, const std::vector<int64_t>& lengths, int64_t bins) {
  std::vector<int64_t> edges;
  for (const int64_t length : lengths) {
    std::vector<int64_t> each;
    for (int64_t n = 0; n <= bins; ++n) each.push_back(random.between(0, length));
    std::sort(each.begin(), each.end());
    edges.insert(edges.end(), each.begin(), each.end());
  }
  return edges;
}

void check_cells(const Readings& r, Random& random) {
  const int64_t rows = random.between(1, 9), columns = random.between(1, 9);
  const Shape& shape = r.shape;
  const std::vector<int64_t> query_edges = random_edges(random, shape.queries, rows);
  const std::vector<int64_t> key_edges = random_edges(random, shape.keys, columns);
  const int64_t count = shape.sequences * shape.query_heads * rows * columns;
  std::vector<float> mass(count, kNan), most(count, kNan);
  std::vector<int64_t> positions(2 * count, -7);
  const uwaga_problem p = r.call.problem();
  const uwaga_softmax known = r.softmax();
  uwaga_pool_args args{UWAGA_POOL_MASS, 0, integers(query_edges), integers(key_edges), rows, columns, floats(mass),
                       nullptr,         0};
  expect(uwaga_pool(&p, &known, &args) == UWAGA_OK, "pool refused: %s", uwaga_last_error());
  args.how = UWAGA_POOL_MAX, args.cells = floats(most), args.positions = positions.data(),
  args.position_count = 2 * count;
  expect(uwaga_pool(&p, &known, &args) == UWAGA_OK, "pool refused: %s", uwaga_last_error());
  int64_t n = 0;
  for (int64_t b = 0; b < shape.sequences; ++b) {
    for (int64_t h = 0; h < shape.query_heads; ++h) {
      std::vector<RowWeights> row_of;
      for (int64_t i = 0; i < shape.queries[b]; ++i) row_of.push_back(r.call.row_weights(b, h, i));
      for (int64_t y = 0; y < rows; ++y) {
        for (int64_t x = 0; x < columns; ++x, ++n) {
          const int64_t* i = &query_edges[b * (rows + 1) + y];
          const int64_t* j = &key_edges[b * (columns + 1) + x];
          Sum cell;
          double largest = 0.0, error = 0.0;
          bool any = false;
          for (int64_t q = i[0]; q < i[1]; ++q) {
            for (int64_t k = j[0]; k < j[1]; ++k) {
              if (!r.call.sees(b, h, q, k)) continue;
              any = true;
              const double a = row_of[q].weights[k];
              cell.add(a / static_cast<double>(i[1] - i[0]), row_of[q].relative_error[k]);
              largest = std::max(largest, a), error = std::max(error, a * row_of[q].relative_error[k]);
            }
          }
          expect_near(mass[n], cell.value, cell.bound(96), "cell", n);
          expect_near(most[n], largest, error + 1e-37, "largest of cell", n);
          const int64_t q = positions[2 * n], k = positions[2 * n + 1];
          if (!any) {
            expect(q == -1 && k == -1, "an empty cell has a position");
          } else if (expect(q >= i[0] && q < i[1] && k >= j[0] && k < j[1] && r.call.sees(b, h, q, k),
                            "the position is outside")) {
            expect_near(most[n], row_of[q].weights[k], error + 1e-37, "weight at the position", n);
          }
        }
      }
    }
  }
}

void check_entries(const Readings& r, Random& random) {
  const Shape& shape = r.shape;
  const auto some = [&](int64_t size, double share) {
    std::vector<int64_t> numbers;
    for (int64_t n = 0; n < size; ++n) {
      if (random.chance(share)) numbers.push_back(n);
    }
    return numbers;
  };
  const auto sequences = some(shape.sequences, 0.7), heads = some(shape.query_heads, 0.7);
  const auto queries = some(shape.queries[0], 0.4), keys = some(shape.keys[0], 0.4);
  const int64_t q = static_cast<int64_t>(queries.size()), k = static_cast<int64_t>(keys.size());
  std::vector<float> entries(sequences.size() * heads.size() * q * k, 0.0f);
  const uwaga_problem p = r.call.problem();
  const uwaga_softmax known = r.softmax();
  const uwaga_selection chosen{integers(sequences), integers(heads), integers(queries)};
  const uwaga_tensor out{entries.data(),
                         static_cast<int64_t>(entries.size() * sizeof(float)),
                         static_cast<int64_t>(heads.size()) * q * k,
                         q * k,
                         k,
                         1,
                         UWAGA_FLOAT32,
                         0};
  const uwaga_integers some_keys = integers(keys);
  expect(uwaga_weights(&p, &known, &chosen, &some_keys, &out) == UWAGA_OK, "weights refused: %s", uwaga_last_error());
  size_t n = 0;
  for (const int64_t b : sequences) {
    for (const int64_t h : heads) {
      for (const int64_t i : queries) {
        const RowWeights row = r.call.row_weights(b, h, i);
        for (const int64_t j : keys) {
          expect_near(entries[n], row.weights[j], row.weights[j] * row.relative_error[j] + 1e-37, "entry",
                      static_cast<int64_t>(n));
          ++n;
        }
      }
    }
  }
}

void check_all(Call& call, uint64_t seed) {
  Random random(seed);
  Readings r(call);
  r.read_rows(seed % 2);
  for_rows(call.shape, [&](int64_t b, int64_t h, int64_t i) { check_row(r, b, h, i); });
  MaskProgram other(call.shape);
  if (seed % 4) other.randomize(random, static_cast<int>(random.between(1, 3)));
  r.read_sums(other);
  check_sums(r, other);
  check_cells(r, random);
  if (!call.shape.ragged && call.shape.sequences > 0) check_entries(r, random);
}

void test_random() {
  Random random(900);
  for (int trial = 0; trial < 36; ++trial) {
    Options options;
    options.seed = random.word(), options.layout = trial % 4, options.threads = 1 + trial % 3;
    options.dtype = trial % 3 == 2 ? UWAGA_BFLOAT16 : UWAGA_FLOAT32;
    options.softcap = trial % 5 == 1 ? 2.0 : 0.0;
    options.relative = trial % 4 == 1, options.bias = trial % 5 == 2, options.sinks = trial % 3 == 1;
    options.scale = trial % 7 == 3 ? -0.4 : 0.3;
    const int64_t q = random.between(1, 120), more = random.between(0, 150);
    Call call(trial % 3 == 0 ? ragged_shape(4, 2, {q, 0, 4, 3}, {q + more, 7, 4, 0}, 9, 10)
                             : dense_shape(2, 4, 2, q, q + more, 9, 10),
              options);
    if (trial % 6) call.mask.randomize(random, static_cast<int>(random.between(1, 4)));
    check_all(call, random.word());
  }
}

// Chunks of keys that are merged, in order on one thread and split over several.
void test_long() {
  for (const int threads : {1, 3}) {
    for (const int64_t queries : {2, 60}) {
      Options options;
      options.threads = threads, options.spread = 2.0, options.seed = 40 + queries;
      Call call(dense_shape(1, 2, 1, queries, 4500, 12, 5), options);
      call.mask.band(-UWAGA_UNBOUNDED, 0);
      check_all(call, 1);
    }
  }
}

void test_same_bits() {
  Options options;
  options.seed = 77;
  const Shape shape = dense_shape(1, 3, 1, 70, 4500, 20, 8);
  Call call(shape, options);
  options.threads = 3;
  Call shared(shape, options);
  Readings one(call), three(shared), chosen(shared);
  one.read_rows(true), three.read_rows(false);
  std::vector<int64_t> zero = {0}, heads = {0, 1, 2}, all(70);
  std::iota(all.begin(), all.end(), 0);
  const uwaga_selection selection{integers(zero), integers(heads), integers(all)};
  chosen.read_rows(false, &selection);
  MaskProgram other(shape);
  other.band(-2000, 0);
  for (Readings* r : {&one, &three, &chosen}) r->read_sums(other);
  const auto same = [](const Operand& a, const Operand& b) {
    return memcmp(a.array().data(), b.array().data(), a.array().count() * sizeof(float)) == 0;
  };
  for (const Readings* r : {&three, &chosen}) {
    expect(same(one.maximum, r->maximum) && same(one.sum, r->sum), "softmax");
    expect(same(one.entropy, r->entropy) && same(one.squares, r->squares) && same(one.distance, r->distance),
           "moments");
    expect(same(one.top_weights, r->top_weights) && one.top_positions == r->top_positions, "largest weights");
    expect(same(one.masses, r->masses) && same(one.received, r->received) && same(one.diagonals, r->diagonals), "sums");
  }
  Call plain(shape, options);
  plain.forward();
  expect(
      memcmp(plain.output.array().data(), call.output.array().data(), call.output.array().count() * sizeof(float)) == 0,
      "the output beside statistics");
}

// Every entry (head 0 of sequence 0) from given normalizers.
std::vector<float> entries_of(const Call& call, const uwaga_softmax& known) {
  const int64_t q = call.shape.queries[0], k = call.shape.keys[0];
  std::vector<int64_t> zero = {0}, queries(q), keys(k);
  std::iota(queries.begin(), queries.end(), 0), std::iota(keys.begin(), keys.end(), 0);
  std::vector<float> entries(q * k, 0.0f);
  const uwaga_problem p = call.problem();
  const uwaga_selection all{integers(zero), integers(zero), integers(queries)};
  const uwaga_tensor out{
      entries.data(), static_cast<int64_t>(entries.size() * sizeof(float)), q * k, q * k, k, 1, UWAGA_FLOAT32, 0};
  const uwaga_integers all_keys = integers(keys);
  expect(uwaga_weights(&p, &known, &all, &all_keys, &out) == UWAGA_OK, "weights refused: %s", uwaga_last_error());
  return entries;
}

// A score has the same bits in every pass: for the normalizer, for a weight, and where the backward pass
// recomputes it. Scores are about a thousand at every width, so that sums in another order would differ.
void test_same_scores() {
  for (const int dtype : {UWAGA_FLOAT32, UWAGA_BFLOAT16, UWAGA_FLOAT16}) {
    for (int64_t width = 1; width <= 65; ++width) {
      Options options;
      options.dtype = dtype, options.value_dtype = UWAGA_FLOAT32, options.seed = 3000 + static_cast<uint64_t>(width);
      options.spread = 30.0, options.scale = (width % 2 ? 1.0 : -1.0) / sqrt(static_cast<double>(width));
      options.softcap = width % 5 == 3 ? 500.0 : 0.0, options.bias = width % 7 == 2;
      const int64_t q = 7, k = 70;
      Call call(dense_shape(1, 1, 1, q, k, width, q), options);  // value_width = queries
      if (width % 3 == 1) call.mask.band(-UWAGA_UNBOUNDED, 0);
      Readings r(call);
      r.read_rows(true);
      const std::vector<float> entries = entries_of(call, r.softmax());
      for (int64_t i = 0; i < q; ++i) {
        const float* row = entries.data() + i * k;
        double total = 0.0;
        for (int64_t j = 0; j < k; ++j) {
          total += row[j];
          expect(row[j] <= 1.0f, "width %d: the weight of key %d is %.9g", static_cast<int>(width), static_cast<int>(j),
                 row[j]);
        }
        // One rounding per term of the normalizing sum, one of its inverse and one of each product.
        expect_near(total, 1.0, (k + 2) * kEps, "sum of the weights of row", i);
        const float largest = *std::max_element(row, row + k), sum = static_cast<float>(r.sum.get(0, 0, i, 0));
        expect(largest == 1.0f / sum, "width %d: the largest weight is %.9g, not %.9g", static_cast<int>(width),
               largest, 1.0f / sum);
      }
      // With the identity as the gradient of the output, the gradient of the values is the transposed matrix of the weights.
      for (int64_t i = 0; i < q; ++i) {
        for (int64_t e = 0; e < q; ++e) call.grad_output.set(0, 0, i, e, i == e ? 1.0 : 0.0);
      }
      expect(call.backward() == UWAGA_OK, "backward refused: %s", uwaga_last_error());
      Operand ones = r.per_row(1);
      for (int64_t i = 0; i < q; ++i) ones.set(0, 0, i, 0, 1.0);
      const std::vector<float> again = entries_of(call, {call.lse.tensor(), ones.tensor()});
      for (int64_t i = 0; i < q; ++i) {
        for (int64_t j = 0; j < k; ++j) {
          const float made = static_cast<float>(call.grad_value.get(0, 0, j, i));
          expect(made == again[i * k + j], "width %d: the backward pass's weight [%d][%d] is %.9g, not %.9g",
                 static_cast<int>(width), static_cast<int>(i), static_cast<int>(j), made, again[i * k + j]);
        }
      }
    }
  }
}

// NaN or infinity in a hidden key changes no result; in a visible key it does.
void test_hidden() {
  for (const float bad : {kNan, kInfinity}) {
    Options options;
    options.seed = 5;
    Call clean(dense_shape(1, 1, 1, 40, 90, 8, 8), options), dirty(clean.shape, options);
    for (Call* call : {&clean, &dirty}) call->mask.lengths({83});
    for (int64_t j = 83; j < 90; ++j) dirty.key.set(0, 0, j, j % 8, bad);
    Readings a(clean), b(dirty);
    MaskProgram everything(clean.shape);
    for (Readings* r : {&a, &b}) r->read_rows(false), r->read_sums(everything);
    Random random(6);
    expect(!memcmp(a.entropy.array().data(), b.entropy.array().data(), 40 * sizeof(float)),
           "a hidden key shows in the entropy");
    expect(!memcmp(a.received.array().data(), b.received.array().data(), 90 * sizeof(float)), "a hidden key receives");
    check_cells(b, random);

    dirty.query.set(0, 0, 7, 0, kNan);
    b.read_rows(false), b.read_sums(everything);
    expect(std::isnan(b.entropy.get(0, 0, 7, 0)) && !std::isnan(b.entropy.get(0, 0, 6, 0)), "a NaN query is not told");
  }
}

// Where there are no queries or no keys, every diagonal has the sum 0.
void test_empty_diagonals() {
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{0, 9}, {5, 0}, {1, 0}, {0, 0}}) {
    Call call(dense_shape(2, 2, 2, 5, 9, 8, 8), Options{});
    Readings r(call);
    r.read_rows(false);
    const int64_t count = std::max<int64_t>(queries + keys - 1, 0);
    std::vector<float> sums(4 * count + 1, -1.0f);
    uwaga_problem p = call.problem();
    p.queries = queries, p.keys = keys;
    const uwaga_softmax known = r.softmax();
    const uwaga_tensor out{sums.data(), 4 * count * int64_t{sizeof(float)}, 2 * count, count, 1, 1, UWAGA_FLOAT32, 0};
    expect(uwaga_diagonal_sums(&p, &known, &out) == UWAGA_OK, "sums of diagonals: %s", uwaga_last_error());
    expect(std::count(sums.begin(), sums.end(), 0.0f) == 4 * count && sums.back() == -1.0f,
           "%d queries and %d keys: a sum is not 0", static_cast<int>(queries), static_cast<int>(keys));
  }
}

void test_refusals() {
  Call call(dense_shape(1, 2, 2, 5, 9, 8, 8), Options{});
  Readings r(call);
  uwaga_problem p = call.problem();
  const uwaga_softmax known = r.softmax();
  const std::vector<int64_t> falling = {3, 2}, outside = {0, 9}, zero = {0};
  const uwaga_tensor out = r.masses.tensor();
  const auto says = [](int status, const char* sentence) {
    expect(status == UWAGA_BAD_ARGUMENT && std::string(uwaga_last_error()) == sentence, "said: %s", uwaga_last_error());
  };
  const auto read = [&](const std::vector<int64_t>& queries, const std::vector<int64_t>& keys) {
    const uwaga_selection chosen{integers(zero), integers(zero), integers(queries)};
    const uwaga_integers of_keys = integers(keys);
    return uwaga_weights(&p, &known, &chosen, &of_keys, &out);
  };
  says(read(falling, zero), "selected queries must be strictly increasing");
  says(read(outside, zero), "selected queries: 9 must lie between 0 and 4");
  says(read(zero, falling), "selected keys must be strictly increasing");
  says(read(zero, outside), "selected keys: 9 must lie between 0 and 8");
  const std::vector<int64_t> good = {0, 5}, bad = {0, 10};
  std::vector<float> cell(2);
  uwaga_pool_args args{UWAGA_POOL_MASS, 0, integers(good), integers(bad), 1, 1, floats(cell), nullptr, 0};
  says(uwaga_pool(&p, &known, &args), "edges of keys of sequence 0 must be increasing, within 0 and 9");
  args.query_edges = integers(bad);
  says(uwaga_pool(&p, &known, &args), "edges of queries of sequence 0 must be increasing, within 0 and 5");
  args.query_edges = args.key_edges = integers(good), args.cells.count = 1;
  says(uwaga_pool(&p, &known, &args), "cells: 2 elements are needed, and there are 1");
  args.how = 2;
  says(uwaga_pool(&p, &known, &args), "pooling must be UWAGA_POOL_MASS or UWAGA_POOL_MAX");
  p.normalize = 0;
  says(read(zero, zero), "attention weights need a softmax, and normalize is 0");
}

}  // namespace

void test_weights() {
  for_levels([](const uwaga::Kernels& k) {
    expect(uwaga_set_level(k.name) == UWAGA_OK, "%s cannot be set", k.name);
    const std::string level = k.name;
    group("weights: random problems, " + level, test_random);
    group("weights: long rows, " + level, test_long);
    group("weights: bits, " + level, test_same_bits);
    group("weights: the same scores in every pass, " + level, test_same_scores);
    group("weights: hidden keys, " + level, test_hidden);
  });
  uwaga_set_level(nullptr);
  group("weights: diagonals without pairs", test_empty_diagonals);
  group("weights: refusals", test_refusals);
}

}  // namespace uwaga_tests
