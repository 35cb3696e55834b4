// Norms of sums of rows and their gradients, beside loops in double precision, and what the C interface refuses.
#include <string.h>

#include "tests/kernels/fixture.h"

namespace uwaga_tests {
namespace {

uwaga_tensor rows_in(Array& x, int64_t rows, int64_t width) {
  return {x.data(), rows * width * size_of_type(x.dtype()), 0, 0, width, 1, x.dtype(), 0};
}

struct NormProblem {
  NormProblem(int dtype, int rows, int width, bool rms, uint64_t seed)
      : rows(rows),
        width(width),
        rms(rms),
        random(seed),
        x(dtype, rows * width),
        added(dtype, rows * width),
        weight(dtype, width),
        bias(dtype, width),
        output(dtype, rows * width),
        sum(dtype, rows * width) {
    for (Array* array : {&x, &added, &weight, &bias}) array->fill_normal(random);
    args = {};
    args.rows = rows, args.width = width, args.dtype = dtype, args.epsilon = 1e-5f, args.threads = 2;
    args.kind = rms ? UWAGA_RMS_NORM : UWAGA_LAYER_NORM;
    args.x = rows_in(x, rows, width), args.added = rows_in(added, rows, width);
    args.weight = rows_in(weight, 1, width);
    if (!rms) args.bias = rows_in(bias, 1, width);
    result = {rows_in(output, rows, width), rows_in(sum, rows, width)};
  }

  // Mean and 1 / sqrt(variance + epsilon) of a row of `numbers`.
  void statistics(const std::vector<double>& numbers, double* mean, double* scale) const {
    double total = 0.0, squares = 0.0;
    for (const double v : numbers) total += v;
    *mean = rms ? 0.0 : total / width;
    for (const double v : numbers) squares += (v - *mean) * (v - *mean);
    *scale = 1.0 / sqrt(squares / width + 1e-5f);
  }

