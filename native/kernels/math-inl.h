// Elementary functions on the level's vectors. Included inside the level's namespace, once per instruction set.

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// 2^t for t <= 127, to 1 ulp; 0 below -126.5; NaN stays NaN. Rounding to an integer is the addition of 1.5 * 2^23, and
// the polynomial is the minimax one on [-1/2, 1/2] with p(0) = 1 (relative error 2.0e-9), so that 2^0 is exactly 1.
inline F exp2_of(F t) {
  const F magic = broadcast(12582912.0f);
  t = max(broadcast(-127.0f), t);
  const F r = add(t, magic);
  const F f = sub(t, sub(r, magic));
  F p = broadcast(1.535335036e-4f);
  p = fma(p, f, broadcast(1.339887455e-3f));
  p = fma(p, f, broadcast(9.618437393e-3f));
  p = fma(p, f, broadcast(5.550332471e-2f));
  p = fma(p, f, broadcast(2.402264791e-1f));
  p = fma(p, f, broadcast(6.931472029e-1f));
  p = fma(p, f, broadcast(1.0f));
  return mul(p, power_of_two(r));
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
