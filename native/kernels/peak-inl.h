// The processor's peak: independent multiply-adds, nothing else. Included inside the level's namespace.

inline double peak_flops(int64_t iterations) {
  const F a = broadcast(0.999f), b = broadcast(0.001f);
  // Twelve chains hide the latency of a multiply-add (four or five cycles, two a cycle); named one by one, since a
  // compiler may keep an array in memory.
  // Chains that start alike would be computed once.
  F c0 = broadcast(0.0f), c1 = broadcast(1.0f), c2 = broadcast(2.0f), c3 = broadcast(3.0f), c4 = broadcast(4.0f);
  F c5 = broadcast(5.0f), c6 = broadcast(6.0f), c7 = broadcast(7.0f), c8 = broadcast(8.0f), c9 = broadcast(9.0f);
  F c10 = broadcast(10.0f), c11 = broadcast(11.0f);
  for (int64_t n = 0; n < iterations; ++n) {
    c0 = fma(c0, a, b), c1 = fma(c1, a, b), c2 = fma(c2, a, b), c3 = fma(c3, a, b);
    c4 = fma(c4, a, b), c5 = fma(c5, a, b), c6 = fma(c6, a, b), c7 = fma(c7, a, b);
    c8 = fma(c8, a, b), c9 = fma(c9, a, b), c10 = fma(c10, a, b), c11 = fma(c11, a, b);
  }
  const F sums = add(add(add(c0, c1), add(c2, c3)), add(add(c4, c5), add(c6, c7)));
  volatile float sink = reduce_add(add(sums, add(add(c8, c9), add(c10, c11))));
  (void)sink;
  return 2.0 * 12 * kLanes * static_cast<double>(iterations);
}