  int rows, width;
  bool rms;
  Random random;
  Array x, added, weight, bias, output, sum;
  uwaga_norm_args args;
  uwaga_norm_result result;
};

void test_forward_and_backward(const Kernels& k, bool rms) {
  uwaga_set_level(k.name);
  for (const int dtype : kTypes) {
    for (const int width : kWidths) {
      const int rows = 130;  // more than two blocks of rows whose gradients are summed
      NormProblem p(dtype, rows, width, rms, 41);
      expect(uwaga_norm_forward(&p.args, &p.result) == UWAGA_OK, "%s", uwaga_last_error());
      Array grad(dtype, rows * width), grad_sum(dtype, rows * width), grad_x(dtype, rows * width);
      grad.fill_normal(p.random), grad_sum.fill_normal(p.random);
      Floats grad_weight(width), grad_bias(width);
      uwaga_norm_args args = p.args;
      args.x = p.result.sum, args.added = {};
      uwaga_norm_backward_args backward{};
      backward.grad_output = rows_in(grad, rows, width), backward.grad_sum = rows_in(grad_sum, rows, width);
      backward.grad_x = rows_in(grad_x, rows, width);
      backward.grad_weight = {grad_weight.data(), width}, backward.grad_bias = {grad_bias.data(), width};
      expect(uwaga_norm_backward(&args, &backward) == UWAGA_OK, "%s", uwaga_last_error());

      const double half = rounding_of(dtype);
      std::vector<double> want_weight(width), want_bias(width), size_weight(width), size_bias(width);
      for (int n = 0; n < rows; ++n) {
        std::vector<double> exact(width), stored(width), g(width);
        for (int w = 0; w < width; ++w) {
          const int64_t at = int64_t{n} * width + w;
          exact[w] = static_cast<double>(p.x.get(at)) + p.added.get(at), stored[w] = p.sum.get(at);
          expect_near(stored[w], exact[w], half * fabs(exact[w]), "sum", at);
        }
        double mean, scale;
        p.statistics(exact, &mean, &scale);
        for (int w = 0; w < width; ++w) {
          const double y = (exact[w] - mean) * scale, want = y * p.weight.get(w) + (rms ? 0.0 : p.bias.get(w));
          const double bound =
              (width + 16) * kEps * (scale * 4 + fabs(y)) * fabs(p.weight.get(w)) + 2 * half * fabs(want);
          expect_near(p.output.get(int64_t{n} * width + w), want, bound + half * 1e-5, "norm", n);
        }
        p.statistics(stored, &mean, &scale);
        double plain = 0.0, with_x = 0.0, size = 0.0;
        for (int w = 0; w < width; ++w) {
          const int64_t at = int64_t{n} * width + w;
          const double y = (stored[w] - mean) * scale;
          g[w] = grad.get(at) * p.weight.get(w);
          plain += rms ? 0.0 : g[w], with_x += g[w] * y, size += fabs(g[w]) * (1 + fabs(y));
          want_weight[w] += grad.get(at) * y, size_weight[w] += fabs(grad.get(at)) * (fabs(y) + scale * 4);
          want_bias[w] += grad.get(at), size_bias[w] += fabs(grad.get(at));
        }
        for (int w = 0; w < width; ++w) {
          const int64_t at = int64_t{n} * width + w;
          const double y = (stored[w] - mean) * scale;
          const double want = scale * (g[w] - plain / width - y * with_x / width) + grad_sum.get(at);
          const double spread = 1 + fabs(y) + scale * 4;
          const double bound = (width + 32) * kEps * scale * spread * spread * (fabs(g[w]) + size / width) * 4;
          expect_near(grad_x.get(at), want, bound + 2 * half * fabs(want) + half * 1e-4, "gradient", at);
        }
      }
      for (int w = 0; w < width; ++w) {
        expect_near(grad_weight[w], want_weight[w], (rows + width) * kEps * size_weight[w], "gradient of the weight",
                    w);
        expect_near(grad_bias[w], want_bias[w], rows * kEps * size_bias[w], "gradient of the bias", w);
      }
    }
  }
  uwaga_set_level(nullptr);
}

void test_dropout(const Kernels& k) {
  uwaga_set_level(k.name);
  for (const int width : {1, 17, 64, 129}) {
    NormProblem p(UWAGA_FLOAT32, 9, width, false, 43);
    p.args.dropout = 0.25f, p.args.seed = 77;
    expect(uwaga_norm_forward(&p.args, &p.result) == UWAGA_OK, "%s", uwaga_last_error());
    Array alone(UWAGA_FLOAT32, 9 * width);
    uwaga_norm_args args = p.args;
    args.kind = UWAGA_NO_NORM, args.x = {};
    const uwaga_norm_result result{{}, rows_in(alone, 9, width)};
    expect(uwaga_norm_forward(&args, &result) == UWAGA_OK, "%s", uwaga_last_error());
    for (int64_t n = 0; n < 9 * width; ++n) {
      expect_near(alone.get(n), p.sum.get(n) - p.x.get(n), 4 * kEps * (fabs(p.sum.get(n)) + fabs(p.x.get(n))),
                  "dropped", n);
      expect(alone.get(n) == 0.0 || fabs(alone.get(n) - p.added.get(n) / 0.75) < 1e-5, "%g is neither kept nor dropped",
             alone.get(n));
    }
  }
  uwaga_set_level(nullptr);
}

void test_refusals() {
  NormProblem p(UWAGA_FLOAT32, 3, 8, false, 44);
  const auto refuses = [&](const char* message, const auto& change) {
    uwaga_norm_args args = p.args;
    uwaga_norm_result result = p.result;
    change(args, result);
    expect(uwaga_norm_forward(&args, &result) == UWAGA_BAD_ARGUMENT && !strcmp(uwaga_last_error(), message), "%s",
           uwaga_last_error());
  };
  using A = uwaga_norm_args;
  using R = uwaga_norm_result;
  refuses("x needs 96 bytes of memory, and has 95", [](A& a, R&) { a.x.bytes = 95; });
  refuses("x has a stride that is negative or too large", [](A& a, R&) { a.x.row = -8; });
  refuses("added has a stride that is negative or too large", [](A& a, R&) { a.added.row = INT64_MAX / 2; });
  refuses("weight needs 32 bytes of memory, and has 28", [](A& a, R&) { a.weight.bytes = 28; });
  refuses("output: missing", [](A&, R& r) { r.output.data = nullptr; });
  refuses("sum: its rows overlap", [](A&, R& r) { r.sum.row = 7; });
  refuses("x must have the dtype of the input", [](A& a, R&) { a.x.dtype = UWAGA_FLOAT16; });
  refuses("dropout must lie in [0, 1)", [](A& a, R&) { a.dropout = kNan; });
  refuses("width: 0 must lie between 1 and 16777216", [](A& a, R&) { a.width = 0; });
  refuses("kind of norm: 3 must lie between 0 and 2", [](A& a, R&) { a.kind = 3; });

  Array table(UWAGA_FLOAT32, 5 * 8), output(UWAGA_FLOAT32, 2 * 8);
  int64_t indices[] = {4, 5};
  uwaga_embed_args embed{};
  embed.rows = 2, embed.width = 8, embed.threads = 1, embed.output = rows_in(output, 2, 8);
  embed.tokens = {rows_in(table, 5, 8), 5, {indices, 2}};
  expect(uwaga_embed(&embed) == UWAGA_BAD_ARGUMENT, "index 5 of 5 rows was read");
  indices[1] = 0;
  expect(uwaga_embed(&embed) == UWAGA_OK, "%s", uwaga_last_error());
  embed.tokens.table_rows = 6;
  expect(uwaga_embed(&embed) == UWAGA_BAD_ARGUMENT, "a table is longer than its memory");
}

}  // namespace

void test_norms() {
  for_levels([](const Kernels& k) {
    const std::string name = std::string(k.name);
    group(name + ": layer norm", [&] { test_forward_and_backward(k, false); });
    group(name + ": RMS norm", [&] { test_forward_and_backward(k, true); });
    group(name + ": dropout", [&] { test_dropout(k); });
  });
  group("refusals of norms", [] { test_refusals(); });
}

}  // namespace uwaga_tests
