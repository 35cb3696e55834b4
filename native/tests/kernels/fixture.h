// Fixtures of the kernel tests: strided matrices, and a block of keys with the arguments of a tile. Error bounds are
// worst cases of the arithmetic that a kernel documents: (terms + a few) * eps * the sum of magnitudes.
#ifndef UWAGA_TESTS_KERNELS_FIXTURE_H_
#define UWAGA_TESTS_KERNELS_FIXTURE_H_

#include <math.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/check.h"

namespace uwaga_tests {

using uwaga::BackwardTile;
using uwaga::Block;
using uwaga::ForwardTile;
using uwaga::kBlockKeys;
using uwaga::Kernels;
using uwaga::kMaxLanes;
using uwaga::kMaxTileRows;
using uwaga::kTileRows;
using uwaga::Product;
using uwaga::RowResult;
using uwaga::Rows;
using uwaga::ScoreRule;
using uwaga::TileMask;

inline int64_t up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }
inline int64_t padded(int64_t width) { return up(width, kMaxLanes); }

enum MemoryLayout { kRowMajor, kColumnMajor, kSpread, kNegative, kLayouts };

// A strided matrix in memory of exactly its size.
class Matrix {
 public:
  Matrix(int dtype, int rows, int columns, MemoryLayout layout, Random& random)
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
          f(Matrix(dtype, count, width, static_cast<MemoryLayout>(layout), random), count, width);
        }
      }
    }
  }
}

inline uint32_t keep_hash(uint32_t row_key, uint32_t j) {
  uint32_t x = row_key + j * 0x9E3779B1u;
  x = (x ^ x >> 16) * 0x85EBCA6Bu;
  x = (x ^ x >> 13) * 0xC2B2AE35u;
  return x ^ x >> 16;
}

// The most rows of a tile of scores, and some numbers of rows.
inline int tile_size(const Kernels& k, bool pairs) { return pairs ? k.pairs->rows : kTileRows; }
inline std::vector<int> row_counts(const Kernels& k, bool pairs) {
  return tile_size(k, pairs) == kTileRows ? std::vector<int>{1, 2, 3, 4, 5, 6} : std::vector<int>{1, 2, 7, 15, 16};
}

// One block of keys and all other arguments of a forward tile.
struct Scene {
  Scene(const Kernels& kernels, bool in_pairs, int rows, int count, int d, int e, uint64_t seed)
      : k(kernels),
        pairs(in_pairs),
        rows(rows),
        count(count),
        d(d),
        e(e),
        random(seed),
        dtype(in_pairs ? UWAGA_BFLOAT16 : UWAGA_FLOAT32),
        query(dtype, rows, d, kRowMajor, random),
        keys(dtype, count, d, kRowMajor, random),
        values(dtype, count, e, kRowMajor, random),
        packed_query(uwaga::packed_tile(d, kMaxTileRows)),
        packed_keys(uwaga::packed_keys(d)),
        packed_values(kBlockKeys * up(e, uwaga::kMaxStrip)),
        scores(kMaxTileRows * kBlockKeys),
        bias(kMaxTileRows * kBlockKeys),
        output(kMaxTileRows * padded(e)),
        maximum(kMaxLanes),
        sum(kMaxTileRows * kMaxLanes) {
    for (int r = 0; r < rows; ++r) row_keys[r] = static_cast<uint32_t>(random.word());
    const uint64_t all = ~uint64_t{0} >> (kBlockKeys - count);
    std::fill(bits, bits + kMaxTileRows, all);
    for (int n = 0; n < kMaxTileRows * kBlockKeys; ++n) bias[n] = static_cast<float>(random.normal());
    reset();
  }

  void reset(float top = -kInfinity) { output.fill(0.0f), maximum.fill(top), sum.fill(0.0f); }

  void run(const ScoreRule& rule, int first_key = 0, bool guard = false) {
    const auto [tile, block] = packed(rule, first_key, guard);
    (pairs ? k.pairs->forward_tile : k.forward_tile)(tile, block, rule);
  }

  std::pair<ForwardTile, Block> packed(const ScoreRule& rule, int first_key = 0, bool guard = false) {
    const void* addresses[kMaxTileRows] = {};
    for (int r = 0; r < rows; ++r) addresses[r] = query.row(r);
    (pairs ? k.pairs->pack_queries : k.pack_tile)(packed_query.data(), addresses, rows, d, query.column(), dtype,
                                                  pairs ? 1.0f : rule.scale);
    (pairs ? k.pairs->pack_keys : k.pack_columns)(packed_keys.data(), keys.rows(), count, d);
    (pairs ? k.pairs->pack_values : k.pack_rows)(packed_values.data(), values.rows(), count, kBlockKeys, e);
    uint64_t any = 0, every = ~uint64_t{0};
    for (int r = 0; r < rows; ++r) any |= bits[r], every &= bits[r];
    const TileMask mask{every == ~uint64_t{0} ? nullptr : bits, __builtin_ctzll(any), 64 - __builtin_clzll(any), guard};
    const ForwardTile tile{packed_query.data(),
                           scores.data(),
                           rule.biased ? bias.data() : nullptr,
                           row_keys,
                           rows,
                           d,
                           e,
                           mask,
                           {output.data(), maximum.data(), sum.data()},
                           statistics};
    const Block block{packed_keys.data(), packed_values.data(), k.strip, kBlockKeys * k.strip, first_key, count, pairs};
    return {tile, block};
  }

  bool sees(int r, int n) const { return bits[r] >> n & 1; }
  // The score before the factor log2(e), and a bound of its error in float32.
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
  const uwaga::TileRegisters registers{k};
  const bool pairs;
  const int rows, count, d, e;
  Random random;
  const int dtype;
  Matrix query, keys, values;
  Floats packed_query, packed_keys, packed_values, scores, bias, output, maximum, sum;
  uint32_t row_keys[kMaxTileRows];
  uint64_t bits[kMaxTileRows];
  const uwaga::TileStatistics* statistics = nullptr;
};

inline ScoreRule plain_rule() {
  ScoreRule rule{};
  rule.scale = 0.25f, rule.softmax = true, rule.keep = 1.0f;
  return rule;
}

void test_activations(const Kernels& k);
void test_packing(const Kernels& k);
void test_forward_tiles(const Kernels& k);
void test_backward_tiles(const Kernels& k);
void test_products(const Kernels& k);
void test_rows(const Kernels& k);
void test_weights_tiles(const Kernels& k);

}  // namespace uwaga_tests
#endif  // UWAGA_TESTS_KERNELS_FIXTURE_H_
