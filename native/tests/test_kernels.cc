// Every kernel of every level, each against a loop in double precision. Bounds are worst cases of the arithmetic that
// the kernel says it does: (terms + a few) * eps * the sum of magnitudes.
#include <math.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/check.h"

namespace uwaga_tests {
namespace {

using uwaga::BackwardTile;
using uwaga::Block;
using uwaga::ForwardTile;
using uwaga::kBlockKeys;
using uwaga::Kernels;
using uwaga::kMaxLanes;
using uwaga::kTileRows;
using uwaga::Product;
using uwaga::RowResult;
using uwaga::Rows;
using uwaga::ScoreRule;
using uwaga::TileMask;

int64_t up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }
int64_t padded(int64_t width) { return up(width, kMaxLanes); }

enum Layout { kRowMajor, kColumnMajor, kSpread, kNegative, kLayouts };

// A strided matrix in memory of exactly its size.
class Matrix {
 public:
  Matrix(int dtype, int rows, int columns, Layout layout, Random& random)
      : array_(dtype, layout == kSpread ? int64_t{rows} * columns * 3 : int64_t{rows} * columns) {
    array_.fill_normal(random);
    row_ = layout == kColumnMajor ? 1 : columns;
    column_ = layout == kColumnMajor ? rows : 1;
    if (layout == kSpread) row_ = 3 * columns, column_ = 3;
    if (layout == kNegative) origin_ = int64_t{rows} * columns - 1, row_ = -columns, column_ = -1;
  }
  Rows rows(int first = 0) const { return {array_.at(index(first, 0)), row_, column_, array_.dtype()}; }
  const void* row(int n) const { return array_.at(index(n, 0)); }
  int64_t column() const { return column_; }
  int dtype() const { return array_.dtype(); }
  double at(int n, int w) const { return array_.get(index(n, w)); }
  void set(int n, int w, double x) { array_.set(index(n, w), x); }

