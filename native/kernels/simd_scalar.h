// The vector type of the scalar level, with one lane: the reference for the wider types, and the level of any processor.
//
// Each level has such a file. It defines, inside the namespace of the level, a type `F` of kLanes floats and the functions
// below, on which the kernels (kernels/*-inl.h) are written once.
#ifndef UWAGA_KERNELS_SIMD_SCALAR_H_
#define UWAGA_KERNELS_SIMD_SCALAR_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"
#include "kernels/kernels.h"

namespace uwaga {
namespace scalar {

struct F {
  float v;
};
constexpr int kLanes = 1;
constexpr int kStripVectors = 4;  // vectors across a register tile

inline F load(const float* p) { return {*p}; }
inline F load_partial(const float* p, int) { return {*p}; }  // lanes past the count are zero; 1 <= count <= kLanes
inline F load(const bfloat16* p) { return {widen(*p)}; }
inline F load_partial(const bfloat16* p, int) { return {widen(*p)}; }
inline F load(const float16* p) { return {widen(*p)}; }
inline F load_partial(const float16* p, int) { return {widen(*p)}; }
inline void store(float* p, F a) { *p = a.v; }
inline void store_partial(float* p, F a, int) { *p = a.v; }
inline void store_partial(bfloat16* p, F a, int) { *p = narrow_bfloat16(a.v); }
inline void store_partial(float16* p, F a, int) { *p = narrow_float16(a.v); }

inline F zero() { return {0.0f}; }
inline F broadcast(float x) { return {x}; }
inline F add(F a, F b) { return {a.v + b.v}; }
inline F sub(F a, F b) { return {a.v - b.v}; }
inline F mul(F a, F b) { return {a.v * b.v}; }
inline F div(F a, F b) { return {a.v / b.v}; }
// Rounded once, as on every other level: the double holds the product exactly.
inline F fma(F a, F b, F c) { return {static_cast<float>(static_cast<double>(a.v) * b.v + c.v)}; }
inline F max(F a, F b) { return {a.v > b.v ? a.v : b.v}; }  // b where either is NaN
inline F abs(F a) { return {fabsf(a.v)}; }
inline F copy_sign(F magnitude, F sign) { return {copysignf(magnitude.v, sign.v)}; }
inline F less_select(F a, F b, F yes, F no) { return a.v < b.v ? yes : no; }  // per lane: a < b ? yes : no

// 2^n for the integer n that was added to 1.5 * 2^23 to make `r`; n = -127 gives 0.
inline F power_of_two(F r) {
  uint32_t bits;
  memcpy(&bits, &r.v, sizeof bits);
  bits = (bits << 23) + (127u << 23);
  F out;
  memcpy(&out.v, &bits, sizeof bits);
  return out;
}

// Lane n is a's where bit n of `bits` is set, else b's.
inline F select(uint32_t bits, F a, F b) { return bits & 1 ? a : b; }
inline uint32_t finite_bits(F a) { return isfinite(a.v) ? 1u : 0u; }
inline uint32_t equals_bits(F a, F b) { return a.v == b.v ? 1u : 0u; }
inline uint32_t less_bits(F a, F b) { return a.v < b.v ? 1u : 0u; }
// The lanes moved up by one; `first` comes into the lowest.
inline F shift_in(F, float first) { return {first}; }
inline float reduce_add(F a) { return a.v; }
inline float reduce_max(F a) { return a.v; }
inline void transpose(F (&)[1]) {}
// A word of a row.
constexpr int kLoadedWords = 1;
inline void load_transposed(const void* rows, int64_t, F (&x)[kLoadedWords]) { memcpy(&x[0].v, rows, sizeof x[0].v); }
// Two bfloat16 per lane as they lie in memory, and either of them widened.
inline F load_words(const bfloat16* p) {
  F words;
  memcpy(&words.v, p, sizeof words.v);
  return words;
}
inline F low_halves(F words) { return {float_of(bits_of(words.v) << 16)}; }
inline F high_halves(F words) { return {float_of(bits_of(words.v) & 0xFFFF0000u)}; }
// Entries 0, 2, ... and 1, 3, ... become the first and the last kLanes ones.
inline void interleave(F&, F&) {}
// out[r] = the largest of top[r * kLanes ...], for six rows; `out` has room for kMaxLanes, the rest is not defined.
inline void row_maxima(const float* top, float* out) {
  for (int r = 0; r < kTileRows; ++r) out[r] = top[r];
}

// Bit n: whether key first + n survives dropout, by the counter hash of docs/contributors/kernels.md.
inline uint32_t keep_bits(uint32_t row_key, uint32_t first, uint32_t threshold) {
  uint32_t x = row_key + first * 0x9E3779B1u;
  x ^= x >> 16;
  x *= 0x85EBCA6Bu;
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  x ^= x >> 16;
  return x >= threshold ? 1u : 0u;
}

}  // namespace scalar
}  // namespace uwaga
#endif  // UWAGA_KERNELS_SIMD_SCALAR_H_
