// Sums of rows with dropout, and their norms, forward and backward. Included inside the level's namespace.
//
// Everything that belongs to one row is computed from that row alone, in one order, whatever the other rows.

// Long sums use as many accumulators as keep the adders busy, and at least eight numbers side by side.
constexpr int kNormChains = kLanes < 4 ? 8 : 4;

struct ChainedSum {
  F chains[kNormChains];
  ChainedSum() {
    for (F& chain : chains) chain = zero();
  }
  float total() const {
    F sum = chains[0];
    for (int n = 1; n < kNormChains; ++n) sum = add(sum, chains[n]);
    return reduce_add(sum);
  }
};

// Calls f(w, left, chain) for every vector of a row: its first column, how many columns are left, and the accumulator to use.
template <class Function>
inline __attribute__((always_inline)) void for_vectors(int64_t width, const Function& f) {
  int64_t w = 0;
  for (; w + kNormChains * kLanes <= width; w += kNormChains * kLanes) {
    UWAGA_UNROLL(8)
    for (int n = 0; n < kNormChains; ++n) f(w + n * kLanes, int64_t{kLanes}, n);
  }
  for (int n = 0; w < width; w += kLanes, ++n) f(w, width - w, n);
}

inline uint32_t lanes_up_to(int64_t left) { return left >= kLanes ? ~0u : (1u << left) - 1u; }

template <class T>
inline F dropped(const T* from, int64_t w, int64_t left, const RowDropout& dropout) {
  const F kept = mul(load_up_to(from + w, left), broadcast(dropout.factor));
  return select(keep_bits(dropout.row_key, static_cast<uint32_t>(w), dropout.threshold), kept, zero());
}

struct NormStatistics {
  float mean, scale;  // 0 of an RMS norm; 1 / sqrt(variance + epsilon)
};

// From the sum of a row, or of its squares for an RMS norm; x(w, left) are its vectors.
template <bool RMS, class Vectors>
inline NormStatistics statistics_of(float sum, int64_t width, float epsilon, const Vectors& x) {
  const float count = static_cast<float>(width);
  if (RMS) return {0.0f, 1.0f / __builtin_sqrtf(sum / count + epsilon)};
  const F mean = broadcast(sum / count);
  ChainedSum squares;
  for_vectors(width, [&](int64_t w, int64_t left, int chain) {
    const F away = select(lanes_up_to(left), sub(x(w, left), mean), zero());
    squares.chains[chain] = fma(away, away, squares.chains[chain]);
  });
  return {sum / count, 1.0f / __builtin_sqrtf(squares.total() / count + epsilon)};
}

template <bool RMS, bool DROPS, class T>
inline void norm_row_of(const NormRow& row) {
  const T *x = typed(row.x, static_cast<const T*>(nullptr)), *more = typed(row.more, static_cast<const T*>(nullptr));
  const T* added = typed(row.added, static_cast<const T*>(nullptr));
  T* sum = static_cast<T*>(row.sum);
  ChainedSum first;
  for_vectors(row.width, [&](int64_t w, int64_t left, int chain) {
    F v = x ? load_up_to(x + w, left) : zero();
    if (more) v = add(v, load_up_to(more + w, left));
    if (added) {
      const F a = DROPS ? dropped(added, w, left, row.dropout) : load_up_to(added + w, left);
      v = x ? add(v, a) : a;
    }
    if (sum) store_up_to(sum + w, v, left);
    store(row.floats + w, v);
    first.chains[chain] = RMS ? fma(v, v, first.chains[chain]) : add(first.chains[chain], v);
  });
  if (!row.output) return;
  const NormStatistics found = statistics_of<RMS>(first.total(), row.width, row.epsilon,
                                                  [&](int64_t w, int64_t) { return load(row.floats + w); });
  T* output = static_cast<T*>(row.output);
  for_vectors(row.width, [&](int64_t w, int64_t left, int) {
    F y = load(row.floats + w);
    if (!RMS) y = sub(y, broadcast(found.mean));
    y = mul(y, broadcast(found.scale));
    if (row.weight) y = mul(y, load(row.weight + w));
    if (row.bias) y = add(y, load(row.bias + w));
    store_up_to(output + w, y, left);
  });
}