 private:
  int64_t index(int n, int w) const { return origin_ + n * row_ + w * column_; }
  Array array_;
  int64_t origin_ = 0, row_, column_;
};

const int kTypes[] = {UWAGA_FLOAT32, UWAGA_BFLOAT16, UWAGA_FLOAT16};
const int kCounts[] = {1, 2, 5, 7, 8, 15, 16, 17, 31, 33, 48, 63, 64};
const int kWidths[] = {1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 64, 65, 80, 129};

template <class Function>
void for_matrices(uint64_t seed, const Function& f) {
  Random random(seed);
  for (const int dtype : kTypes) {
    for (const int count : kCounts) {
      for (const int width : kWidths) {
        for (int layout = 0; layout < kLayouts; ++layout) {
          f(Matrix(dtype, count, width, static_cast<Layout>(layout), random), count, width);
        }
      }
    }
  }
}

void test_pack_columns(const Kernels& k) {
  for_matrices(1, [&](const Matrix& x, int count, int width) {
    const int s = k.strip, filled = static_cast<int>(up(count, s));
    Floats out(int64_t{kBlockKeys} * (width + 1));
    k.pack_columns(out.data(), x.rows(), count, width);
    for (int n = 0; n < filled; ++n) {
      for (int w = 0; w < width; ++w) {
        const double want = n < count ? x.at(n, w) : 0.0;
        const double got = out[(n / s) * (width * s) + w * s + n % s];
        expect(got == want, "%s %dx%d [%d][%d] is %g, not %g", type_name(x.dtype()), count, width, n, w, got, want);
      }
    }
  });
}

void test_pack_rows(const Kernels& k) {
  for_matrices(2, [&](const Matrix& x, int count, int width) {
    const int s = k.strip, filled = static_cast<int>(up(width, s));
    Floats out(kBlockKeys * up(width, uwaga::kMaxStrip));
    k.pack_rows(out.data(), x.rows(), count, kBlockKeys, width);
    for (int n = 0; n < count; ++n) {
      for (int w = 0; w < filled; ++w) {
        const double want = w < width ? x.at(n, w) : 0.0;
        const double got = out[(w / s) * (kBlockKeys * s) + n * s + w % s];
        expect(got == want, "%s %dx%d [%d][%d] is %g, not %g", type_name(x.dtype()), count, width, n, w, got, want);
      }
    }
  });
}

void test_pack_tile(const Kernels& k) {
  for_matrices(3, [&](const Matrix& x, int count, int width) {
    const int rows = std::min(count, kTileRows);
    const void* addresses[kTileRows] = {};
    for (int r = 0; r < rows; ++r) addresses[r] = x.row(r);
    for (const float factor : {1.0f, -1.0f, 0.5f}) {
      Floats out(width * kTileRows + kMaxLanes);
      k.pack_tile(out.data(), addresses, rows, width, x.column(), x.dtype(), factor);
      for (int w = 0; w < width; ++w) {
        for (int r = 0; r < kTileRows; ++r) {
          const double want = r < rows ? x.at(r, w) * factor : 0.0, got = out[w * kTileRows + r];
          expect(got == want, "%s %dx%d [%d][%d] is %g, not %g", type_name(x.dtype()), rows, width, r, w, got, want);
        }
      }
    }
  });
}

// Entry `half` (0 low, 1 high) of a word.
double entry(float word, int half) {
  const uint32_t bits = uwaga::bits_of(word);
  return uwaga::float_of(half ? bits & 0xFFFF0000u : bits << 16);
}

void test_pack_pairs(const Kernels& k) {
  for_matrices(4, [&](const Matrix& x, int count, int width) {
    if (x.dtype() != UWAGA_BFLOAT16) return;
    const int s = k.strip, words = (width + 1) / 2;
    Floats columns(int64_t{kBlockKeys} * (width + 1));
    k.pack_columns_pairs(columns.data(), x.rows(), count, width);
    for (int n = 0; n < up(count, s); ++n) {
      for (int w = 0; w < 2 * words; ++w) {
        const double want = n < count && w < width ? x.at(n, w) : 0.0;
        const double got = entry(columns[(n / s) * (words * s) + w / 2 * s + n % s], w % 2);
        expect(got == want, "columns %dx%d [%d][%d] is %g, not %g", count, width, n, w, got, want);
      }
    }
    Floats rows(kBlockKeys * up(width, uwaga::kMaxStrip));
    k.pack_rows_pairs(rows.data(), x.rows(), count, kBlockKeys, width);
    for (int n = 0; n < up(count, 2); ++n) {
      for (int w = 0; w < up(width, s); ++w) {
        const double want = n < count && w < width ? x.at(n, w) : 0.0;
        const double got = entry(rows[(w / s) * (kBlockKeys / 2 * s) + n / 2 * s + w % s], n % 2);
        expect(got == want, "rows %dx%d [%d][%d] is %g, not %g", count, width, n, w, got, want);
      }
    }
    const int live = std::min(count, kTileRows);
    const void* addresses[kTileRows] = {};
    for (int r = 0; r < live; ++r) addresses[r] = x.row(r);
    for (const float factor : {1.0f, -1.0f}) {
      Floats tile(width * kTileRows + kMaxLanes);
      k.pack_tile_pairs(tile.data(), addresses, live, width, x.column(), x.dtype(), factor);
      for (int w = 0; w < 2 * words; ++w) {
        for (int r = 0; r < kTileRows; ++r) {
          const double want = r < live && w < width ? factor * x.at(r, w) : 0.0;
          const double got = entry(tile[w / 2 * kTileRows + r], w % 2);
          expect(got == want, "tile %dx%d [%d][%d] is %g, not %g", live, width, r, w, got, want);
        }
      }
    }
  });
}

void test_all_finite(const Kernels& k) {
  Random random(5);
  for (const int count : {16, 64, 192}) {
    Floats x(count);
    for (int n = 0; n < count; ++n) x[n] = static_cast<float>(random.uniform(-1.0, 1.0) * (n % 3 ? 1.0 : 3e38));
    expect(k.all_finite(x.data(), count), "large numbers are finite");
    for (int n = 0; n < count; ++n) {
      for (const float bad : {kNan, kInfinity, -kInfinity}) {
        const float before = x[n];
        x[n] = bad;
        expect(!k.all_finite(x.data(), count), "%g at %d of %d was not seen", bad, n, count);
        x[n] = before;
      }
    }
    if (!k.pairs) continue;
    const auto word = [](uint32_t low, uint32_t high) { return uwaga::float_of(low | high << 16); };
    for (int n = 0; n < count; ++n) x[n] = word(0x7F7Fu, 0xFF7Fu);
    expect(k.all_finite_pairs(x.data(), count), "the largest bfloat16 are finite");
    for (int n = 0; n < count; ++n) {
      for (const uint32_t bad : {0x7F80u, 0xFF80u, 0x7FC1u}) {
        const float before = x[n];
        for (const float both : {word(bad, 0x3F80u), word(0x3F80u, bad)}) {
          memcpy(&x[n], &both, sizeof both);
          expect(!k.all_finite_pairs(x.data(), count), "%x at %d of %d was not seen", bad, n, count);
        }
        x[n] = before;
      }
    }
  }
}

uint32_t keep_hash(uint32_t row_key, uint32_t j) {
  uint32_t x = row_key + j * 0x9E3779B1u;
  x = (x ^ x >> 16) * 0x85EBCA6Bu;
  x = (x ^ x >> 13) * 0xC2B2AE35u;
  return x ^ x >> 16;
}

// One block of keys as a forward tile sees it, and everything that the tile needs.
struct Scene {
  Scene(const Kernels& kernels, bool in_pairs, int rows, int count, int d, int e, uint64_t seed)
      : k(kernels), pairs(in_pairs), rows(rows), count(count), d(d), e(e), random(seed),
        dtype(in_pairs ? UWAGA_BFLOAT16 : UWAGA_FLOAT32), query(dtype, rows, d, kRowMajor, random),
        keys(dtype, count, d, kRowMajor, random), values(dtype, count, e, kRowMajor, random),
        packed_query(d * kTileRows + kMaxLanes), packed_keys(int64_t{kBlockKeys} * (d + 1)),
        packed_values(kBlockKeys * up(e, uwaga::kMaxStrip)), scores(kTileRows * kBlockKeys),
        bias(kTileRows * kBlockKeys), output(kTileRows * padded(e)), maximum(kMaxLanes), sum(kTileRows * kMaxLanes) {
    for (int r = 0; r < rows; ++r) row_keys[r] = static_cast<uint32_t>(random.word());
    const uint64_t all = ~uint64_t{0} >> (kBlockKeys - count);
    std::fill(bits, bits + kTileRows, all);
    for (int n = 0; n < kTileRows * kBlockKeys; ++n) bias[n] = static_cast<float>(random.normal());
    reset();
  }

