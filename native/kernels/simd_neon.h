// Four lanes: AArch64's Advanced SIMD. simd_scalar.h documents each function.
//
// Two levels include this file, with and without the bfloat16 dot product, so the namespace is the includer's UWAGA_LEVEL.
#ifndef UWAGA_KERNELS_SIMD_NEON_H_
#define UWAGA_KERNELS_SIMD_NEON_H_

#include <arm_neon.h>

#include "base/half.h"
#include "kernels/kernels.h"

namespace uwaga {
namespace UWAGA_LEVEL {
namespace {

struct F {
  float32x4_t v;
};
constexpr int kLanes = 4;
constexpr int kStripVectors = 4;  // 6 x 4 accumulators, 4 operands, 1 broadcast: 29 of 32 registers

inline F of_words(uint32x4_t x) { return {vreinterpretq_f32_u32(x)}; }
inline uint32x4_t words_of(F a) { return vreinterpretq_u32_f32(a.v); }
inline uint32x4_t lane_numbers() {
  static const uint32_t numbers[kLanes] = {0, 1, 2, 3};
  return vld1q_u32(numbers);
}
inline uint32x4_t lane_of_bit() {
  static const uint32_t bits[kLanes] = {1, 2, 4, 8};
  return vld1q_u32(bits);
}
inline uint32_t bits_of_lanes(uint32x4_t mask) { return vaddvq_u32(vandq_u32(mask, lane_of_bit())); }

// Copies so that nothing past the count is touched.
template <class T>
struct Partial {
  T at[kLanes] = {};
  Partial() = default;
  Partial(const T* p, int count) {
    for (int n = 0; n < count; ++n) at[n] = p[n];
  }
  void copy_to(T* p, int count) const {
    for (int n = 0; n < count; ++n) p[n] = at[n];
  }
};

inline F load(const float* p) { return {vld1q_f32(p)}; }
inline F load(const bfloat16* p) { return of_words(vshll_n_u16(vld1_u16(&p->bits), 16)); }
inline F load(const float16* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)))}; }
template <class T>
inline F load_partial(const T* p, int count) {
  return load(Partial<T>(p, count).at);
}
inline void store(float* p, F a) { vst1q_f32(p, a.v); }
inline void store(bfloat16* p, F a) {
  const uint32x4_t u = words_of(a);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
  const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
  vst1_u16(&p->bits, vshrn_n_u32(vbslq_u32(vceqq_f32(a.v, a.v), rounded, quiet), 16));
}
inline void store(float16* p, F a) { vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(a.v))); }
template <class T>
inline void store_partial(T* p, F a, int count) {
  if (count == kLanes) return store(p, a);
  Partial<T> lanes;
  store(lanes.at, a);
  lanes.copy_to(p, count);
}

inline F zero() { return {vdupq_n_f32(0.0f)}; }
inline F broadcast(float x) { return {vdupq_n_f32(x)}; }
inline F add(F a, F b) { return {vaddq_f32(a.v, b.v)}; }
inline F sub(F a, F b) { return {vsubq_f32(a.v, b.v)}; }
inline F mul(F a, F b) { return {vmulq_f32(a.v, b.v)}; }
inline F div(F a, F b) { return {vdivq_f32(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// Not vmaxq_f32: that gives NaN where either is.
inline F max(F a, F b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
inline F abs(F a) { return {vabsq_f32(a.v)}; }
inline F copy_sign(F magnitude, F sign) { return {vbslq_f32(vdupq_n_u32(0x80000000u), sign.v, magnitude.v)}; }
inline F less_select(F a, F b, F yes, F no) { return {vbslq_f32(vcltq_f32(a.v, b.v), yes.v, no.v)}; }
inline F power_of_two(F r) { return of_words(vaddq_u32(vshlq_n_u32(words_of(r), 23), vdupq_n_u32(127u << 23))); }
inline F select(uint32_t bits, F a, F b) { return {vbslq_f32(vtstq_u32(vdupq_n_u32(bits), lane_of_bit()), a.v, b.v)}; }
inline uint32_t finite_bits(F a) { return bits_of_lanes(vcaltq_f32(a.v, vdupq_n_f32(__builtin_inff()))); }
inline uint32_t equals_bits(F a, F b) { return bits_of_lanes(vceqq_f32(a.v, b.v)); }
inline uint32_t less_bits(F a, F b) { return bits_of_lanes(vcltq_f32(a.v, b.v)); }
inline F shift_in(F a, float first) { return {vextq_f32(vdupq_n_f32(first), a.v, 3)}; }
inline float reduce_add(F a) { return vaddvq_f32(a.v); }
inline float reduce_max(F a) { return vmaxvq_f32(a.v); }
inline void row_maxima(const float* top, float* out) {
  for (int r = 0; r < kTileRows; ++r) out[r] = reduce_max(load(top + r * kLanes));
}

inline __attribute__((always_inline)) void transpose(F (&x)[4]) {
  const float32x4_t a = vtrn1q_f32(x[0].v, x[1].v), b = vtrn2q_f32(x[0].v, x[1].v);
  const float32x4_t c = vtrn1q_f32(x[2].v, x[3].v), d = vtrn2q_f32(x[2].v, x[3].v);
  x[0].v = vcombine_f32(vget_low_f32(a), vget_low_f32(c));
  x[1].v = vcombine_f32(vget_low_f32(b), vget_low_f32(d));
  x[2].v = vcombine_f32(vget_high_f32(a), vget_high_f32(c));
  x[3].v = vcombine_f32(vget_high_f32(b), vget_high_f32(d));
}

// Words 0 to 3 of 4 rows that are `row` bytes apart: x[w] has word w of each.
constexpr int kLoadedWords = 4;
inline __attribute__((always_inline)) void load_transposed(const void* rows, int64_t row, F (&x)[kLoadedWords]) {
  const char* from = static_cast<const char*>(rows);
  for (int n = 0; n < 4; ++n) x[n].v = vld1q_f32(reinterpret_cast<const float*>(from + n * row));
  transpose(x);
}

inline F load_words(const bfloat16* p) { return of_words(vreinterpretq_u32_u16(vld1q_u16(&p->bits))); }
inline F low_halves(F words) { return of_words(vshlq_n_u32(words_of(words), 16)); }
inline F high_halves(F words) { return of_words(vandq_u32(words_of(words), vdupq_n_u32(0xFFFF0000u))); }
inline void interleave(F& even, F& odd) {
  const float32x4_t first = vzip1q_f32(even.v, odd.v);
  odd.v = vzip2q_f32(even.v, odd.v);
  even.v = first;
}

inline uint32_t keep_bits(uint32_t row_key, uint32_t first, uint32_t threshold) {
  uint32x4_t x = vmulq_u32(vaddq_u32(vdupq_n_u32(first), lane_numbers()), vdupq_n_u32(0x9E3779B1u));
  x = vaddq_u32(x, vdupq_n_u32(row_key));
  x = veorq_u32(x, vshrq_n_u32(x, 16));
  x = vmulq_u32(x, vdupq_n_u32(0x85EBCA6Bu));
  x = veorq_u32(x, vshrq_n_u32(x, 13));
  x = vmulq_u32(x, vdupq_n_u32(0xC2B2AE35u));
  x = veorq_u32(x, vshrq_n_u32(x, 16));
  return bits_of_lanes(vcgeq_u32(x, vdupq_n_u32(threshold)));
}

}  // namespace
}  // namespace UWAGA_LEVEL
}  // namespace uwaga
#endif  // UWAGA_KERNELS_SIMD_NEON_H_
