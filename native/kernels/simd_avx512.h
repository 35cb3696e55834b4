// Sixteen lanes: AVX-512 F, BW, DQ and VL. simd_scalar.h documents each function.
//
// Two levels include this file, with and without the bfloat16 dot product, so the namespace is the includer's UWAGA_LEVEL: in
// one namespace the linker could keep the copy that the other level's processor cannot run.
#ifndef UWAGA_KERNELS_SIMD_AVX512_H_
#define UWAGA_KERNELS_SIMD_AVX512_H_

#ifdef UWAGA_EMULATE_AVX512
#include "tests/emulate_avx512.h"
#else
// GCC 12 takes the undefined operands of its own intrinsics for uninitialised variables (its bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#include "base/half.h"
#include "kernels/kernels.h"

namespace uwaga {
namespace UWAGA_LEVEL {
namespace {

struct F {
  __m512 v;
};
constexpr int kLanes = 16;
constexpr int kStripVectors = 4;  // 6 x 4 accumulators, 4 operands, 1 broadcast: 29 of 32 registers

inline __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
inline F widen_bfloat16(__m256i x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))}; }

inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F load_partial(const float* p, int count) { return {_mm512_maskz_loadu_ps(first_lanes(count), p)}; }
inline F load(const bfloat16* p) { return widen_bfloat16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline F load_partial(const bfloat16* p, int count) {
  return widen_bfloat16(_mm256_maskz_loadu_epi16(first_lanes(count), p));
}
inline F load(const float16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline F load_partial(const float16* p, int count) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(count), p))};
}
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline void store_partial(float* p, F a, int count) { _mm512_mask_storeu_ps(p, first_lanes(count), a.v); }
inline __m256i narrow_bfloat16_lanes(F a) {
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16));
}
inline void store_partial(bfloat16* p, F a, int count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), narrow_bfloat16_lanes(a));
}
inline void store_partial(float16* p, F a, int count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline F zero() { return {_mm512_setzero_ps()}; }
inline F broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F abs(F a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)}; }
inline F copy_sign(F magnitude, F sign) {
  const __m512 bit = _mm512_set1_ps(-0.0f);
  return {_mm512_or_ps(_mm512_andnot_ps(bit, magnitude.v), _mm512_and_ps(bit, sign.v))};
}
inline F less_select(F a, F b, F yes, F no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
inline F power_of_two(F r) {
  const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(r.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(127 << 23)))};
}
inline F select(uint32_t bits, F a, F b) { return {_mm512_mask_blend_ps(static_cast<__mmask16>(bits), b.v, a.v)}; }
inline uint32_t finite_bits(F a) { return _mm512_cmp_ps_mask(abs(a).v, _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ); }
inline uint32_t equals_bits(F a, F b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
inline uint32_t less_bits(F a, F b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline F shift_in(F a, float first) {
  const __m512i from = _mm512_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14);
  return {_mm512_mask_permutexvar_ps(_mm512_set1_ps(first), 0xFFFE, from, a.v)};
}

// The upper half onto the lower one, until one lane is left: a fixed order, whatever the compiler.
inline __m256 upper_half(F a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)); }
inline float reduce_add(F a) {
  const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper_half(a));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float reduce_max(F a) {
  const __m256 y = _mm256_max_ps(_mm512_castps512_ps256(a.v), upper_half(a));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

// Pairs of rows, then pairs of pairs within each quarter of a register, then the quarters themselves.
inline __attribute__((always_inline)) void transpose(F (&x)[16]) {
  __m512 a[16], b[16];
  for (int n = 0; n < 16; n += 2) {
    a[n] = _mm512_unpacklo_ps(x[n].v, x[n + 1].v);
    a[n + 1] = _mm512_unpackhi_ps(x[n].v, x[n + 1].v);
  }
  for (int n = 0; n < 16; n += 4) {
    b[n] = _mm512_shuffle_ps(a[n], a[n + 2], 0x44);
    b[n + 1] = _mm512_shuffle_ps(a[n], a[n + 2], 0xEE);
    b[n + 2] = _mm512_shuffle_ps(a[n + 1], a[n + 3], 0x44);
    b[n + 3] = _mm512_shuffle_ps(a[n + 1], a[n + 3], 0xEE);
  }
  for (int n = 0; n < 4; ++n) {  // quarters 0 and 2, 1 and 3 of rows n, n + 4 and n + 8, n + 12
    a[n] = _mm512_shuffle_f32x4(b[n], b[n + 4], 0x88);
    a[n + 4] = _mm512_shuffle_f32x4(b[n], b[n + 4], 0xDD);
    a[n + 8] = _mm512_shuffle_f32x4(b[n + 8], b[n + 12], 0x88);
    a[n + 12] = _mm512_shuffle_f32x4(b[n + 8], b[n + 12], 0xDD);
  }
  for (int n = 0; n < 4; ++n) {
    x[n].v = _mm512_shuffle_f32x4(a[n], a[n + 8], 0x88);
    x[n + 8].v = _mm512_shuffle_f32x4(a[n], a[n + 8], 0xDD);
    x[n + 4].v = _mm512_shuffle_f32x4(a[n + 4], a[n + 12], 0x88);
    x[n + 12].v = _mm512_shuffle_f32x4(a[n + 4], a[n + 12], 0xDD);
  }
}

// Words 0 to 3 of 16 rows that are `row` bytes apart: x[w] has word w of each. Quarters are put side by side by loads, which leaves half
// of the shuffles that `transpose` needs.
constexpr int kLoadedWords = 4;
inline __attribute__((always_inline)) F load_quarters(const char* from, int64_t row) {
  const auto at = [&](int n) { return _mm_loadu_ps(reinterpret_cast<const float*>(from + n * row)); };
  __m512 x = _mm512_castps128_ps512(at(0));
  x = _mm512_mask_broadcast_f32x4(x, 0x00F0, at(4));
  x = _mm512_mask_broadcast_f32x4(x, 0x0F00, at(8));
  return {_mm512_mask_broadcast_f32x4(x, 0xF000, at(12))};
}
inline __attribute__((always_inline)) void load_transposed(const void* rows, int64_t row, F (&x)[kLoadedWords]) {
  const char* from = static_cast<const char*>(rows);
  __m512 q[4];
  for (int n = 0; n < 4; ++n) q[n] = load_quarters(from + n * row, row).v;
  const __m512 a = _mm512_unpacklo_ps(q[0], q[1]), b = _mm512_unpacklo_ps(q[2], q[3]);
  const __m512 c = _mm512_unpackhi_ps(q[0], q[1]), d = _mm512_unpackhi_ps(q[2], q[3]);
  x[0].v = _mm512_shuffle_ps(a, b, 0x44), x[1].v = _mm512_shuffle_ps(a, b, 0xEE);
  x[2].v = _mm512_shuffle_ps(c, d, 0x44), x[3].v = _mm512_shuffle_ps(c, d, 0xEE);
}

inline F of_words(__m512i x) { return {_mm512_castsi512_ps(x)}; }
inline __m512i words_of(F a) { return _mm512_castps_si512(a.v); }
inline F load_words(const bfloat16* p) { return of_words(_mm512_loadu_si512(p)); }
inline F low_halves(F words) { return of_words(_mm512_slli_epi32(words_of(words), 16)); }
inline F high_halves(F words) {
  return of_words(_mm512_and_si512(words_of(words), _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
inline void interleave(F& even, F& odd) {
  const __m512 low = _mm512_unpacklo_ps(even.v, odd.v), high = _mm512_unpackhi_ps(even.v, odd.v);
  const __m512 near = _mm512_shuffle_f32x4(low, high, 0x44), far = _mm512_shuffle_f32x4(low, high, 0xEE);
  even.v = _mm512_shuffle_f32x4(near, near, 0xD8);
  odd.v = _mm512_shuffle_f32x4(far, far, 0xD8);
}

// Six registers become three of two rows each, then two of four (the second one holds rows 4 and 5 twice), then one
// with two rows in each quarter.
#ifndef UWAGA_LEVEL_AMX  // which has more rows
inline void row_maxima(const float* top, float* out) {
  __m512 pair[3];
  for (int n = 0; n < 3; ++n) {
    const __m512 a = load(top + 32 * n).v, b = load(top + 32 * n + 16).v;
    pair[n] = _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  }
  const __m512 r0123 =
      _mm512_max_ps(_mm512_shuffle_f32x4(pair[0], pair[1], 0x88), _mm512_shuffle_f32x4(pair[0], pair[1], 0xDD));
  const __m512 r4545 =
      _mm512_max_ps(_mm512_shuffle_f32x4(pair[2], pair[2], 0x88), _mm512_shuffle_f32x4(pair[2], pair[2], 0xDD));
  const __m512 halves = _mm512_max_ps(_mm512_unpacklo_ps(r0123, r4545), _mm512_unpackhi_ps(r0123, r4545));
  const __m512 both = _mm512_max_ps(halves, _mm512_shuffle_ps(halves, halves, 0x4E));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  store(out, {_mm512_permutexvar_ps(order, both)});
}
#endif

inline uint32_t keep_bits(uint32_t row_key, uint32_t first, uint32_t threshold) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i j = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)), lane);
  __m512i x = _mm512_mullo_epi32(j, _mm512_set1_epi32(static_cast<int>(0x9E3779B1u)));
  x = _mm512_add_epi32(x, _mm512_set1_epi32(static_cast<int>(row_key)));
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(0x85EBCA6Bu)));
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 13));
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(0xC2B2AE35u)));
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
  return _mm512_cmpge_epu32_mask(x, _mm512_set1_epi32(static_cast<int>(threshold)));
}

}  // namespace
}  // namespace UWAGA_LEVEL
}  // namespace uwaga
#endif  // UWAGA_KERNELS_SIMD_AVX512_H_
