// Products of matrices, against sums in double precision, and bit for bit against smaller products.
#include <string.h>

#include <algorithm>
#include <string>

#include "tests/check.h"

namespace uwaga_tests {
namespace {

enum Order { kRowMajor, kColumnMajor, kSpread, kOrders };

// A matrix in memory of exactly its size. kSpread: gaps between rows and between columns.
struct Matrix {
  Matrix(int dtype, int64_t rows, int64_t columns, int order, Random& random)
      : array(dtype, std::max<int64_t>(order == kSpread ? rows * columns * 6 : rows * columns, 1)),
        row(order == kColumnMajor ? 1
            : order == kSpread    ? columns * 6
                                  : columns),
        column(order == kColumnMajor ? rows
               : order == kSpread    ? 3
                                     : 1) {
    array.fill_normal(random);
  }
  uwaga_tensor tensor() const { return {array.data(), array.bytes(), 0, 0, row, column, array.dtype(), 0}; }
  double at(int64_t r, int64_t c) const { return array.get(r * row + c * column); }
  Array array;
  int64_t row, column;
};

double activated(int activation, double x) {
  switch (activation) {
    case UWAGA_GELU:
      return 0.5 * x * erfc(-x / sqrt(2.0));
    case UWAGA_GELU_TANH:
      return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case UWAGA_RELU:
      return x > 0.0 ? x : 0.0;
    case UWAGA_SILU:
      return x / (1.0 + exp(-x));
    default:
      return x;
  }
}

struct Product {
  Product(int64_t rows, int64_t columns, int64_t depth, int dtype, int out_dtype, int a_order, int b_order,
          Random& random)
      : a(dtype, rows, depth, a_order, random),
        b(dtype, columns, depth, b_order, random),
        bias(out_dtype, 1, columns, kRowMajor, random),
        residual(out_dtype, rows, columns, kRowMajor, random),
        preactivation(out_dtype, rows, columns, kRowMajor, random),
        out(out_dtype, rows, columns, kRowMajor, random) {
    args.rows = rows, args.columns = columns, args.depth = depth, args.threads = 2;
    args.a = a.tensor(), args.b = b.tensor(), args.out = out.tensor();
  }
  void add_all(int activation) {
    args.bias = bias.tensor(), args.residual = residual.tensor(), args.preactivation = preactivation.tensor();
    args.activation = activation;
  }
  bool run() const { return expect(uwaga_matmul(&args) == UWAGA_OK, "refused: %s", uwaga_last_error()); }

  // Every entry within the errors of its sum: of a block's float32 sum, of the sum of blocks, and of rounding at the end.
  void check() const {
    const double stored = rounding_of(out.array.dtype());
    for (int64_t m = 0; m < args.rows; ++m) {
      for (int64_t n = 0; n < args.columns; ++n) {
        double sum = 0.0, size = 0.0;
        for (int64_t k = 0; k < args.depth; ++k) {
          const double term = a.at(m, k) * b.at(n, k);
          sum += term, size += fabs(term);
        }
        if (args.bias.data) sum += bias.at(0, n), size += fabs(bias.at(0, n));
        const double bound = (args.depth < 1024 ? args.depth : 1024 + args.depth / 512) * kEps * size + 4 * kEps * size;
        const int64_t at = m * args.columns + n;
        if (args.preactivation.data) {
          expect_near(preactivation.at(m, n), sum, bound + stored * fabs(sum) + 0x1p-24, "before the activation", at);
        }
        // No activation has a slope above 1.13; its own error is a few roundings of its argument.
        double want = activated(args.activation, sum);
        double error = 1.13 * bound + (args.activation ? 12 * kEps * fabs(sum) : 0.0);
        if (args.residual.data) {
          want += residual.at(m, n), error += 2 * kEps * (fabs(residual.at(m, n)) + fabs(want));
        }
        expect_near(out.at(m, n), want, error + stored * (fabs(want) + error) + 0x1p-24, "product", at);
      }
    }
  }

