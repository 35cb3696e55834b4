// Derivatives of activations. Included inside the level's namespace.

// The standard normal distribution: Phi(x) in `cdf` and exp(-x^2 / 2) in `bell`, of N vectors in lockstep.
//
// Phi(-a) = exp(-a^2 / 2) R(a) for a >= 0, where R(a) = erfcx(a / sqrt(2)) / 2 is the minimax polynomial in (a - 3) / (a + 3) on
// [0, 14.5] (relative error 9.2e-9); beyond, Phi(-a) is 0 in float32. The absolute error is at most 1.4e-7.
template <int N>
inline __attribute__((always_inline)) void normal_each(const F (&x)[N], F (&cdf)[N], F (&bell)[N]) {
  const float coefficients[] = {1.150136595e-04f, -3.390128259e-04f, -9.832881624e-04f,
                                2.904387424e-03f, 6.131942384e-03f,  -4.621326178e-02f,
                                1.232250407e-01f, -2.064026147e-01f, 1.215139478e-01f};
  const F limit = broadcast(14.5f), middle = broadcast(3.0f);
  F a[N], u[N], p[N];
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) a[n] = abs(x[n]), a[n] = less_select(limit, a[n], limit, a[n]);
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) u[n] = div(sub(a[n], middle), add(a[n], middle));
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) bell[n] = mul(a[n], mul(a[n], broadcast(-0.5f * kLog2E)));
  exp2_each(bell);
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) p[n] = broadcast(5.316190072e-05f);
  UWAGA_UNROLL(9)
  for (const float c : coefficients) {
    UWAGA_UNROLL(8)
    for (int n = 0; n < N; ++n) p[n] = fma(p[n], u[n], broadcast(c));
  }
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) {
    p[n] = mul(p[n], bell[n]);
    cdf[n] = less_select(x[n], zero(), p[n], sub(broadcast(1.0f), p[n]));
  }
}

// x = gelu'(x) = Phi(x) + x phi(x).
template <int N>
inline __attribute__((always_inline)) void gelu_derivative_each(F (&x)[N]) {
  F cdf[N], bell[N];
  normal_each(x, cdf, bell);
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) x[n] = fma(x[n], mul(bell[n], broadcast(0.3989422804014327f)), cdf[n]);
}

// x = s + x s (1 - s) y', the derivative of x s with s = 1 / (1 + exp(-y)), y = 2 sqrt(2 / pi) (x + 0.044715 x^3): GELU's tanh form,
// since (1 + tanh(y / 2)) / 2 = s. One exponential gives both s and 1 - s, neither by a difference.
template <int N>
inline __attribute__((always_inline)) void gelu_tanh_derivative_each(F (&x)[N]) {
  constexpr float kLinear = 1.5957691216057308f, kCubic = kLinear * 0.044715f;
  const F one = broadcast(1.0f), linear = broadcast(kLinear);
  F square[N], y[N], e[N];
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) {
    square[n] = mul(x[n], x[n]);
    y[n] = mul(x[n], fma(square[n], broadcast(kCubic), linear));
    e[n] = mul(abs(y[n]), broadcast(-kLog2E));
  }
  exp2_each(e);
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) {
    const F larger = div(one, add(one, e[n])), smaller = mul(e[n], larger);
    const F slope = fma(square[n], broadcast(3.0f * kCubic), linear);
    x[n] = fma(mul(x[n], mul(smaller, larger)), slope, less_select(y[n], zero(), smaller, larger));
  }
}

template <class T>
inline F load_up_to(const T* p, int64_t count) {
  return count >= kLanes ? load(p) : load_partial(p, static_cast<int>(count));
}
template <class T>
inline void store_up_to(T* p, F a, int64_t count) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (count >= kLanes) return store(p, a);
  }
  store_partial(p, a, count >= kLanes ? kLanes : static_cast<int>(count));
}

template <int KIND, class T>
inline void activation_gradient_of(T* out, const T* x, const T* grad, int64_t count) {
  constexpr int kAtOnce = 4;
  const auto map = [&](auto vectors, int64_t at) {
    constexpr int N = vectors.value;
    F lanes[N];
    UWAGA_UNROLL(8)
    for (int n = 0; n < N; ++n) lanes[n] = load_up_to(x + at + n * kLanes, count - at - n * kLanes);
    if constexpr (KIND == UWAGA_GELU) {
      gelu_derivative_each(lanes);
    } else {
      gelu_tanh_derivative_each(lanes);
    }
    UWAGA_UNROLL(8)
    for (int n = 0; n < N; ++n) {
      const int64_t first = at + n * kLanes, left = count - first;
      store_up_to(out + first, mul(lanes[n], load_up_to(grad + first, left)), left);
    }
  };
  int64_t at = 0;
  for (; at + kAtOnce * kLanes <= count; at += kAtOnce * kLanes) map(constant<kAtOnce>(), at);
  for (; at < count; at += kLanes) map(constant<1>(), at);
}

inline void activation_gradient(void* out, const void* x, const void* grad, int dtype, int kind, int64_t count) {
  with_type(dtype, [&](auto* type) {
    using T = typename remove_pointer_to_const<decltype(type)>::type;
    const auto run = [&](auto chosen) {
      activation_gradient_of<chosen.value>(static_cast<T*>(out), typed(x, type), typed(grad, type), count);
    };
    if (kind == UWAGA_GELU) return run(constant<UWAGA_GELU>());
    run(constant<UWAGA_GELU_TANH>());
  });
}
