// Packed operands of every layout and type, compared entry by entry.
#include "tests/kernels/fixture.h"

namespace uwaga_tests {
namespace {

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
    k.six_row_pairs->pack_keys(columns.data(), x.rows(), count, width);
    for (int n = 0; n < up(count, s); ++n) {
      for (int w = 0; w < 2 * words; ++w) {
        const double want = n < count && w < width ? x.at(n, w) : 0.0;
        const double got = entry(columns[(n / s) * (words * s) + w / 2 * s + n % s], w % 2);
        expect(got == want, "columns %dx%d [%d][%d] is %g, not %g", count, width, n, w, got, want);
      }
    }
    Floats rows(kBlockKeys * up(width, uwaga::kMaxStrip));
    k.six_row_pairs->pack_values(rows.data(), x.rows(), count, kBlockKeys, width);
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
      k.six_row_pairs->pack_queries(tile.data(), addresses, live, width, x.column(), x.dtype(), factor);
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
  for (const int count : {16, 48, 64, 192}) {
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
    expect(k.pairs->all_finite(x.data(), count), "the largest bfloat16 are finite");
    for (int n = 0; n < count; ++n) {
      for (const uint32_t bad : {0x7F80u, 0xFF80u, 0x7FC1u}) {
        const float before = x[n];
        for (const float both : {word(bad, 0x3F80u), word(0x3F80u, bad)}) {
          memcpy(&x[n], &both, sizeof both);
          expect(!k.pairs->all_finite(x.data(), count), "%x at %d of %d was not seen", bad, n, count);
        }
        x[n] = before;
      }
    }
  }
}

}  // namespace

void test_packing(const Kernels& k) {
  const std::string level = std::string(k.name) + ": ";
  group(level + "pack_columns", [&] { test_pack_columns(k); });
  group(level + "pack_rows", [&] { test_pack_rows(k); });
  group(level + "pack_tile", [&] { test_pack_tile(k); });
  group(level + "all_finite", [&] { test_all_finite(k); });
  if (k.pairs) group(level + "pack_*_pairs", [&] { test_pack_pairs(k); });
}

}  // namespace uwaga_tests