  void reset(float top = -kInfinity) {
    output.fill(0.0f), maximum.fill(top), sum.fill(0.0f);
  }

  void run(const ScoreRule& rule, int first_key = 0, bool guard = false) {
    const void* addresses[kTileRows] = {};
    for (int r = 0; r < rows; ++r) addresses[r] = query.row(r);
    (pairs ? k.pack_tile_pairs : k.pack_tile)(packed_query.data(), addresses, rows, d, query.column(), dtype, 1.0f);
    (pairs ? k.pack_columns_pairs : k.pack_columns)(packed_keys.data(), keys.rows(), count, d);
    (pairs ? k.pack_rows_pairs : k.pack_rows)(packed_values.data(), values.rows(), count, kBlockKeys, e);
    uint64_t any = 0, every = ~uint64_t{0};
    for (int r = 0; r < rows; ++r) any |= bits[r], every &= bits[r];
    const TileMask mask{every == ~uint64_t{0} ? nullptr : bits, __builtin_ctzll(any), 64 - __builtin_clzll(any), guard};
    const ForwardTile tile{packed_query.data(), scores.data(), rule.biased ? bias.data() : nullptr, row_keys, rows, d, e,
                           mask, {output.data(), maximum.data(), sum.data()}};
    const Block block{packed_keys.data(), packed_values.data(), k.strip, kBlockKeys * k.strip, first_key, count};
    (pairs ? k.forward_tile_pairs : k.forward_tile)(tile, block, rule);
  }

  bool sees(int r, int n) const { return bits[r] >> n & 1; }
  // The score in natural units, and a bound of its error in float32.
  double score(int r, int n, const ScoreRule& rule, double* bound) {
    double sum_of_products = 0.0, magnitude = 0.0;
    for (int w = 0; w < d; ++w) {
      sum_of_products += query.at(r, w) * keys.at(n, w);
      magnitude += fabs(query.at(r, w) * keys.at(n, w));
    }
    double s = sum_of_products * rule.scale;
    *bound = (d + 4) * kEps * magnitude * rule.scale;
    if (rule.softcap != 0.0f) s = rule.softcap * tanh(s / rule.softcap), *bound += 8 * kEps * fabs(s);
    if (rule.biased) s += bias[r * kBlockKeys + n], *bound += kEps * fabs(s);
    return s;
  }

