// Kernels of whole rows: merging, conversion to every type, products.
#include "tests/kernels/fixture.h"

namespace uwaga_tests {
namespace {

void test_merge_rows(const Kernels& k) {
  Random random(15);
  for (const int width : kWidths) {
    Floats total(6 * padded(width)), part(6 * padded(width));
    RowResult sums[6], more[6];
    std::vector<double> want(6 * padded(width));
    double sum_want[6];
    for (int r = 0; r < 6; ++r) {
      sums[r] = {r == 0 ? -kInfinity : static_cast<float>(10 * random.normal()),
                 r == 0 ? 0.0f : static_cast<float>(random.uniform(1, 9))};
      more[r] = {r <= 1 ? -kInfinity : static_cast<float>(10 * random.normal()),
                 r <= 1 ? 0.0f : static_cast<float>(random.uniform(1, 9))};
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
      expect(out.at(1, w) == narrow.get(0), "%s [%d] is %g, not %g", type_name(x.dtype()), w, out.at(1, w),
             narrow.get(0));
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
  // Rounding to the 16-bit types at the ends of their ranges.
  const float edges[] = {0.0f,          -0.0f,    1.0f,         1.00390625f,   1.01171875f,
                         3.3895314e38f, 3.4e38f,  kInfinity,    -kInfinity,    65504.0f,
                         65519.996f,    65520.0f, 1e-8f,        5.9604645e-8f, 2.9802322e-8f,
                         2.9802326e-8f, 6.1e-5f,  6.097555e-5f, 1e-40f,        kNan};
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

void test_write_rows(const Kernels& k) {
  for_matrices(18, [&](const Matrix& x, int count, int width) {
    if (count != 5) return;
    Random random(19);
    Floats rows(6 * padded(width));
    for (int64_t n = 0; n < 6 * padded(width); ++n) rows[n] = static_cast<float>(random.uniform(-2.0, 2.0));
    const float factors[] = {0.75f, -1.0f, 3.0f, 0.0f};
    Matrix together = x, alone = x;
    void* places[4];
    for (int r = 0; r < 4; ++r) {  // into rows 4, 3, 2 and 1: places need not follow one another
      places[r] = const_cast<void*>(together.row(4 - r));
      k.write_row(const_cast<void*>(alone.row(4 - r)), x.column(), x.dtype(), rows.data() + r * padded(width),
                  factors[r], width);
    }
    k.write_rows(places, x.column(), x.dtype(), rows.data(), padded(width), factors, 4, width);
    for (int n = 0; n < count; ++n) {
      for (int w = 0; w < width; ++w) {
        expect(together.at(n, w) == alone.at(n, w), "[%d, %d] is %g, not %g", n, w, together.at(n, w), alone.at(n, w));
      }
    }
  });
}

void test_lane_sums(const Kernels& k) {
  Random random(20);
  Floats sums(6 * kMaxLanes);
  for (int n = 0; n < 6 * kMaxLanes; ++n) sums[n] = static_cast<float>(random.uniform(0.0, 2.0));
  float folded[6];
  k.lane_sums(sums.data(), folded, kTileRows);
  for (int r = 0; r < 6; ++r) {
    expect(folded[r] == k.lane_sum(sums.data() + r * kMaxLanes), "the sum of row %d is %g", r, folded[r]);
  }
}

}  // namespace

void test_rows(const Kernels& k) {
  group(std::string(k.name) + ": merge_rows", [&] { test_merge_rows(k); });
  group(std::string(k.name) + ": write_row, dot_rows", [&] { test_write_and_dot(k); });
  group(std::string(k.name) + ": write_rows", [&] { test_write_rows(k); });
  group(std::string(k.name) + ": lane_sums", [&] { test_lane_sums(k); });
  group(std::string(k.name) + ": peak_flops", [&] { expect(k.peak_flops(10) > 0.0, "nothing was done"); });
}

}  // namespace uwaga_tests
