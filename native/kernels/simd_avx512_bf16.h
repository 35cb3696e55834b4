// Additions of the AVX-512-BF16 level to simd_avx512.h: words of two bfloat16, and their dot product. See pairs-inl.h.
#ifndef UWAGA_KERNELS_SIMD_AVX512_BF16_H_
#define UWAGA_KERNELS_SIMD_AVX512_BF16_H_

#include "kernels/simd_avx512.h"

namespace uwaga {
namespace UWAGA_LEVEL {
namespace {

// c + a.low * b.low + a.high * b.high per word. The products are exact, the sums are rounded one after the other, and
// denormal numbers count as zero: the instruction ignores the processor's floating-point settings.
inline F pair_step(F a, F b, F c) { return {_mm512_dpbf16_ps(c.v, (__m512bh)b.v, (__m512bh)a.v)}; }

// `count` entries (at most 32) from p on, two per word; the rest zero.
inline F load_pairs(const bfloat16* p, int count) {
  if (count == 2 * kLanes) return of_words(_mm512_loadu_si512(p));
  return of_words(_mm512_maskz_loadu_epi16((1u << count) - 1u, p));
}
// `count` entries (at most 16) from p on, one per word in its low half; the rest zero.
inline F load_halves(const bfloat16* p, int count) {
  return of_words(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(count), p)));
}
inline F join_halves(F low, F high) {
  return of_words(_mm512_or_si512(words_of(low), _mm512_slli_epi32(words_of(high), 16)));
}
// Word n of `first`: entry n of a in its low half and of b in its high one; of `second`: entry kLanes + n.
inline void join_rows(F a, F b, F* first, F* second) {
  const __m512i step = _mm512_set1_epi32(0x00010001);
  const __m512i low = _mm512_setr_epi32(0x200000, 0x210001, 0x220002, 0x230003, 0x240004, 0x250005, 0x260006, 0x270007,
                                        0x280008, 0x290009, 0x2A000A, 0x2B000B, 0x2C000C, 0x2D000D, 0x2E000E, 0x2F000F);
  const __m512i high = _mm512_add_epi32(low, _mm512_slli_epi32(step, 4));
  *first = of_words(_mm512_permutex2var_epi16(words_of(a), low, words_of(b)));
  *second = of_words(_mm512_permutex2var_epi16(words_of(a), high, words_of(b)));
}
inline F negate_pairs(F a) {
  return of_words(_mm512_xor_si512(words_of(a), _mm512_set1_epi32(static_cast<int>(0x80008000u))));
}
// The low, or the high, entries of both words in one.
inline F join_low_entries(F first, F second) {
  const __m512i low = _mm512_set1_epi32(0xFFFF);
  return of_words(_mm512_or_si512(_mm512_and_si512(words_of(first), low), words_of(low_halves(second))));
}
inline F join_high_entries(F first, F second) {
  return of_words(_mm512_or_si512(_mm512_srli_epi32(words_of(first), 16), words_of(high_halves(second))));
}
// Bit 0 of `kept`: the low entries stay, bit 1: the high ones; the others become zero.
inline F keep_halves(F a, uint32_t kept) {
  const uint32_t mask = (kept & 1 ? 0xFFFFu : 0u) | (kept & 2 ? 0xFFFF0000u : 0u);
  return of_words(_mm512_and_si512(words_of(a), _mm512_set1_epi32(static_cast<int>(mask))));
}
// Entries of `first` and then of `second`, rounded to nearest even, two per word.
inline F narrow_pairs(F first, F second) { return {(__m512)_mm512_cvtne2ps_pbh(second.v, first.v)}; }

}  // namespace
}  // namespace UWAGA_LEVEL
}  // namespace uwaga
#endif  // UWAGA_KERNELS_SIMD_AVX512_BF16_H_
