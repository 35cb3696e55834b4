// Elementary functions on the level's vectors. Included inside the level's namespace, once per instruction set.

constexpr float kLog2E = 1.44269504088896341f;

// Long sums use at least eight accumulators, chosen by an entry's index: a single one of 64 terms would round a bit more than
// PyTorch does.
constexpr int kChains = kLanes < 8 ? 8 / kLanes : 1;

inline F fold_chains(const F (&sums)[kChains]) {
  F total = sums[0];
  for (int n = 1; n < kChains; ++n) total = add(total, sums[n]);
  return total;
}

// t = 2^t for t <= 127, to 1 ulp; 0 below -126.5; NaN stays NaN. Rounding to an integer is the addition of 1.5 * 2^23,
// and the polynomial is the minimax one on [-1/2, 1/2] with p(0) = 1 (relative error 2.0e-9), so that 2^0 is exactly 1.
//
// N vectors in lockstep rather than one after another: the dependency chain of one is some fifty cycles long, more than
// out-of-order execution hides.
template <int N>
inline __attribute__((always_inline)) void exp2_each(F (&t)[N]) {
  const F magic = broadcast(12582912.0f);
  const float coefficients[] = {1.339887455e-3f, 9.618437393e-3f, 5.550332471e-2f,
                                2.402264791e-1f, 6.931472029e-1f, 1.0f};
  F r[N], p[N];
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) t[n] = max(broadcast(-127.0f), t[n]);
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) r[n] = add(t[n], magic);
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) t[n] = sub(t[n], sub(r[n], magic));
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) p[n] = broadcast(1.535335036e-4f);
  UWAGA_UNROLL(6)
  for (const float c : coefficients) {
    UWAGA_UNROLL(8)
    for (int n = 0; n < N; ++n) p[n] = fma(p[n], t[n], broadcast(c));
  }
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) t[n] = mul(p[n], power_of_two(r[n]));
}

inline F exp2_of(F t) {
  F one[1] = {t};
  exp2_each(one);
  return one[0];
}

// Small arguments by Cephes' odd polynomial, large ones through exp: both keep the relative error near 1e-7.
inline F tanh_of(F x) {
  const F a = abs(x);
  const F z = mul(x, x);
  F p = broadcast(-5.70498872745e-3f);
  p = fma(p, z, broadcast(2.06390887954e-2f));
  p = fma(p, z, broadcast(-5.37397155531e-2f));
  p = fma(p, z, broadcast(1.33314422036e-1f));
  p = fma(p, z, broadcast(-3.33332819422e-1f));
  const F small = fma(mul(p, z), x, x);
  const F e = exp2_of(mul(a, broadcast(-2.0f * kLog2E)));
  const F large = copy_sign(div(sub(broadcast(1.0f), e), add(broadcast(1.0f), e)), x);
  return less_select(a, broadcast(0.625f), small, large);
}
