// Gradients through activations, beside the derivative in double precision.
#include "tests/kernels/fixture.h"

namespace uwaga_tests {
namespace {

double derivative(int activation, double x) {
  if (activation == UWAGA_GELU) return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-x * x / 2) / sqrt(2.0 * M_PI);
  const double y = 2.0 * sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x), s = 1.0 / (1.0 + exp(-y));
  return s + x * s * (1.0 - s) * 2.0 * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
}

void test_gradients(const Kernels& k, int activation) {
  Random random(31);
  for (const int dtype : kTypes) {
    for (const int count : {1, 7, 16, 63, 64, 65, 1000}) {
      Array x(dtype, count), grad(dtype, count), out(dtype, count);
      for (int n = 0; n < count; ++n) x.set(n, n % 8 == 3 ? 30.0 * random.normal() : 2.0 * random.normal());
      grad.fill_normal(random);
      k.activation_gradient(out.data(), x.data(), grad.data(), dtype, activation, count);
      for (int n = 0; n < count; ++n) {
        const double want = grad.get(n) * derivative(activation, x.get(n));
        const double bound =
            6 * kEps * fabs(grad.get(n)) + (dtype == UWAGA_FLOAT32 ? 0.0 : rounding_of(dtype) * fabs(want) + 6e-8);
        expect_near(out.get(n), want, bound, type_name(dtype), n);
      }
    }
  }
  // Into the memory of the gradient; NaN stays NaN; what overflows to exp(-inf) does not.
  float x[] = {0.0f, -0.0f, kNan, 1e4f, -1e4f, 14.6f, -14.6f}, grad[] = {2, 2, 2, 2, 2, 2, 2};
  k.activation_gradient(grad, x, grad, UWAGA_FLOAT32, activation, 7);
  const float want[] = {1, 1, kNan, 2, 0, 2, 0};
  for (int n = 0; n < 7; ++n) {
    if (isnan(want[n])) {
      expect(isnan(grad[n]), "the derivative at NaN is %g", grad[n]);
    } else {
      expect_near(grad[n], want[n], 6 * kEps, "edge", n);
    }
  }
}

}  // namespace

void test_activations(const Kernels& k) {
  group(std::string(k.name) + ": gradient through gelu", [&] { test_gradients(k, UWAGA_GELU); });
  group(std::string(k.name) + ": gradient through gelu_tanh", [&] { test_gradients(k, UWAGA_GELU_TANH); });
}

}  // namespace uwaga_tests
