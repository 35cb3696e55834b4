// Eight lanes: AVX2 with FMA and F16C. simd_scalar.h documents each function.
#ifndef UWAGA_KERNELS_SIMD_AVX2_H_
#define UWAGA_KERNELS_SIMD_AVX2_H_

#include <immintrin.h>

#include "base/half.h"
#include "kernels/kernels.h"

namespace uwaga {
namespace avx2 {
namespace {

struct F {
  __m256 v;
};
constexpr int kLanes = 8;
constexpr int kStripVectors = 2;  // 6 x 2 accumulators, 2 operands, 1 broadcast: 15 of 16 registers

inline __m256i first_lanes(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256i lanes_of_bits(uint32_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane), lane);
}
inline F widen_bfloat16(__m128i x) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16))}; }

inline F load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline F load_partial(const float* p, int count) { return {_mm256_maskload_ps(p, first_lanes(count))}; }
inline F load(const bfloat16* p) { return widen_bfloat16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline F load(const float16* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
template <class T>
inline F load_partial(const T* p, int count) {
  alignas(16) T padded[kLanes] = {};
  for (int n = 0; n < count; ++n) padded[n] = p[n];
  return load(padded);
}
inline void store(float* p, F a) { _mm256_storeu_ps(p, a.v); }
inline void store_partial(float* p, F a, int count) {
  if (count == kLanes) return store(p, a);
  _mm256_maskstore_ps(p, first_lanes(count), a.v);
}
inline __m128i narrow_bfloat16_lanes(F a) {
  const __m256i u = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
template <class T>
inline void store_half_lanes(T* p, __m128i a, int count) {
  if (count == kLanes) return _mm_storeu_si128(reinterpret_cast<__m128i*>(p), a);
  alignas(16) T padded[kLanes];
  _mm_store_si128(reinterpret_cast<__m128i*>(padded), a);
  for (int n = 0; n < count; ++n) p[n] = padded[n];
}
inline void store_partial(bfloat16* p, F a, int count) { store_half_lanes(p, narrow_bfloat16_lanes(a), count); }
inline void store_partial(float16* p, F a, int count) {
  store_half_lanes(p, _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), count);
}

inline F zero() { return {_mm256_setzero_ps()}; }
inline F broadcast(float x) { return {_mm256_set1_ps(x)}; }
inline F add(F a, F b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F abs(F a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline F copy_sign(F magnitude, F sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.v), _mm256_and_ps(bit, sign.v))};
}
inline F less_select(F a, F b, F yes, F no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
inline F power_of_two(F r) {
  const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(r.v), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(127 << 23)))};
}
inline F select(uint32_t bits, F a, F b) {
  return {_mm256_blendv_ps(b.v, a.v, _mm256_castsi256_ps(lanes_of_bits(bits)))};
}
inline uint32_t finite_bits(F a) {
  const __m256 infinity = _mm256_set1_ps(__builtin_inff());
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(abs(a).v, infinity, _CMP_LT_OQ)));
}
inline uint32_t equals_bits(F a, F b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)));
}
inline uint32_t less_bits(F a, F b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)));
}
inline F shift_in(F a, float first) {
  const __m256i from = _mm256_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6);
  return {_mm256_blend_ps(_mm256_permutevar8x32_ps(a.v, from), _mm256_set1_ps(first), 1)};
}
inline float reduce_add(F a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float reduce_max(F a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

inline __attribute__((always_inline)) void transpose(F (&x)[8]) {
  __m256 a[8], b[8];
  for (int n = 0; n < 8; n += 2) {
    a[n] = _mm256_unpacklo_ps(x[n].v, x[n + 1].v);
    a[n + 1] = _mm256_unpackhi_ps(x[n].v, x[n + 1].v);
  }
  for (int n = 0; n < 8; n += 4) {
    b[n] = _mm256_shuffle_ps(a[n], a[n + 2], 0x44);
    b[n + 1] = _mm256_shuffle_ps(a[n], a[n + 2], 0xEE);
    b[n + 2] = _mm256_shuffle_ps(a[n + 1], a[n + 3], 0x44);
    b[n + 3] = _mm256_shuffle_ps(a[n + 1], a[n + 3], 0xEE);
  }
  for (int n = 0; n < 4; ++n) {
    x[n].v = _mm256_permute2f128_ps(b[n], b[n + 4], 0x20);
    x[n + 4].v = _mm256_permute2f128_ps(b[n], b[n + 4], 0x31);
  }
}

// Words 0 to 7 of 8 rows that are `row` bytes apart: x[w] has word w of each. Putting halves side by side by loads, as AVX-512 does
// quarters, was no faster.
constexpr int kLoadedWords = 8;
inline __attribute__((always_inline)) void load_transposed(const void* rows, int64_t row, F (&x)[kLoadedWords]) {
  const char* from = static_cast<const char*>(rows);
#pragma GCC unroll 8
  for (int n = 0; n < 8; ++n, from += row) x[n].v = _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  transpose(x);
}

inline F load_words(const bfloat16* p) { return {_mm256_loadu_ps(reinterpret_cast<const float*>(p))}; }
inline F low_halves(F words) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(words.v), 16))}; }
inline F high_halves(F words) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(words.v), high))};
}
inline void interleave(F& even, F& odd) {
  const __m256 low = _mm256_unpacklo_ps(even.v, odd.v), high = _mm256_unpackhi_ps(even.v, odd.v);
  even.v = _mm256_permute2f128_ps(low, high, 0x20);
  odd.v = _mm256_permute2f128_ps(low, high, 0x31);
}

// Halves of pairs of rows meet until each lane holds one row's maximum.
inline __m256 pair_maxima(__m256 a, __m256 b) {
  return _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}
inline void row_maxima(const float* top, float* out) {
  const __m256 r01 = pair_maxima(load(top).v, load(top + 8).v);
  const __m256 r23 = pair_maxima(load(top + 16).v, load(top + 24).v);
  const __m256 r45 = pair_maxima(load(top + 32).v, load(top + 40).v);
  const __m256 r0123 = _mm256_max_ps(_mm256_shuffle_ps(r01, r23, 0x44), _mm256_shuffle_ps(r01, r23, 0xEE));
  const __m256 r4545 = _mm256_max_ps(_mm256_shuffle_ps(r45, r45, 0x44), _mm256_shuffle_ps(r45, r45, 0xEE));
  const __m256 low = _mm256_permute2f128_ps(r0123, r4545, 0x20);
  const __m256 high = _mm256_permute2f128_ps(r0123, r4545, 0x31);
  store(out, {_mm256_max_ps(low, high)});
}

inline uint32_t keep_bits(uint32_t row_key, uint32_t first, uint32_t threshold) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i j = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), lane);
  __m256i x = _mm256_mullo_epi32(j, _mm256_set1_epi32(static_cast<int>(0x9E3779B1u)));
  x = _mm256_add_epi32(x, _mm256_set1_epi32(static_cast<int>(row_key)));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(0x85EBCA6Bu)));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 13));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(0xC2B2AE35u)));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
  const __m256i floor = _mm256_set1_epi32(static_cast<int>(threshold));
  const __m256i keep = _mm256_cmpeq_epi32(_mm256_max_epu32(x, floor), x);  // unsigned x >= threshold
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(keep)));
}

}  // namespace
}  // namespace avx2
}  // namespace uwaga
#endif  // UWAGA_KERNELS_SIMD_AVX2_H_