inline void norm_row(const NormRow& row) {
  with_type(row.dtype, [&](auto* type) {
    using T = typename remove_pointer_to_const<decltype(type)>::type;
    const bool drops = row.dropout.factor != 1.0f;
    if (row.rms) return drops ? norm_row_of<true, true, T>(row) : norm_row_of<true, false, T>(row);
    drops ? norm_row_of<false, true, T>(row) : norm_row_of<false, false, T>(row);
  });
}

// With x^ = (x - mean) scale and g = grad weight:
//   dx = scale (g - sum(g) / M - x^ sum(g x^) / M), where RMSNorm has no sum(g);   dweight += grad x^;   dbias += grad.
// Mean and scale are those of x as it is stored, so that the gradient is that of one function also where x was rounded.
template <bool RMS, bool DROPS, class T>
inline void norm_gradient_row_of(const NormGradientRow& row) {
  const T* none = nullptr;
  const T *grad = typed(row.grad, none), *grad_sum = typed(row.grad_sum, none), *x = typed(row.x, none);
  T *grad_x = static_cast<T*>(row.grad_x), *grad_added = static_cast<T*>(row.grad_added);
  const auto x_at = [&](int64_t w, int64_t left) { return load_up_to(x + w, left); };
  ChainedSum sum;
  for_vectors(row.width, [&](int64_t w, int64_t left, int chain) {
    const F v = x_at(w, left);
    sum.chains[chain] = RMS ? fma(v, v, sum.chains[chain]) : add(sum.chains[chain], v);
  });
  const NormStatistics found = statistics_of<RMS>(sum.total(), row.width, row.epsilon, x_at);
  const F mean = broadcast(found.mean), scale = broadcast(found.scale);
  const auto normalized = [&](int64_t w, int64_t left) {
    const F v = x_at(w, left);
    return mul(RMS ? v : sub(v, mean), scale);
  };
  const auto weighted = [&](int64_t w, F g) { return row.weight ? mul(g, load(row.weight + w)) : g; };
  ChainedSum plain, with_x;
  for_vectors(row.width, [&](int64_t w, int64_t left, int chain) {
    const F g = load_up_to(grad + w, left), y = normalized(w, left), gw = weighted(w, g);
    if (!RMS) plain.chains[chain] = add(plain.chains[chain], gw);
    with_x.chains[chain] = fma(gw, y, with_x.chains[chain]);
    if (row.grad_weight) store(row.grad_weight + w, fma(g, y, load(row.grad_weight + w)));
    if (row.grad_bias) store(row.grad_bias + w, add(g, load(row.grad_bias + w)));
  });
  if (!grad_x && !grad_added) return;
  const float count = static_cast<float>(row.width);
  const F first = broadcast(RMS ? 0.0f : plain.total() / count), second = broadcast(with_x.total() / count);
  for_vectors(row.width, [&](int64_t w, int64_t left, int) {
    const F g = weighted(w, load_up_to(grad + w, left)), y = normalized(w, left);
    F d = sub(RMS ? g : sub(g, first), mul(y, second));
    d = mul(d, scale);
    if (grad_sum) d = add(d, load_up_to(grad_sum + w, left));
    if (grad_x) store_up_to(grad_x + w, d, left);
    if (grad_added) {
      const F kept = mul(d, broadcast(row.dropout.factor));
      const uint32_t bits =
          DROPS ? keep_bits(row.dropout.row_key, static_cast<uint32_t>(w), row.dropout.threshold) : ~0u;
      store_up_to(grad_added + w, DROPS ? select(bits, kept, zero()) : d, left);
    }
  });
}

inline void norm_gradient_row(const NormGradientRow& row) {
  with_type(row.dtype, [&](auto* type) {
    using T = typename remove_pointer_to_const<decltype(type)>::type;
    const bool drops = row.dropout.factor != 1.0f;
    if (row.rms) return drops ? norm_gradient_row_of<true, true, T>(row) : norm_gradient_row_of<true, false, T>(row);
    drops ? norm_gradient_row_of<false, true, T>(row) : norm_gradient_row_of<false, false, T>(row);
  });
}
