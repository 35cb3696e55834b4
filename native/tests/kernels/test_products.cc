// Products of tiles and packed rows, of the backward pass and of the linear form.
#include "tests/kernels/fixture.h"

namespace uwaga_tests {
namespace {

void test_row_products(const Kernels& k) {
  Random random(13);
  for (int trial = 0; trial < 120; ++trial) {
    const int rows = static_cast<int>(random.between(1, trial % 2 ? 64 : 6)),
              width = static_cast<int>(random.between(1, 150));
    const int last = static_cast<int>(random.between(1, 48)), first = static_cast<int>(random.below(last));
    const int depth = 48;
    Matrix b(UWAGA_FLOAT32, depth, width, kRowMajor, random);
    Floats a(64 * 64), packed(depth * up(width, uwaga::kMaxStrip)), out(rows * padded(width)),
        again(rows * padded(width));
    for (int n = 0; n < 64 * 64; ++n) a[n] = static_cast<float>(random.normal());
    for (int64_t n = 0; n < rows * padded(width); ++n) out[n] = again[n] = 1.0f;
    k.pack_rows(packed.data(), b.rows(), depth, depth, width);
    const Product by_rows{a.data(), packed.data(), out.data(), padded(width), rows, first, last, depth, width, nullptr};
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
    // Entry by entry: the guarded variant of the backward pass, which must give the same bits.
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

// Terms that are skipped for six rows of the result because they are zero change no bit.
void test_products_of_less_depth(const Kernels& k) {
  Random random(15);
  for (int trial = 0; trial < 60; ++trial) {
    const int rows = static_cast<int>(random.between(1, 64)), width = static_cast<int>(random.between(1, 100)),
              depth = 48;
    Matrix b(UWAGA_FLOAT32, depth, width, kRowMajor, random);
    Floats a(64 * 64), packed(depth * up(width, uwaga::kMaxStrip)), out(rows * padded(width)),
        again(rows * padded(width));
    k.pack_rows(packed.data(), b.rows(), depth, depth, width);
    uwaga::DepthRange by_tile[11];
    for (auto& range : by_tile) {
      range.first = static_cast<int>(random.below(depth + 1));
      range.last = static_cast<int>(random.between(range.first, depth));
    }
    a.fill(0.0f), out.fill(1.0f), again.fill(1.0f);
    for (int r = 0; r < rows; ++r) {
      const auto range = by_tile[r / kTileRows];
      for (int n = range.first; n < range.last; ++n) a[n * 64 + r] = static_cast<float>(random.normal());
    }
    const Product whole{a.data(), packed.data(), out.data(), padded(width), rows, 0, depth, depth, width, nullptr};
    Product less = whole;
    less.out = again.data(), less.by_tile = by_tile;
    k.product_columns(whole);
    k.product_columns(less);
    for (int64_t n = 0; n < rows * padded(width); ++n) {
      expect(out[n] == again[n], "product of less depth [%d] is %.9g, not %.9g", static_cast<int>(n), again[n], out[n]);
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
    Floats state(up(d, uwaga::kMaxStrip) * up(e, uwaga::kMaxStrip)), tile(d * kTileRows + kMaxLanes),
        out(kTileRows * padded(e));
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

// The gradients' products on pairs: P or dS split in two bfloat16, the other operand bfloat16. Skipped tiles of zeros change no bit, and with
// `seen` neither do entries that a masked pair would multiply by zero.
void test_pair_gradients(const Kernels& k) {
  const uwaga::PairGradientKernels& pairs = *k.pairs->gradients;
  const uwaga::TileRegisters registers(k);
  constexpr int kRows = uwaga::ColumnsGradient::kRows, kGroups = 2, kSize = kMaxTileRows;
  constexpr int64_t kLow = kGroups * kRows / 2 * kBlockKeys;
  constexpr double kSplit = 1.0 / (1 << 17);
  Random random(16);
  for (int trial = 0; trial < 24; ++trial) {
    const int rows = static_cast<int>(random.between(1, kGroups * kRows)),
              width = static_cast<int>(random.between(1, 150));
    const int count = trial % 3 ? kBlockKeys : static_cast<int>(random.between(1, kBlockKeys));
    const MemoryLayout layout = static_cast<MemoryLayout>(trial % kLayouts);
    Matrix left(UWAGA_BFLOAT16, rows, width, layout, random), keys(UWAGA_BFLOAT16, count, width, layout, random);
    uint64_t seen[kGroups * kRows] = {};
    Floats weights(kGroups * kRows * kBlockKeys);  // after the last row: numbers that no product may read
    for (int64_t n = 0; n < kGroups * kRows * kBlockKeys; ++n) weights[n] = kNan;
    uwaga::DepthRange range[kGroups] = {{kBlockKeys, 0}, {kBlockKeys, 0}};
    for (int r = 0; r < rows; ++r) {
      seen[r] =
          trial % 2 ? random.word() & (~uint64_t{0} >> (kBlockKeys - count)) : ~uint64_t{0} >> (kBlockKeys - count);
      if (trial % 4 == 1) seen[r] &= ~uint64_t{0} << (r & 48);
      for (int n = 0; n < kBlockKeys; ++n) {
        const bool sees = seen[r] >> n & 1;
        weights[r * kBlockKeys + n] = sees ? static_cast<float>(random.normal()) : 0.0f;
        uwaga::DepthRange& of_group = range[r / kRows];
        if (sees) of_group.first = std::min(of_group.first, n), of_group.last = std::max(of_group.last, n + 1);
      }
    }
    Floats by_row(2 * kSize * kBlockKeys / 2), columns(2 * kLow);
    columns.fill(0.0f);
    Floats packed_keys(kBlockKeys / 2 * up(width, uwaga::kMaxStrip));
    const int64_t group = padded(width) * kRows / 2;
    Floats packed(kGroups * group), hidden(kGroups * group);
    k.pairs->pack_values(packed_keys.data(), keys.rows(), count, kBlockKeys, width);
    for (int g = 0; g < kGroups; ++g) {
      const void* addresses[kRows] = {};
      const int some = std::max(0, std::min(kRows, rows - g * kRows));
      for (int r = 0; r < some; ++r) addresses[r] = left.row(g * kRows + r);
      pairs.pack_transposed(packed.data() + g * group, addresses, some, width, left.column());
    }
    for (int first = 0; first < rows; first += kSize) {
      const int some = std::min(kSize, rows - first);
      const float* tile = weights.data() + first * kBlockKeys;
      pairs.split_weights({tile, some, by_row.data(), columns.data() + first / 2 * kBlockKeys, kLow});
      Floats out(kSize * padded(width)), whole(kSize * padded(width));
      out.fill(1.0f), whole.fill(1.0f);
      uint64_t any = 0;
      for (int r = 0; r < some; ++r) any |= seen[first + r];
      if (!any) continue;
      const int n0 = __builtin_ctzll(any), n1 = 64 - __builtin_clzll(any);
      pairs.add_rows_gradient(
          {by_row.data(), packed_keys.data(), out.data(), padded(width), n0, n1, some, width, nullptr});
      pairs.add_rows_gradient(
          {by_row.data(), packed_keys.data(), whole.data(), padded(width), 0, kBlockKeys, some, width, seen + first});
      for (int r = 0; r < some; ++r) {
        for (int w = 0; w < width; ++w) {
          double want = 1.0, size = 1.0, split = 0.0;
          for (int n = 0; n < count; ++n) {
            const double product = static_cast<double>(tile[r * kBlockKeys + n]) * keys.at(n, w);
            want += product, size += fabs(product), split += kSplit * fabs(product);
          }
          const int64_t at = r * padded(width) + w;
          expect_near(out[at], want, split + 140 * kEps * size, "gradient of rows", r * 1000 + w);
          expect(out[at] == whole[at], "guarded gradient of rows [%d][%d] is %.9g, not %.9g", r, w, whole[at], out[at]);
        }
      }
    }
    Floats sums(padded(width) * kBlockKeys), guarded(padded(width) * kBlockKeys), out(kBlockKeys * padded(width));
    sums.fill(1.0f), guarded.fill(1.0f);
    uwaga::ColumnsGradient columns_gradient{packed.data(), group,  columns.data(), columns.data() + kLow,
                                            sums.data(),   range,  kGroups,        width,
                                            count,         nullptr};
    pairs.add_columns_gradient(columns_gradient);
    const uwaga::DepthRange everything[kGroups] = {{0, kBlockKeys}, {0, kBlockKeys}};
    columns_gradient.out = guarded.data(), columns_gradient.keys = everything, columns_gradient.seen = seen;
    pairs.add_columns_gradient(columns_gradient);
    pairs.transpose_gradient(out.data(), sums.data(), width);
    for (int n = 0; n < count; ++n) {
      for (int w = 0; w < width; ++w) {
        double want = 1.0, size = 1.0, split = 0.0;
        for (int r = 0; r < rows; ++r) {
          const double product = static_cast<double>(weights[r * kBlockKeys + n]) * left.at(r, w);
          want += product, size += fabs(product), split += kSplit * fabs(product);
        }
        const float found = out[n * padded(width) + w];
        expect_near(found, want, split + 140 * kEps * size, "gradient of keys", n * 1000 + w);
        expect(found == guarded[w * kBlockKeys + n], "guarded gradient of keys [%d][%d] is %.9g, not %.9g", n, w,
               guarded[w * kBlockKeys + n], found);
      }
    }
  }
}

// Infinite and NaN weights stay what they are: the second part of a split must not turn an infinite sum into NaN.
void test_split_of_infinity(const Kernels& k) {
  Floats weights(kMaxTileRows * kBlockKeys), by_row(kMaxTileRows * kBlockKeys);
  weights.fill(0.0f);
  weights[0] = kInfinity, weights[1] = -kInfinity, weights[2] = kNan, weights[3] = 1.0f;
  k.pairs->gradients->split_weights({weights.data(), kMaxTileRows, by_row.data(), nullptr, 0});
  uint16_t high[4], low[4];
  memcpy(high, by_row.data(), sizeof high);
  memcpy(low, by_row.data() + kMaxTileRows * kBlockKeys / 2, sizeof low);
  expect(high[0] == 0x7F80 && high[1] == 0xFF80 && (high[2] & 0x7FFF) > 0x7F80 && high[3] == 0x3F80, "high parts");
  for (const uint16_t part : low) expect(part == 0, "a low part is %04x", part);
}

}  // namespace

void test_products(const Kernels& k) {
  if (k.pairs && k.pairs->gradients) {
    group(std::string(k.name) + ": gradients on pairs", [&] { test_pair_gradients(k); });
    group(std::string(k.name) + ": split of infinity", [&] { test_split_of_infinity(k); });
  }
  group(std::string(k.name) + ": products", [&] { test_row_products(k); });
  group(std::string(k.name) + ": products with a state", [&] { test_state_products(k); });
  group(std::string(k.name) + ": products of less depth", [&] { test_products_of_less_depth(k); });
}

}  // namespace uwaga_tests