  const Kernels& k;
  const bool pairs;
  const int rows, count, d, e;
  Random random;
  const int dtype;
  Matrix query, keys, values;
  Floats packed_query, packed_keys, packed_values, scores, bias, output, maximum, sum;
  uint32_t row_keys[kTileRows];
  uint64_t bits[kTileRows];
};

ScoreRule plain_rule() {
  ScoreRule rule{};
  rule.scale = 0.25f, rule.softmax = true, rule.keep = 1.0f;
  return rule;
}

// Runs the scene's tile and compares maxima, sums and outputs with a softmax in double.
void check_forward(Scene& scene, const ScoreRule& rule, int first_key, bool guard) {
  scene.reset();
  if (!rule.softmax) scene.maximum.fill(0.0f);
  scene.run(rule, first_key, guard);
  const double unit = rule.plain() ? rule.scale : 1.0;
  for (int r = 0; r < scene.rows; ++r) {
    std::vector<double> s(scene.count), bound(scene.count);
    double top = -INFINITY, most = 0.0;
    for (int n = 0; n < scene.count; ++n) {
      s[n] = scene.score(r, n, rule, &bound[n]);
      if (!scene.sees(r, n)) continue;
      top = std::max(top, s[n]);
      most = std::max(most, bound[n] + 8 * kEps * (fabs(s[n]) + 1.0));
    }
    if (top == -INFINITY) top = 0.0;
    if (rule.softmax) most += 8 * kEps * fabs(top);
    double sum = 0.0;
    std::vector<double> z(scene.e), size(scene.e);
    for (int n = 0; n < scene.count; ++n) {
      if (!scene.sees(r, n)) continue;
      double a = rule.softmax ? exp(s[n] - top) : s[n];
      double error = rule.softmax ? 2 * most * a : bound[n] + 2 * kEps * fabs(a);
      sum += a;
      if (rule.keep < 1.0f && keep_hash(scene.row_keys[r], static_cast<uint32_t>(first_key + n)) < rule.drop_threshold) {
        continue;
      }
      if (scene.pairs) error += fabs(a) * 0x1p-8;
      error += (scene.count + 4) * kEps * fabs(a);
      for (int w = 0; w < scene.e; ++w) {
        z[w] += a * scene.values.at(n, w);
        size[w] += error * fabs(scene.values.at(n, w));
      }
    }
    for (int w = 0; w < scene.e; ++w) {
      expect_near(scene.output[r * padded(scene.e) + w], z[w], size[w] + 1e-37, "output", r * 1000 + w);
    }
    if (!rule.softmax) continue;
    bool any = false;
    for (int n = 0; n < scene.count; ++n) any |= scene.sees(r, n);
    if (any) expect_near(scene.maximum[r] * unit, top, most, "maximum", r);
    expect_near(scene.k.lane_sum(scene.sum.data() + r * kMaxLanes), sum, (2 * most + (scene.count + 4) * kEps) * sum,
                "sum", r);
  }
}

void test_forward_tile(const Kernels& k, bool pairs) {
  uint64_t seed = 6;
  const int widths[][2] = {{1, 1}, {3, 5}, {16, 16}, {17, 33}, {32, 64}, {64, 80}, {65, 129}};
  for (const auto& width : widths) {
    for (const int count : {1, 2, 15, 16, 33, 63, 64}) {
      for (const int rows : {1, 2, 3, 4, 5, 6}) {
        Scene scene(k, pairs, rows, count, width[0], width[1], ++seed);
        Random random(seed);
        check_forward(scene, plain_rule(), 0, false);
        ScoreRule bent = plain_rule();
        bent.softcap = 1.5f, bent.biased = true, bent.keep = 0.7f;
        bent.drop_threshold = static_cast<uint32_t>(0.3 * 4294967296.0);
        ScoreRule none = plain_rule();
        none.softmax = false;
        check_forward(scene, bent, 1000, false);
        check_forward(scene, none, 0, false);
        for (int r = 0; r < rows; ++r) scene.bits[r] &= random.word() | (r == 0 ? 1 : 0);
        check_forward(scene, plain_rule(), 0, false);
        check_forward(scene, bent, 7, false);
        check_forward(scene, none, 0, false);
        const int low = static_cast<int>(random.below(count)), high = static_cast<int>(random.between(low, count - 1));
        for (int r = 0; r < rows; ++r) scene.bits[r] = (~uint64_t{0} >> (63 - high)) & (~uint64_t{0} << low);
        check_forward(scene, plain_rule(), 0, false);
        check_forward(scene, none, 0, true);
      }
    }
  }
}

// The guarded way must give the bits of the other one, and keep hidden values out.
void test_guard(const Kernels& k, bool pairs) {
  Random random(77);
  for (int trial = 0; trial < 200; ++trial) {
    const int count = static_cast<int>(random.between(1, 64)), e = static_cast<int>(random.between(1, 70));
    Scene scene(k, pairs, static_cast<int>(random.between(1, 6)), count, 8, e, random.word());
    uint64_t any = 0;
    for (int r = 0; r < scene.rows; ++r) scene.bits[r] &= random.word(), any |= scene.bits[r];
    if (!any) scene.bits[0] = any = 1;
    scene.reset();
    scene.run(plain_rule(), 0, false);
    std::vector<float> before(scene.output.data(), scene.output.data() + scene.rows * padded(e));
    scene.reset();
    scene.run(plain_rule(), 0, true);
    const auto same = [&](int r, int w) {
      return memcmp(&before[r * padded(e) + w], &scene.output[r * padded(e) + w], sizeof(float)) == 0;
    };
    for (int r = 0; r < scene.rows; ++r) {
      for (int w = 0; w < e; ++w) {
        expect(same(r, w), "[%d][%d] is %.9g guarded, %.9g not", r, w, scene.output[r * padded(e) + w],
               before[r * padded(e) + w]);
      }
    }
    const int poisoned = static_cast<int>(random.below(count));
    for (int w = 0; w < e; ++w) scene.values.set(poisoned, w, w % 2 ? kNan : kInfinity);
    scene.reset();
    scene.run(plain_rule(), 0, true);
    for (int r = 0; r < scene.rows; ++r) {
      for (int w = 0; w < e; ++w) {
        if (scene.sees(r, poisoned)) {
          expect(!std::isfinite(scene.output[r * padded(e) + w]), "a visible NaN vanished in row %d", r);
        } else {
          expect(same(r, w), "a hidden NaN leaked into row %d", r);
        }
      }
    }
  }
}

// What a row comes to must not depend on the rows beside it, nor on a wider tile mask.
void test_rows_alone(const Kernels& k, bool pairs) {
  Random random(78);
  for (int trial = 0; trial < 100; ++trial) {
    Scene scene(k, pairs, 6, static_cast<int>(random.between(1, 64)), static_cast<int>(random.between(1, 40)),
                static_cast<int>(random.between(1, 70)), random.word());
    for (int r = 0; r < 6; ++r) {
      scene.bits[r] &= random.word() & (~uint64_t{0} << random.below(scene.count));
      if (!scene.bits[r]) scene.bits[r] = uint64_t{1} << (scene.count - 1);
    }
    scene.reset();
    scene.run(plain_rule());
    for (int r = 0; r < 6; ++r) {
      Scene alone(k, pairs, 1, scene.count, scene.d, scene.e, 1);
      for (int n = 0; n < scene.count; ++n) {
        for (int w = 0; w < scene.d; ++w) alone.keys.set(n, w, scene.keys.at(n, w));
        for (int w = 0; w < scene.e; ++w) alone.values.set(n, w, scene.values.at(n, w));
      }
      for (int w = 0; w < scene.d; ++w) alone.query.set(0, w, scene.query.at(r, w));
      alone.bits[0] = scene.bits[r];
      alone.run(plain_rule());
      for (int w = 0; w < scene.e; ++w) {
        expect(alone.output[w] == scene.output[r * padded(scene.e) + w], "row %d differs alone: %.9g, not %.9g", r,
               alone.output[w], scene.output[r * padded(scene.e) + w]);
      }
      expect(k.lane_sum(alone.sum.data()) == k.lane_sum(scene.sum.data() + r * kMaxLanes), "sum of row %d", r);
    }
  }
}

void test_dropout_hash(const Kernels& k) {
  ScoreRule rule{};
  rule.scale = 1.0f, rule.keep = 0.5f;
  Scene scene(k, false, 6, 64, 1, 1, 9);
  for (int r = 0; r < 6; ++r) scene.query.set(r, 0, 1.0);
  for (int n = 0; n < 64; ++n) scene.keys.set(n, 0, 1.0);
  for (const uint32_t threshold : {0u, 1u, 0x7FFFFFFFu, 0x80000000u, 0x80000001u, 0xFFFFFFFFu}) {
    for (const int first_key : {0, 64, 2147483584}) {
      rule.drop_threshold = threshold;
      scene.reset(0.0f);
      scene.run(rule, first_key);
      for (int r = 0; r < 6; ++r) {
        for (int n = 0; n < 64; ++n) {
          const bool kept = keep_hash(scene.row_keys[r], static_cast<uint32_t>(first_key) + static_cast<uint32_t>(n)) >= threshold;
          expect(scene.scores[r * kBlockKeys + n] == (kept ? 1.0f : 0.0f), "threshold %x, key %d", threshold, first_key + n);
        }
      }
    }
  }
}

// Distance in units of the last place of the float nearest to `want`.
double ulps(double got, double want) {
  const double size = std::max(fabs(want), 0x1p-126);
  int exponent;
  frexp(size, &exponent);
  return fabs(got - want) / ldexp(1.0, exponent - 24);
}

// Weights of a tile whose scores are given: D = 1, the query 1, the keys anything.
void test_elementary(const Kernels& k) {
  double worst_exp = 0.0, worst_tanh = 0.0;
  Random random(10);
  for (int trial = 0; trial < 400; ++trial) {
    Scene scene(k, false, 1, 64, 1, 1, random.word());
    scene.query.set(0, 0, 1.0);
    for (int n = 0; n < 64; ++n) scene.keys.set(n, 0, random.uniform(-87.0, 0.0) * (trial % 2 ? 1.0 : 0.05));
    scene.keys.set(0, 0, 0.0);
    ScoreRule rule = plain_rule();
    rule.scale = 1.0f;
    scene.reset(0.0f);
    scene.run(rule);
    for (int n = 0; n < 64; ++n) {
      // The argument is rounded once, to a float, before 2^t.
      const double x = scene.keys.at(n, 0), want = exp(x), got = scene.scores[n];
      if (want < 0x1p-126) continue;
      const double slack = ulps(want * (1 + 1.5 * kEps * fabs(x) * 1.4427), want);
      worst_exp = std::max(worst_exp, ulps(got, want) - slack);
    }
    expect(scene.scores[0] == 1.0f, "exp(0) is %.9g", scene.scores[0]);
    rule.softmax = false, rule.softcap = 1.0f;
    for (int n = 0; n < 64; ++n) scene.keys.set(n, 0, random.uniform(-1.0, 1.0) * (trial % 2 ? 20.0 : 0.8));
    scene.reset(0.0f);
    scene.run(rule);
    for (int n = 0; n < 64; ++n) worst_tanh = std::max(worst_tanh, ulps(scene.scores[n], tanh(scene.keys.at(n, 0))));
  }
  expect(worst_exp <= 1.5, "exp is off by %.2f ulp beyond its argument's rounding", worst_exp);
  expect(worst_tanh <= 4.0, "tanh is off by %.2f ulp", worst_tanh);
}

void test_extremes(const Kernels& k) {
  Scene scene(k, false, 1, 64, 1, 1, 11);
  scene.query.set(0, 0, 1.0);
  ScoreRule rule = plain_rule();
  rule.scale = 1.0f;
  for (const double size : {1e2, 1e4, 1e6, 1e10, 1e20, 3e38}) {
    for (int n = 0; n < 64; ++n) scene.keys.set(n, 0, n % 2 ? -size : size), scene.values.set(n, 0, n % 2 ? 5.0 : 1.0);
    scene.reset();
    scene.run(rule);
    const double z = scene.output[0] / k.lane_sum(scene.sum.data());
    expect(fabs(z - 1.0) < 70 * kEps, "scores of %g give %.9g, not 1", size, z);
  }
  // A later block with a far larger score leaves nothing of the earlier one, and none of it as NaN.
  const auto block = [&](double score, double value) {
    for (int n = 0; n < 64; ++n) scene.keys.set(n, 0, score), scene.values.set(n, 0, value);
    scene.run(rule);
    return scene.output[0] / k.lane_sum(scene.sum.data());
  };
  scene.reset();
  const double first = block(-1000.0, 1.0), larger = block(1000.0, 2.0), smaller = block(-1000.0, 3.0);
  expect(fabs(first - 1.0) < 70 * kEps, "64 equal weights give %.9g", first);
  expect(fabs(larger - 2.0) < 140 * kEps, "after a larger block the output is %.9g", larger);
  expect(fabs(smaller - 2.0) < 140 * kEps, "after a smaller block the output is %.9g", smaller);
}

void test_backward_tile(const Kernels& k) {
  uint64_t seed = 12;
  const int widths[][2] = {{1, 1}, {5, 3}, {16, 16}, {33, 65}, {64, 80}};
  for (const auto& width : widths) {
    for (const int count : {1, 17, 63, 64}) {
      for (const int rows : {1, 4, 6}) {
        for (int variant = 0; variant < 5; ++variant) {
          Scene scene(k, false, rows, count, width[0], width[1], ++seed);
          ScoreRule rule = plain_rule();
          rule.scale = 1.0f;  // the packed queries bring it
          if (variant == 1) rule.softmax = false;
          if (variant >= 2) rule.softcap = 1.5f, rule.biased = true;
          if (variant >= 3) rule.keep = 0.7f, rule.drop_threshold = static_cast<uint32_t>(0.3 * 4294967296.0);
          if (variant == 4 || variant == 1) {
            for (int r = 0; r < rows; ++r) scene.bits[r] &= scene.random.word() | (r == 0);
          }
          Matrix grad(UWAGA_FLOAT32, rows, scene.e, kRowMajor, scene.random);
          Floats packed_query(scene.d * kTileRows + kMaxLanes), packed_grad(scene.e * kTileRows + kMaxLanes);
          Floats keys(kBlockKeys * scene.d), values(kBlockKeys * scene.e);
          Floats weights(kTileRows * kBlockKeys), grads(kTileRows * kBlockKeys), grad_bias(kTileRows * kBlockKeys);
          Floats lse(kTileRows), delta(kTileRows);
          const void *queries[kTileRows] = {}, *output_grads[kTileRows] = {};
          for (int r = 0; r < rows; ++r) {
            queries[r] = scene.query.row(r), output_grads[r] = grad.row(r);
            lse[r] = static_cast<float>(3.0 + scene.random.normal()), delta[r] = static_cast<float>(scene.random.normal());
          }
          k.pack_tile(packed_query.data(), queries, rows, scene.d, 1, UWAGA_FLOAT32, 1.0f);
          k.pack_tile(packed_grad.data(), output_grads, rows, scene.e, 1, UWAGA_FLOAT32, 1.0f);
          k.pack_columns(keys.data(), scene.keys.rows(), count, scene.d);
          k.pack_columns(values.data(), scene.values.rows(), count, scene.e);
          uint64_t any = 0, every = ~uint64_t{0};
          for (int r = 0; r < rows; ++r) any |= scene.bits[r], every &= scene.bits[r];
          const TileMask mask{every == ~uint64_t{0} ? nullptr : scene.bits, __builtin_ctzll(any),
                              64 - __builtin_clzll(any), false};
          k.backward_tile({packed_query.data(), packed_grad.data(), rule.biased ? scene.bias.data() : nullptr, lse.data(),
                           delta.data(), scene.row_keys, weights.data(), grads.data(), grad_bias.data(), rows, scene.d,
                           scene.e, mask},
                          {keys.data(), values.data(), 0, 0, 128, count}, rule);
          for (int r = 0; r < rows; ++r) {
            for (int n = 0; n < kBlockKeys; ++n) {
              const int at = r * kBlockKeys + n;
              if (n >= count || !scene.sees(r, n)) {
                expect(weights[at] == 0.0f && grads[at] == 0.0f && grad_bias[at] == 0.0f, "hidden entry %d,%d is not 0", r, n);
                continue;
              }
              double bound, dp = 0.0, dp_size = 0.0;
              const double s = scene.score(r, n, rule, &bound);
              for (int w = 0; w < scene.e; ++w) {
                dp += grad.at(r, w) * scene.values.at(n, w);
                dp_size += fabs(grad.at(r, w) * scene.values.at(n, w));
              }
              const bool kept = rule.keep == 1.0f || keep_hash(scene.row_keys[r], 128 + static_cast<uint32_t>(n)) >= rule.drop_threshold;
              const double p = rule.softmax ? exp(s - lse[r]) : s;
              const double p_error = rule.softmax ? p * 2 * (bound + 8 * kEps * (fabs(s) + fabs(lse[r]) + 1)) : bound + 2 * kEps * fabs(s);
              const double growth = kept ? 1.0 / rule.keep : 0.0;
              const double dp_error = growth * (scene.e + 6) * kEps * dp_size;
              const double ds = rule.softmax ? p * (dp * growth - delta[r]) : dp * growth;
              const double ds_error = rule.softmax ? p * dp_error + (p_error + 4 * kEps * p) * (fabs(dp * growth) + fabs(delta[r]) + dp_error)
                                                   : dp_error + kEps * fabs(ds);
              expect_near(weights[at], kept ? p : 0.0, p_error, "weight", at);
              expect_near(grad_bias[at], ds, ds_error, "grad of bias", at);
              double bend = 1.0, bend_error = 0.0;
              if (rule.softcap != 0.0f) {
                double unused;
                ScoreRule unbiased = rule;
                unbiased.biased = false;
                const double t = scene.score(r, n, unbiased, &unused) / rule.softcap;
                bend = 1.0 - t * t, bend_error = 4 * (unused / rule.softcap + 8 * kEps);
              }
              expect_near(grads[at], ds * bend, ds_error + fabs(ds) * (bend_error + kEps), "grad of score", at);
            }
          }
        }
      }
    }
  }
}

void test_products(const Kernels& k) {
  Random random(13);
  for (int trial = 0; trial < 120; ++trial) {
    const int rows = static_cast<int>(random.between(1, trial % 2 ? 64 : 6)), width = static_cast<int>(random.between(1, 150));
    const int last = static_cast<int>(random.between(1, 48)), first = static_cast<int>(random.below(last));
    const int depth = 48;
    Matrix b(UWAGA_FLOAT32, depth, width, kRowMajor, random);
    Floats a(64 * 64), packed(depth * up(width, uwaga::kMaxStrip)), out(rows * padded(width)), again(rows * padded(width));
    for (int n = 0; n < 64 * 64; ++n) a[n] = static_cast<float>(random.normal());
    for (int64_t n = 0; n < rows * padded(width); ++n) out[n] = again[n] = 1.0f;
    k.pack_rows(packed.data(), b.rows(), depth, depth, width);
    const Product by_rows{a.data(), packed.data(), out.data(), padded(width), rows, first, last, depth, width};
    Product by_columns = by_rows;
    by_columns.out = again.data();
    k.product_rows(by_rows);
    k.product_columns(by_columns);
    for (int r = 0; r < rows; ++r) {
      for (int w = 0; w < width; ++w) {
        double want[2] = {1.0, 1.0}, size[2] = {1.0, 1.0};
        for (int n = first; n < last; ++n) {
          const double entries[2] = {a[r * 64 + n], a[n * 64 + r]};
          for (int c = 0; c < 2; ++c) want[c] += entries[c] * b.at(n, w), size[c] += fabs(entries[c] * b.at(n, w));
        }
        expect_near(out[r * padded(width) + w], want[0], 52 * kEps * size[0], "product of rows", r * 1000 + w);
        expect_near(again[r * padded(width) + w], want[1], 52 * kEps * size[1], "product of columns", r * 1000 + w);
      }
    }
    // Entry by entry: the guarded way of the backward pass, which must give the same bits.
    for (int r = 0; r < rows; ++r) {
      Floats sum(padded(width));
      sum.fill(0.0f);
      for (int n = first; n < last; ++n) {
        k.add_scaled_row(sum.data(), a[r * 64 + n], packed.data() + n * k.strip, depth, width);
      }
      Floats total(padded(width));
      total.fill(1.0f);
      k.add_to(total.data(), sum.data(), padded(width));
      for (int w = 0; w < width; ++w) {
        expect(total[w] == out[r * padded(width) + w], "guarded product [%d][%d] is %.9g, not %.9g", r, w, total[w],
               out[r * padded(width) + w]);
      }
    }
  }
}

void test_state_products(const Kernels& k) {
  Random random(14);
  for (int trial = 0; trial < 60; ++trial) {
    const int d = static_cast<int>(random.between(1, 100)), e = static_cast<int>(random.between(1, 100));
    const int count = static_cast<int>(random.between(1, 64)), rows = static_cast<int>(random.between(1, 6));
    Matrix a(UWAGA_FLOAT32, count, d, kRowMajor, random), b(UWAGA_FLOAT32, count, e, kRowMajor, random);
    Matrix query(UWAGA_FLOAT32, rows, d, kRowMajor, random);
    Floats packed_a(kBlockKeys * up(d, uwaga::kMaxStrip)), packed_b(kBlockKeys * up(e, uwaga::kMaxStrip));
    Floats state(up(d, uwaga::kMaxStrip) * up(e, uwaga::kMaxStrip)), tile(d * kTileRows + kMaxLanes), out(kTileRows * padded(e));
    state.fill(0.0f), out.fill(0.0f);
    k.pack_rows(packed_a.data(), a.rows(), count, kBlockKeys, d);
    k.pack_rows(packed_b.data(), b.rows(), count, kBlockKeys, e);
    k.add_outer_product(state.data(), packed_a.data(), packed_b.data(), count, kBlockKeys, d, e);
    const void* addresses[kTileRows] = {};
    for (int r = 0; r < rows; ++r) addresses[r] = query.row(r);
    k.pack_tile(tile.data(), addresses, rows, d, 1, UWAGA_FLOAT32, 1.0f);
    k.add_tile_product(out.data(), padded(e), tile.data(), state.data(), rows, d, e);
    const int64_t room = up(d, k.strip);
    std::vector<double> want(static_cast<size_t>(d) * e), size(static_cast<size_t>(d) * e);
    for (int w = 0; w < d; ++w) {
      for (int x = 0; x < e; ++x) {
        for (int n = 0; n < count; ++n) {
          want[w * e + x] += a.at(n, w) * b.at(n, x);
          size[w * e + x] += fabs(a.at(n, w) * b.at(n, x));
        }
        expect_near(state[x / k.strip * (room * k.strip) + w * k.strip + x % k.strip], want[w * e + x],
                    (count + 2) * kEps * size[w * e + x], "state", w * 1000 + x);
      }
    }
    for (int r = 0; r < rows; ++r) {
      for (int x = 0; x < e; ++x) {
        double z = 0.0, bound = 0.0;
        for (int w = 0; w < d; ++w) {
          z += query.at(r, w) * want[w * e + x];
          bound += fabs(query.at(r, w)) * size[w * e + x];
        }
        expect_near(out[r * padded(e) + x], z, (count + d + 4) * kEps * bound, "query times state", r * 1000 + x);
      }
    }
  }
}

void test_merge_rows(const Kernels& k) {
  Random random(15);
  for (const int width : kWidths) {
    Floats total(6 * padded(width)), part(6 * padded(width));
    RowResult sums[6], more[6];
    std::vector<double> want(6 * padded(width));
    double sum_want[6];
    for (int r = 0; r < 6; ++r) {
      sums[r] = {r == 0 ? -kInfinity : static_cast<float>(10 * random.normal()), r == 0 ? 0.0f : static_cast<float>(random.uniform(1, 9))};
      more[r] = {r <= 1 ? -kInfinity : static_cast<float>(10 * random.normal()), r <= 1 ? 0.0f : static_cast<float>(random.uniform(1, 9))};
      const double top = std::max(sums[r].maximum, more[r].maximum);
      const double a = r == 0 ? 0.0 : exp(sums[r].maximum - top), b = r <= 1 ? 0.0 : exp(more[r].maximum - top);
      sum_want[r] = sums[r].sum * a + more[r].sum * b;
      for (int64_t w = r * padded(width); w < (r + 1) * padded(width); ++w) {
        total[w] = r == 0 ? 0.0f : static_cast<float>(random.normal());
        part[w] = r <= 1 ? 0.0f : static_cast<float>(random.normal());
        want[w] = total[w] * a + part[w] * b;
      }
    }
    k.merge_rows(total.data(), sums, part.data(), more, 6, width);
    for (int r = 0; r < 6; ++r) {
      expect_near(sums[r].sum, sum_want[r], 16 * kEps * sum_want[r], "merged sum", r);
      for (int w = 0; w < width; ++w) {
        const int64_t at = r * padded(width) + w;
        expect_near(total[at], want[at], 16 * kEps * (fabs(want[at]) + 10), "merged row", at);
      }
    }
  }
}

void test_write_and_dot(const Kernels& k) {
  for_matrices(16, [&](const Matrix& x, int count, int width) {
    if (count != 2) return;
    Floats row(padded(width));
    for (int w = 0; w < padded(width); ++w) row[w] = static_cast<float>(1.0 / (w + 1) - 0.3);
    Matrix out = x;
    k.write_row(const_cast<void*>(out.row(1)), out.column(), out.dtype(), row.data(), 0.75f, width);
    Array narrow(x.dtype(), 1);
    for (int w = 0; w < width; ++w) {
      narrow.set(0, row[w] * 0.75f);
      expect(out.at(1, w) == narrow.get(0), "%s [%d] is %g, not %g", type_name(x.dtype()), w, out.at(1, w), narrow.get(0));
      expect(out.at(0, w) == x.at(0, w), "row 0 was written to");
    }
    Random random(17);
    for (const int dtype : kTypes) {
      const Matrix y(dtype, 1, width, kSpread, random);
      double want = 0.0, size = 0.0;
      for (int w = 0; w < width; ++w) want += x.at(0, w) * y.at(0, w), size += fabs(x.at(0, w) * y.at(0, w));
      const double got = k.dot_rows(x.row(0), x.column(), x.dtype(), y.row(0), y.column(), dtype, width);
      expect_near(got, want, (width + 4) * kEps * size, "dot", width);
    }
  });
  // Rounding to the narrow types at their edges.
  const float edges[] = {0.0f, -0.0f, 1.0f, 1.00390625f, 1.01171875f, 3.3895314e38f, 3.4e38f, kInfinity, -kInfinity, 65504.0f,
                         65519.996f, 65520.0f, 1e-8f, 5.9604645e-8f, 2.9802322e-8f, 2.9802326e-8f, 6.1e-5f, 6.097555e-5f,
                         1e-40f, kNan};
  for (const int dtype : kTypes) {
    const int count = sizeof(edges) / sizeof(edges[0]);
    Array out(dtype, count), want(dtype, count);
    Floats row(padded(count));
    for (int n = 0; n < count; ++n) row[n] = edges[n], want.set(n, edges[n]);
    k.write_row(out.data(), 1, dtype, row.data(), 1.0f, count);
    for (int n = 0; n < count; ++n) {
      const bool same = isnan(edges[n]) ? isnan(out.get(n)) : memcmp(out.at(n), want.at(n), size_of_type(dtype)) == 0;
      expect(same, "%.9g becomes %.9g in %s", edges[n], out.get(n), type_name(dtype));
    }
  }
}

}  // namespace

