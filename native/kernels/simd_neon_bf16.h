// Additions of the level with BFDOT (FEAT_BF16) to simd_neon.h: words of two bfloat16, and their dot product. See pairs-inl.h.
#ifndef UWAGA_KERNELS_SIMD_NEON_BF16_H_
#define UWAGA_KERNELS_SIMD_NEON_BF16_H_

#include "kernels/simd_neon.h"

namespace uwaga {
namespace UWAGA_LEVEL {
namespace {

inline uint16x8_t halves_of(F a) { return vreinterpretq_u16_f32(a.v); }
inline F of_halves(uint16x8_t x) { return {vreinterpretq_f32_u16(x)}; }

// c + (a.low * b.low + a.high * b.high) per word. The products are exact; the sum in brackets and then the other one are rounded to odd
// (toward zero, and the last bit set where that is not exact), and denormal numbers count as zero: the instruction ignores the
// processor's floating-point settings, but for FPCR.EBF, which no system sets for a program that does not ask. So P pairs have an error below
// (2 P + 2) eps of the sum of magnitudes, eps = 2^-24: that of 2 P products whose sums are rounded to nearest, and 2 more.
inline F pair_step(F a, F b, F c) {
  return {vbfdotq_f32(c.v, vreinterpretq_bf16_f32(a.v), vreinterpretq_bf16_f32(b.v))};
}

// `count` entries (at most 8) from p on, two per word; the rest zero.
inline F load_pairs(const bfloat16* p, int count) {
  if (count == 2 * kLanes) return load_words(p);
  bfloat16 entries[2 * kLanes] = {};
  for (int n = 0; n < count; ++n) entries[n] = p[n];
  return load_words(entries);
}
// `count` entries (at most 4) from p on, one per word in its low half; the rest zero.
inline F load_halves(const bfloat16* p, int count) {
  if (count == kLanes) return of_words(vmovl_u16(vld1_u16(&p->bits)));
  return of_words(vmovl_u16(vld1_u16(&Partial<bfloat16>(p, count).at->bits)));
}
inline F join_halves(F low, F high) { return of_words(vsliq_n_u32(words_of(low), words_of(high), 16)); }
// Word n of `first`: entry n of a in its low half and of b in its high one; of `second`: entry kLanes + n.
inline void join_rows(F a, F b, F* first, F* second) {
  *first = of_halves(vzip1q_u16(halves_of(a), halves_of(b)));
  *second = of_halves(vzip2q_u16(halves_of(a), halves_of(b)));
}
inline F negate_pairs(F a) { return of_words(veorq_u32(words_of(a), vdupq_n_u32(0x80008000u))); }
// The low, or the high, entries of both words in one.
inline F join_low_entries(F first, F second) { return of_halves(vtrn1q_u16(halves_of(first), halves_of(second))); }
inline F join_high_entries(F first, F second) { return of_halves(vtrn2q_u16(halves_of(first), halves_of(second))); }
// Bit 0 of `kept`: the low entries stay, bit 1: the high ones; the others become zero.
inline F keep_halves(F a, uint32_t kept) {
  const uint32_t mask = (kept & 1 ? 0xFFFFu : 0u) | (kept & 2 ? 0xFFFF0000u : 0u);
  return of_words(vandq_u32(words_of(a), vdupq_n_u32(mask)));
}
// Entries of `first` and then of `second`, rounded to nearest even, two per word.
inline F narrow_pairs(F first, F second) {
  return {vreinterpretq_f32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(first.v), second.v))};
}

}  // namespace
}  // namespace UWAGA_LEVEL
}  // namespace uwaga
#endif  // UWAGA_KERNELS_SIMD_NEON_BF16_H_
