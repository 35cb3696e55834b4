// The processor's peak: independent multiply-adds, nothing else. Included inside the level's namespace.

inline double peak_flops(int64_t iterations) {
  constexpr int kChains = 12;
  F c[kChains];
  for (int n = 0; n < kChains; ++n) c[n] = broadcast(static_cast<float>(n));
  const F a = broadcast(0.999f), b = broadcast(0.001f);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int m = 0; m < kChains; ++m) c[m] = fma(c[m], a, b);
  }
  F sum = zero();
  for (int n = 0; n < kChains; ++n) sum = add(sum, c[n]);
  volatile float sink = reduce_add(sum);
  (void)sink;
  return 2.0 * kChains * kLanes * static_cast<double>(iterations);
}
