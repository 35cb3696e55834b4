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

}  // namespace

void test_products(const Kernels& k) {
  group(std::string(k.name) + ": products", [&] { test_row_products(k); });
  group(std::string(k.name) + ": products with a state", [&] { test_state_products(k); });
  group(std::string(k.name) + ": products of less depth", [&] { test_products_of_less_depth(k); });
}

}  // namespace uwaga_tests
