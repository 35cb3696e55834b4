#include "tests/oracle.h"

#include <algorithm>
#include <numeric>

namespace uwaga_tests {
namespace {

uint64_t splitmix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets = {0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

}  // namespace

int64_t Shape::longest(const std::vector<int64_t>& lengths) const {
  int64_t most = 0;
  for (const int64_t length : lengths) most = std::max(most, length);
  return most;
}
int64_t Shape::offset(const std::vector<int64_t>& lengths, int64_t b) {
  return std::accumulate(lengths.begin(), lengths.begin() + b, int64_t{0});
}

Shape dense_shape(int64_t b, int64_t h, int64_t g, int64_t q, int64_t k, int64_t d, int64_t e) {
  return {b, h, g, d, e, false, std::vector<int64_t>(b, q), std::vector<int64_t>(b, k)};
}
Shape ragged_shape(int64_t h, int64_t g, std::vector<int64_t> queries, std::vector<int64_t> keys, int64_t d,
                   int64_t e) {
  return {static_cast<int64_t>(queries.size()), h, g, d, e, true, queries, keys};
}

// Entries that a row needs in memory.
static int64_t row_extent(int64_t columns, int layout) {
  return layout == 2 ? 2 * columns : layout == 3 ? columns + 3 : columns;
}

Operand::Operand(int dtype, const Shape& shape, int64_t heads, const std::vector<int64_t>& rows, int64_t columns,
                 int layout)
    : ragged_(shape.ragged),
      rows_(rows),
      array_(dtype, heads * row_extent(columns, layout) * std::accumulate(rows.begin(), rows.end(), int64_t{0})) {
  const int64_t width = row_extent(columns, layout);
  const int64_t all = ragged_ ? std::accumulate(rows.begin(), rows.end(), int64_t{0}) : (rows.empty() ? 0 : rows[0]);
  column_ = layout == 2 ? 2 : 1;
  row_ = layout == 1 ? heads * width : width;
  head_ = layout == 1 ? width : all * width;
  batch_ = heads * all * width;
}

int64_t Operand::index(int64_t b, int64_t h, int64_t row, int64_t column) const {
  const int64_t packed = ragged_ ? Shape::offset(rows_, b) + row : row;
  return (ragged_ ? 0 : b) * batch_ + h * head_ + packed * row_ + column * column_;
}

uwaga_tensor Operand::tensor() const {
  return {array_.data(), array_.bytes(), batch_, head_, row_, column_, array_.dtype(), 0};
}

Call::Call(const Shape& s, const Options& o)
    : shape(s),
      options(o),
      mask(shape),
      query(o.dtype, s, s.query_heads, s.queries, s.query_width, o.layout),
      key(o.dtype, s, s.key_heads, s.keys, s.query_width, o.layout),
      value(o.value_dtype < 0 ? o.dtype : o.value_dtype, s, s.key_heads, s.keys, s.value_width, o.layout),
      output(o.dtype, s, s.query_heads, s.queries, s.value_width, o.layout),
      lse(UWAGA_FLOAT32, s, s.query_heads, s.queries, 1, 0),
      grad_output(o.dtype, s, s.query_heads, s.queries, s.value_width, o.layout),
      grad_lse(UWAGA_FLOAT32, s, s.query_heads, s.queries, 1, 0),
      grad_query(o.dtype, s, s.query_heads, s.queries, s.query_width, o.layout),
      grad_key(o.dtype, s, s.key_heads, s.keys, s.query_width, o.layout),
      grad_value(value.array().dtype(), s, s.key_heads, s.keys, s.value_width, o.layout),
      query_offsets_(offsets_of(s.queries)),
      key_offsets_(offsets_of(s.keys)) {
  Random random(o.seed);
  query.array().fill_normal(random, o.spread);
  key.array().fill_normal(random, o.spread);
  value.array().fill_normal(random);
  const int64_t q = s.longest(s.queries), k = s.longest(s.keys);
  if (o.relative) {
    relative_zero = q + k, relative_length = 2 * (q + k) + 1;
    for (int64_t n = 0; n < s.query_heads * relative_length; ++n)
      relative.push_back(static_cast<float>(random.normal()));
    grad_relative.assign(relative.size(), 0.0f);
  }
  if (o.bias) {
    const Shape full = dense_shape(s.sequences, 1, 1, q, 1, 1, 1);
    bias.reset(new Operand(o.dtype, full, s.query_heads, full.queries, k, 0));
    bias->array().fill_normal(random);
    for (int64_t n = 0; n < bias->array().count(); ++n) {
      if (random.chance(0.1)) bias->array().set(n, -kInfinity);
    }
    grad_bias.reset(new Operand(UWAGA_FLOAT32, full, s.query_heads, full.queries, k, 0));
  }
  if (o.sinks) {
    for (int64_t h = 0; h < s.query_heads; ++h) sinks.push_back(static_cast<float>(random.normal()));
    grad_sinks.assign(sinks.size(), 0.0f);
  }
}

uwaga_problem Call::problem() const {
  uwaga_problem p{};
  p.sequences = shape.sequences, p.query_heads = shape.query_heads, p.key_heads = shape.key_heads;
  p.queries = shape.longest(shape.queries), p.keys = shape.longest(shape.keys);
  p.query_width = shape.query_width, p.value_width = shape.value_width;
  if (shape.ragged) {
    p.query_offsets = integers(query_offsets_), p.key_offsets = integers(key_offsets_);
    p.query_tokens = query_offsets_.back(), p.key_tokens = key_offsets_.back();
  }
  p.query = query.tensor(), p.key = key.tensor(), p.value = value.tensor();
  p.mask = mask.operations().data(), p.mask_operations = static_cast<int64_t>(mask.operations().size());
  p.scale = static_cast<float>(options.scale), p.softcap = static_cast<float>(options.softcap);
  p.dropout = static_cast<float>(options.dropout), p.seed = options.seed;
  if (options.relative)
    p.relative = floats(relative), p.relative_head = relative_length, p.relative_zero = relative_zero;
  if (bias) p.bias = bias->tensor();
  if (options.sinks) p.sinks = floats(sinks);
  p.normalize = options.softmax, p.threads = options.threads;
  return p;
}

int Call::forward() {
  const uwaga_problem p = problem();
  const uwaga_forward_result result{output.tensor(), lse.tensor()};
  return uwaga_forward(&p, &result);
}

void Call::randomize_grad_output() {
  Random random(options.seed + 1);
  grad_output.array().fill_normal(random);
  if (options.softmax) grad_lse.array().fill_normal(random);
}

int Call::backward() {
  const uwaga_problem p = problem();
  uwaga_backward_args a{};
  a.output = output.tensor(), a.grad_output = grad_output.tensor(), a.lse = lse.tensor();
  if (options.softmax) a.grad_lse = grad_lse.tensor();
  a.grad_query = grad_query.tensor(), a.grad_key = grad_key.tensor(), a.grad_value = grad_value.tensor();
  std::fill(grad_relative.begin(), grad_relative.end(), 0.0f);
  std::fill(grad_sinks.begin(), grad_sinks.end(), 0.0f);
  if (options.relative) a.grad_relative = floats(grad_relative);
  if (options.sinks) a.grad_sinks = floats(grad_sinks);
  if (grad_bias) {
    for (int64_t n = 0; n < grad_bias->array().count(); ++n) grad_bias->array().set(n, 0.0);
    a.grad_bias = grad_bias->tensor();
  }
  return uwaga_backward(&p, &a);
}

bool Call::sees(int64_t b, int64_t h, int64_t i, int64_t j) const {
  return mask.sees(b, h, i, j) && !(bias && bias->get(b, h, i, j) == -kInfinity);
}

double Call::raw_score(int64_t b, int64_t h, int64_t i, int64_t j, double* magnitude) const {
  const int64_t g = h / (shape.query_heads / shape.key_heads);
  double sum = 0.0;
  *magnitude = 0.0;
  for (int64_t w = 0; w < shape.query_width; ++w) {
    const double product = query.get(b, h, i, w) * key.get(b, g, j, w);
    sum += product, *magnitude += fabs(product);
  }
  *magnitude *= fabs(options.scale);
  return sum * static_cast<float>(options.scale);
}

bool Call::keeps(int64_t b, int64_t h, int64_t i, int64_t j) const {
  if (options.dropout == 0.0) return true;
  const uint64_t head = splitmix(options.seed + static_cast<uint64_t>(b * shape.query_heads + h));
  uint32_t x =
      static_cast<uint32_t>(splitmix(head + static_cast<uint64_t>(i))) + static_cast<uint32_t>(j) * 0x9E3779B1u;
  x = (x ^ x >> 16) * 0x85EBCA6Bu;
  x = (x ^ x >> 13) * 0xC2B2AE35u;
  x ^= x >> 16;
  return x >= std::min(floor(static_cast<float>(options.dropout) * 4294967296.0), 4294967295.0);
}

int64_t Call::relative_index(int64_t b, int64_t h, int64_t i, int64_t j) const {
  return h * relative_length + j - i - (shape.keys[b] - shape.queries[b]) + relative_zero;
}

RowWeights Call::row_weights(int64_t b, int64_t h, int64_t i) const {
  const int64_t count = shape.keys[b];
  RowWeights row;
  row.weights.assign(count, 0.0), row.relative_error.assign(count, 0.0), row.dropped.assign(count, 0.0);
  row.softcap_grad.assign(count, 1.0);
  row.sees_any = false;
  double top = -INFINITY;
  std::vector<double> s(count, -INFINITY), error(count, 0.0);
  for (int64_t j = 0; j < count; ++j) {
    if (!sees(b, h, i, j)) continue;
    row.sees_any = true;
    double magnitude;
    s[j] = raw_score(b, h, i, j, &magnitude);
    error[j] = static_cast<double>(shape.query_width + 4) * kEps * magnitude;
    if (options.softcap != 0.0) {
      const double cap = static_cast<float>(options.softcap), t = tanh(s[j] / cap);
      s[j] = cap * t, row.softcap_grad[j] = 1.0 - t * t, error[j] += 8 * kEps * fabs(s[j]);
    }
    if (options.relative) s[j] += relative[relative_index(b, h, i, j)], error[j] += 2 * kEps * (fabs(s[j]) + 3.0);
    if (bias) s[j] += bias->get(b, h, i, j), error[j] += 2 * kEps * (fabs(s[j]) + 3.0);
    top = std::max(top, s[j]);
  }
  if (!options.softmax) {
    for (int64_t j = 0; j < count; ++j) {
      if (s[j] == -INFINITY) continue;
      row.weights[j] = s[j], row.relative_error[j] = s[j] == 0.0 ? 0.0 : error[j] / fabs(s[j]);
    }
    row.lse = row.lse_error = 0.0;
  } else {
    if (options.sinks) top = std::max<double>(top, sinks[h]);
    double sum = options.sinks ? exp(sinks[h] - top) : 0.0, most = 0.0;
    // Each merge of blocks and chunks adds one rounding.
    const double merges = static_cast<double>(count) / 64 + 4;
    for (int64_t j = 0; j < count; ++j) {
      if (s[j] == -INFINITY) continue;
      sum += exp(s[j] - top);
      error[j] += 6 * kEps * (fabs(s[j]) + fabs(top) + merges);
      most = std::max(most, error[j]);
    }
    row.lse = sum == 0.0 ? -INFINITY : top + log(sum);
    row.lse_error = most + kEps * (fabs(row.lse) + static_cast<double>(count) + 8);
    for (int64_t j = 0; j < count; ++j) {
      if (s[j] == -INFINITY) continue;
      row.weights[j] = exp(s[j] - row.lse);
      row.relative_error[j] = error[j] + row.lse_error;
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    row.dropped[j] = keeps(b, h, i, j) ? row.weights[j] / (1.0 - static_cast<float>(options.dropout)) : 0.0;
  }
  return row;
}

void Call::check_forward(bool pairs) const {
  for_rows(shape, [&](int64_t b, int64_t h, int64_t i) {
    const RowWeights row = row_weights(b, h, i);
    const int64_t g = h / (shape.query_heads / shape.key_heads);
    for (int64_t w = 0; w < shape.value_width; ++w) {
      double z = 0.0, bound = 0.0;
      for (int64_t j = 0; j < shape.keys[b]; ++j) {
        if (row.dropped[j] == 0.0 && row.weights[j] == 0.0) continue;
        const double v = value.get(b, g, j, w);
        z += row.dropped[j] * v;
        bound += fabs(row.dropped[j] * v) *
                 (row.relative_error[j] + static_cast<double>(shape.keys[b] + 12) * kEps + (pairs ? 0x1p-8 : 0.0));
      }
      bound +=
          rounding_of(output.array().dtype()) * (fabs(z) + bound) + 1e-7 * (output.array().dtype() == UWAGA_FLOAT16);
      expect_near(output.get(b, h, i, w), z, bound + 1e-37, "output", (b * 100 + h) * 1000000 + i * 1000 + w);
    }
    if (!options.softmax) return;
    const double got = lse.get(b, h, i, 0);
    if (row.lse == -INFINITY) {
      expect(got == -INFINITY, "lse of row %d, which sees nothing, is %g", static_cast<int>(i), got);
    } else {
      expect_near(got, row.lse, row.lse_error, "lse", (b * 100 + h) * 1000000 + i);
    }
  });
}

void Call::check_linear() const {
  for_rows(shape, [&](int64_t b, int64_t h, int64_t i) {
    const int64_t g = h / (shape.query_heads / shape.key_heads);
    std::vector<double> z(shape.value_width), size(shape.value_width);
    for (int64_t j = 0; j < shape.keys[b]; ++j) {
      if (!sees(b, h, i, j)) continue;
      double magnitude;
      const double s = raw_score(b, h, i, j, &magnitude);
      for (int64_t w = 0; w < shape.value_width; ++w) {
        const double v = value.get(b, g, j, w);
        z[w] += s * v, size[w] += magnitude * fabs(v);
      }
    }
    for (int64_t w = 0; w < shape.value_width; ++w) {
      const double bound = static_cast<double>(shape.query_width + shape.keys[b] + 12) * kEps * size[w];
      expect_near(output.get(b, h, i, w), z[w],
                  bound + rounding_of(output.array().dtype()) * (fabs(z[w]) + bound) + 1e-37, "output",
                  (b * 100 + h) * 1000000 + i * 1000 + w);
    }
  });
}

// From the output and lse that forward() stored, as in the library, so that their rounding is not an error of backward().
void Call::check_backward() const {
  const int64_t group = shape.query_heads / shape.key_heads;
  const int64_t d = shape.query_width, e = shape.value_width;
  const double scale = static_cast<float>(options.scale), growth = 1.0 / (1.0 - static_cast<float>(options.dropout));
  std::vector<double> relative_want(relative.size()), relative_bound(relative.size());
  std::vector<double> sink_want(sinks.size()), sink_bound(sinks.size());
  for (int64_t b = 0; b < shape.sequences; ++b) {
    const int64_t keys = shape.keys[b], queries = shape.queries[b];
    for (int64_t g = 0; g < shape.key_heads; ++g) {
      std::vector<double> dk(keys * d), dk_bound(keys * d), dv(keys * e), dv_bound(keys * e);
      const double terms = static_cast<double>(queries * group + keys + 16);
      for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        for (int64_t i = 0; i < queries; ++i) {
          const RowWeights row = row_weights(b, h, i);
          std::vector<double> dq(d), dq_bound(d);
          double delta = 0.0, delta_error = 0.0;
          const double stored = lse.get(b, h, i, 0);
          if (options.softmax) {
            for (int64_t w = 0; w < e; ++w) {
              const double product = grad_output.get(b, h, i, w) * output.get(b, h, i, w);
              delta += product, delta_error += static_cast<double>(e + 4) * kEps * fabs(product);
            }
            delta -= grad_lse.get(b, h, i, 0);
            delta_error += 2 * kEps * (fabs(delta) + 1.0);
          }
          if (options.sinks && stored != -INFINITY) {
            const double a = exp(sinks[h] - stored);
            sink_want[h] -= a * delta;
            sink_bound[h] +=
                a * delta_error + (fabs(a * delta)) * kEps * (terms + 8 * (fabs(stored) + fabs(sinks[h]) + 1));
          }
          for (int64_t j = 0; j < keys; ++j) {
            if (!sees(b, h, i, j)) continue;
            double p = row.weights[j];
            double p_error = row.relative_error[j] * fabs(p);
            if (options.softmax) {
              p = row.weights[j] * exp(row.lse - stored);
              p_error = p * (row.relative_error[j] + 8 * kEps * (fabs(stored) + 2));
            }
            double dp = 0.0, dp_error = 0.0;
            const bool kept = keeps(b, h, i, j);
            for (int64_t w = 0; w < e; ++w) {
              const double grad = grad_output.get(b, h, i, w), product = grad * value.get(b, g, j, w);
              dp += product, dp_error += static_cast<double>(e + 6) * kEps * fabs(product);
              if (!kept) continue;
              dv[j * e + w] += growth * p * grad;
              dv_bound[j * e + w] += growth * fabs(grad) * (p_error + fabs(p) * terms * kEps);
            }
            dp *= kept ? growth : 0.0, dp_error *= kept ? growth : 0.0;
            const double ds = options.softmax ? p * (dp - delta) : dp;
            double ds_error = dp_error + 2 * kEps * fabs(dp);
            if (options.softmax) {
              ds_error = p * (dp_error + delta_error) +
                         (p_error + 4 * kEps * p) * (fabs(dp) + fabs(delta) + dp_error + delta_error);
            }
            if (options.relative) {
              relative_want[relative_index(b, h, i, j)] += ds;
              relative_bound[relative_index(b, h, i, j)] += ds_error + fabs(ds) * kEps * (terms + 64);
            }
            if (grad_bias) expect_near(grad_bias->get(b, h, i, j), ds, ds_error + 1e-37, "grad of bias", i * 1000 + j);
            const double ds_softcap = ds * row.softcap_grad[j];
            // The derivative of the softcap, 1 - t^2, has cancellation: its error is absolute.
            const double ds_softcap_error = ds_error + fabs(ds) * (2 * row.relative_error[j] + 16 * kEps);
            for (int64_t w = 0; w < d; ++w) {
              const double q = query.get(b, h, i, w), x = key.get(b, g, j, w);
              dq[w] += ds_softcap * x * scale,
                  dq_bound[w] += fabs(x * scale) * (ds_softcap_error + fabs(ds_softcap) * terms * kEps);
              dk[j * d + w] += ds_softcap * q * scale;
              dk_bound[j * d + w] += fabs(q * scale) * (ds_softcap_error + fabs(ds_softcap) * terms * kEps);
            }
          }
          for (int64_t w = 0; w < d; ++w) {
            const double room = dq_bound[w] + rounding_of(grad_query.array().dtype()) * (fabs(dq[w]) + dq_bound[w]) +
                                1e-7 * (options.dtype == UWAGA_FLOAT16);
            expect_near(grad_query.get(b, h, i, w), dq[w], room + 1e-37, "grad of query",
                        (b * 100 + h) * 1000000 + i * 1000 + w);
          }
        }
      }
      for (int64_t j = 0; j < keys; ++j) {
        const double floor = 1e-37 + 1e-7 * (options.dtype == UWAGA_FLOAT16);
        for (int64_t w = 0; w < d; ++w) {
          const int64_t at = j * d + w;
          const double room =
              dk_bound[at] + rounding_of(grad_key.array().dtype()) * (fabs(dk[at]) + dk_bound[at]) + floor;
          expect_near(grad_key.get(b, g, j, w), dk[at], room, "grad of key", (b * 100 + g) * 1000000 + j * 1000 + w);
        }
        for (int64_t w = 0; w < e; ++w) {
          const int64_t at = j * e + w;
          const double room =
              dv_bound[at] + rounding_of(grad_value.array().dtype()) * (fabs(dv[at]) + dv_bound[at]) + floor;
          expect_near(grad_value.get(b, g, j, w), dv[at], room, "grad of value",
                      (b * 100 + g) * 1000000 + j * 1000 + w);
        }
      }
    }
  }
  for (size_t n = 0; n < relative.size(); ++n) {
    expect_near(grad_relative[n], relative_want[n], relative_bound[n] + 1e-37, "grad of relative",
                static_cast<int64_t>(n));
  }
  for (size_t n = 0; n < sinks.size(); ++n) {
    expect_near(grad_sinks[n], sink_want[n], sink_bound[n] + 1e-37, "grad of sinks", static_cast<int64_t>(n));
  }
}

}  // namespace uwaga_tests
