// AVX-512 for processors without it, so that those levels can be tested anywhere: SIMDe's intrinsics, and here the few
// that its version 0.7.4 lacks, written lane by lane. Slow, for tests only (CMake's UWAGA_EMULATE_AVX512).
#ifndef UWAGA_TESTS_EMULATE_AVX512_H_
#define UWAGA_TESTS_EMULATE_AVX512_H_

#define SIMDE_ENABLE_NATIVE_ALIASES
#define SIMDE_NO_INLINE  // inlined into the unrolled kernels, they take the compiler more than ten minutes a file
#include <immintrin.h>
#include <simde/x86/avx512.h>
#include <stdint.h>
#include <string.h>

namespace uwaga_emulated {
namespace {

template <class To, class From>
inline To as(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "a cast of bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class T, int N>
struct Lanes {
  T at[N];
};

// Lanes `n` of a register of `From`, made by f(n).
template <class Register, class T, int N, class Function>
inline Register lanes(const Function& f) {
  Lanes<T, N> to;
  for (int n = 0; n < N; ++n) to.at[n] = f(n);
  return as<Register>(to);
}

inline __m512 maskz_loadu_ps(__mmask16 mask, const float* p) {
  return lanes<__m512, float, 16>([&](int n) { return mask >> n & 1 ? p[n] : 0.0f; });
}
inline void mask_storeu_ps(float* p, __mmask16 mask, __m512 a) {
  const auto from = as<Lanes<float, 16>>(a);
  for (int n = 0; n < 16; ++n) {
    if (mask >> n & 1) p[n] = from.at[n];
  }
}
template <class Register, int N, class T>
inline Register maskz_loadu_16(uint32_t mask, const T* p) {
  static_assert(sizeof(T) == 2, "entries of 16 bits");
  return lanes<Register, T, N>([&](int n) { return mask >> n & 1 ? p[n] : T{}; });
}
template <class T>
inline void mask_storeu_16(T* p, uint32_t mask, __m256i a) {
  const auto from = as<Lanes<T, 16>>(a);
  for (int n = 0; n < 16; ++n) {
    if (mask >> n & 1) p[n] = from.at[n];
  }
}
inline __m512i cvtepu16_epi32(__m256i a) {
  const auto from = as<Lanes<uint16_t, 16>>(a);
  return lanes<__m512i, uint32_t, 16>([&](int n) { return from.at[n]; });
}
inline __m256i cvtepi32_epi16(__m512i a) {
  const auto from = as<Lanes<uint32_t, 16>>(a);
  return lanes<__m256i, uint16_t, 16>([&](int n) { return static_cast<uint16_t>(from.at[n]); });
}
inline __m512 cvtph_ps(__m256i a) {
  Lanes<float, 16> to;
  _mm256_storeu_ps(to.at, _mm256_cvtph_ps(_mm256_castsi256_si128(a)));
  _mm256_storeu_ps(to.at + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
  return as<__m512>(to);
}
template <int rounding>
inline __m256i cvtps_ph(__m512 a) {
  const auto from = as<Lanes<float, 16>>(a);
  const __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(from.at), rounding);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm256_cvtps_ph(_mm256_loadu_ps(from.at + 8), rounding),
                                 1);
}
template <int quarters>
inline __m512 shuffle_f32x4(__m512 a, __m512 b) {
  const auto x = as<Lanes<float, 16>>(a), y = as<Lanes<float, 16>>(b);
  return lanes<__m512, float, 16>([&](int n) {
    const int from = (quarters >> n / 4 * 2 & 3) * 4 + n % 4;
    return n < 8 ? x.at[from] : y.at[from];
  });
}
// Round to nearest even; denormals become zero and NaN stays NaN, as in the processor.
inline uint16_t narrow_bfloat16(float x) {
  const uint32_t u = as<uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  if ((u & 0x7F800000u) == 0) return static_cast<uint16_t>(u >> 16 & 0x8000u);
  return static_cast<uint16_t>((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}
inline __m512bh cvtne2ps_pbh(__m512 high, __m512 low) {
  const auto h = as<Lanes<float, 16>>(high), l = as<Lanes<float, 16>>(low);
  return lanes<__m512bh, uint16_t, 32>([&](int n) { return narrow_bfloat16(n < 16 ? l.at[n] : h.at[n - 16]); });
}

}  // namespace
}  // namespace uwaga_emulated

#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm256_maskz_loadu_epi16
#undef _mm512_maskz_loadu_epi16
#undef _mm256_mask_storeu_epi16
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_shuffle_f32x4
#undef _mm512_cvtne2ps_pbh
#define _mm512_maskz_loadu_ps uwaga_emulated::maskz_loadu_ps
#define _mm512_mask_storeu_ps uwaga_emulated::mask_storeu_ps
#define _mm256_maskz_loadu_epi16(mask, p) (uwaga_emulated::maskz_loadu_16<__m256i, 16>(mask, p))
#define _mm512_maskz_loadu_epi16(mask, p) (uwaga_emulated::maskz_loadu_16<__m512i, 32>(mask, p))
#define _mm256_mask_storeu_epi16 uwaga_emulated::mask_storeu_16
#define _mm512_cvtepu16_epi32 uwaga_emulated::cvtepu16_epi32
#define _mm512_cvtepi32_epi16 uwaga_emulated::cvtepi32_epi16
#define _mm512_cvtph_ps uwaga_emulated::cvtph_ps
#define _mm512_cvtps_ph(a, rounding) uwaga_emulated::cvtps_ph<(rounding)>(a)
#define _mm512_shuffle_f32x4(a, b, imm) uwaga_emulated::shuffle_f32x4<(imm)>(a, b)
#define _mm512_cvtne2ps_pbh uwaga_emulated::cvtne2ps_pbh

#endif  // UWAGA_TESTS_EMULATE_AVX512_H_