void test_kernels() {
  for_levels([](const Kernels& k) {
    const std::string level = std::string(k.name) + ": ";
    group(level + "pack_columns", [&] { test_pack_columns(k); });
    group(level + "pack_rows", [&] { test_pack_rows(k); });
    group(level + "pack_tile", [&] { test_pack_tile(k); });
    group(level + "all_finite", [&] { test_all_finite(k); });
    group(level + "forward_tile", [&] { test_forward_tile(k, false); });
    group(level + "forward_tile, hidden values", [&] { test_guard(k, false); });
    group(level + "forward_tile, rows alone", [&] { test_rows_alone(k, false); });
    if (k.pairs) {
      group(level + "pack_*_pairs", [&] { test_pack_pairs(k); });
      group(level + "forward_tile_pairs", [&] { test_forward_tile(k, true); });
      group(level + "forward_tile_pairs, hidden values", [&] { test_guard(k, true); });
      group(level + "forward_tile_pairs, rows alone", [&] { test_rows_alone(k, true); });
    }
    group(level + "dropout's hash", [&] { test_dropout_hash(k); });
    group(level + "exp and tanh", [&] { test_elementary(k); });
    group(level + "extreme scores", [&] { test_extremes(k); });
    group(level + "backward_tile", [&] { test_backward_tile(k); });
    group(level + "products", [&] { test_products(k); });
    group(level + "products with a state", [&] { test_state_products(k); });
    group(level + "merge_rows", [&] { test_merge_rows(k); });
    group(level + "write_row, dot_rows", [&] { test_write_and_dot(k); });
    group(level + "peak_flops", [&] { expect(k.peak_flops(10) > 0.0, "nothing was done"); });
  });
}

}  // namespace uwaga_tests
