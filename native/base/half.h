// The two 16-bit float types as stored, and their conversions (round to nearest even, NaN kept).
//
// Everything here has internal linkage: this header is compiled once per instruction set, and of shared inline functions the
// linker could keep the copy that a baseline processor cannot run.
#ifndef UWAGA_BASE_HALF_H_
#define UWAGA_BASE_HALF_H_

#include <stdint.h>
#include <string.h>

namespace uwaga {

struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

namespace {

inline uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

inline float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

inline float widen(float x) { return x; }
inline float widen(bfloat16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }

inline float widen(float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t rest = x.bits & 0x7FFFu;
  if (rest >= 0x7C00u) return float_of(sign | 0x7F800000u | (rest & 0x3FFu) << 13);  // infinity, NaN
  // Subnormals come out right because the product with 2^112 is exact.
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

inline bfloat16 narrow_bfloat16(float x) {
  const uint32_t u = bits_of(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

inline float16 narrow_float16(float x) {
  const uint32_t u = bits_of(x);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t rest = u & 0x7FFFFFFFu;
  if (rest > 0x7F800000u) return {static_cast<uint16_t>(sign | 0x7E00u | ((rest >> 13) & 0x3FFu))};
  if (rest >= 0x477FF000u) return {static_cast<uint16_t>(sign | 0x7C00u)};  // rounds past 65504
  if (rest < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    const float shifted = float_of(rest) + 0.5f;
    return {static_cast<uint16_t>(sign | (bits_of(shifted) - bits_of(0.5f)))};
  }
  const uint32_t rounded = rest + 0xFFFu + ((rest >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

inline float narrow_to(float, float x) { return x; }

}  // namespace
}  // namespace uwaga
#endif  // UWAGA_BASE_HALF_H_