  Matrix a, b, bias, residual, preactivation, out;
  uwaga_matmul_args args{};
};

const int kTypes[] = {UWAGA_FLOAT32, UWAGA_BFLOAT16, UWAGA_FLOAT16};

void test_sizes() {
  Random random(41);
  const int64_t sizes[][3] = {{1, 1, 1},    {1, 70, 5},   {2, 64, 33},  {5, 65, 16},   {6, 128, 64},  {7, 129, 31},
                              {13, 200, 7}, {70, 40, 48}, {3, 20, 513}, {4, 70, 1030}, {2, 17, 2100}, {8, 9, 0}};
  for (const auto& size : sizes) {
    for (const int dtype : kTypes) {
      for (int order = 0; order < kOrders * kOrders; ++order) {
        const int out_dtype = random.chance(0.5) ? dtype : UWAGA_FLOAT32;
        Product product(size[0], size[1], size[2], dtype, out_dtype, order / kOrders, order % kOrders, random);
        if (product.run()) product.check();
        product.add_all(static_cast<int>(random.between(UWAGA_IDENTITY, UWAGA_SILU)));
        if (product.run()) product.check();
      }
    }
  }
}

void test_activations() {
  Random random(42);
  for (int activation = UWAGA_IDENTITY; activation <= UWAGA_SILU; ++activation) {
    for (const int dtype : kTypes) {
      Product product(9, 150, 20, dtype, dtype, kRowMajor, kRowMajor, random);
      product.add_all(activation);
      if (product.run()) product.check();
    }
    // One weight of 1: the activation of x itself, where it is small, far out and not finite.
    const float xs[] = {0.0f, 1e-30f, 1e-4f, 0.1f, 1.0f, 3.0f, 6.0f, 9.0f, 13.0f, 100.0f, 1e30f};
    for (const float magnitude : xs) {
      for (const float sign : {1.0f, -1.0f}) {
        Product one(1, 1, 1, UWAGA_FLOAT32, UWAGA_FLOAT32, kRowMajor, kRowMajor, random);
        one.a.array.set(0, sign * magnitude), one.b.array.set(0, 1.0), one.args.activation = activation;
        const double want = activated(activation, sign * magnitude);
        if (one.run()) expect_near(one.out.at(0, 0), want, 2e-7 * magnitude, "activation", activation);
      }
    }
    for (const float x : {kInfinity, kNan}) {
      Product one(1, 1, 1, UWAGA_FLOAT32, UWAGA_FLOAT32, kRowMajor, kRowMajor, random);
      one.a.array.set(0, x), one.b.array.set(0, 1.0), one.args.activation = activation;
      if (one.run()) expect(isnan(x) ? isnan(one.out.at(0, 0)) : one.out.at(0, 0) == x, "of %g", x);
    }
  }
}

// A row has the same bits alone, among others, and on any number of threads.
void test_same_bits() {
  Random random(43);
  for (const int dtype : kTypes) {
    for (const int64_t depth : {64, 700, 1100}) {
      for (const int order : {kRowMajor, kColumnMajor}) {
        Product whole(300, 200, depth, dtype, dtype, order, kRowMajor, random);
        whole.add_all(UWAGA_GELU);
        if (!whole.run()) return;
        const Array found(whole.out.array);
        whole.args.threads = 5;
        if (!whole.run()) return;
        expect(!memcmp(found.data(), whole.out.array.data(), static_cast<size_t>(found.bytes())), "on five threads");
        for (const int64_t rows : {1, 2, 3, 5, 6, 7, 11, 61, 97}) {
          whole.args.rows = rows, whole.args.threads = 1 + rows % 2;
          if (!whole.run()) return;
          expect(!memcmp(found.data(), whole.out.array.data(), static_cast<size_t>(rows * 200 * size_of_type(dtype))),
                 "of %lld rows", static_cast<long long>(rows));
        }
      }
    }
  }
}

void test_refusals() {
  Random random(44);
  const auto refused = [&](const char* what, const auto& spoil) {
    Product product(4, 5, 6, UWAGA_FLOAT32, UWAGA_FLOAT32, kRowMajor, kRowMajor, random);
    product.add_all(UWAGA_GELU);
    spoil(product.args);
    expect(uwaga_matmul(&product.args) == UWAGA_BAD_ARGUMENT, "%s was not refused", what);
    expect(uwaga_last_error()[0] != 0, "%s: no message", what);
  };
  refused("a negative size", [](uwaga_matmul_args& p) { p.rows = -1; });
  refused("an enormous depth", [](uwaga_matmul_args& p) { p.depth = INT64_MAX; });
  refused("an unknown activation", [](uwaga_matmul_args& p) { p.activation = 5; });
  refused("no thread", [](uwaga_matmul_args& p) { p.threads = 0; });
  refused("an unknown dtype", [](uwaga_matmul_args& p) { p.a.dtype = p.b.dtype = 3; });
  refused("two dtypes", [](uwaga_matmul_args& p) { p.b.dtype = UWAGA_BFLOAT16, p.b.bytes *= 2; });
  refused("a without memory", [](uwaga_matmul_args& p) { p.a.data = nullptr; });
  refused("a negative stride", [](uwaga_matmul_args& p) { p.b.row = -6; });
  refused("a stride past the memory", [](uwaga_matmul_args& p) { p.a.row = 7; });
  refused("a stride that overflows", [](uwaga_matmul_args& p) { p.a.row = INT64_MAX / 2; });
  refused("a short bias", [](uwaga_matmul_args& p) { p.bias.bytes -= 4; });
  refused("a short result", [](uwaga_matmul_args& p) { p.out.bytes -= 4; });
  refused("spread columns of the result", [](uwaga_matmul_args& p) { p.out.column = 2, p.out.bytes *= 2; });
  refused("a residual of another dtype", [](uwaga_matmul_args& p) { p.residual.dtype = UWAGA_BFLOAT16; });
  refused("a short preactivation", [](uwaga_matmul_args& p) { p.preactivation.bytes -= 4; });
}

}  // namespace

void test_matmul() {
  for_levels([](const uwaga::Kernels& k) {
    expect(uwaga_set_level(k.name) == UWAGA_OK, "%s cannot be set", k.name);
    const std::string level = std::string(k.name) + ": matmul, ";
    group(level + "sizes, strides and dtypes", test_sizes);
    group(level + "activations", test_activations);
    group(level + "same bits beside other rows", test_same_bits);
  });
  group("matmul, what is refused", test_refusals);
}

}  // namespace uwaga_tests
