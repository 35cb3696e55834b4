// Additions of the level amx to simd_avx512_bf16.h: eight registers of 16 rows by 64 bytes, and the product of two of them. See
// amx-inl.h. As inline assembly: the compilers' intrinsics take the numbers of registers as macro arguments alone.
#ifndef UWAGA_KERNELS_SIMD_AMX_H_
#define UWAGA_KERNELS_SIMD_AMX_H_

#include "kernels/simd_avx512_bf16.h"
#ifdef UWAGA_EMULATE_AVX512
#include "tests/emulate_amx.h"
#endif

namespace uwaga {
namespace UWAGA_LEVEL {
namespace {

constexpr int kTileRows = 16;  // of this level, in place of six
constexpr int kTileWords = 16;

// The operand of ldtilecfg.
struct TileConfiguration {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfiguration) == 64);

#ifdef UWAGA_EMULATE_AVX512
inline void configure_tiles(const TileConfiguration& configuration) {
  uwaga_emulated::load_configuration(&configuration);
}
inline void release_tiles() { uwaga_emulated::release(); }
template <int T>
inline void clear_tile() {
  uwaga_emulated::clear(T);
}
template <int T>
inline void load_tile(const void* p, int64_t row_bytes) {
  uwaga_emulated::load(T, p, row_bytes);
}
template <int T>
inline void store_tile(void* p, int64_t row_bytes) {
  uwaga_emulated::store(T, p, row_bytes);
}
template <int C, int A, int B>
inline void add_tile_products() {
  uwaga_emulated::add_products(C, A, B);
}
#else
inline void configure_tiles(const TileConfiguration& configuration) {
  asm volatile("ldtilecfg %0" : : "m"(configuration));
}
inline void release_tiles() { asm volatile("tilerelease"); }
template <int T>
inline __attribute__((always_inline)) void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
template <int T>
inline __attribute__((always_inline)) void load_tile(const void* p, int64_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(row_bytes), "i"(T) : "memory");
}
template <int T>
inline __attribute__((always_inline)) void store_tile(void* p, int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(row_bytes), "i"(T) : "memory");
}
// C[m][n] += sum over w of A[m][w].low * B[w][n].low, plus the same of the high halves: each of the two sums starts from zero and is
// of fused multiply-adds, both are added, then added to C. Rounded to nearest, denormals count as zero; no row or column of C
// depends on another.
template <int C, int A, int B>
inline __attribute__((always_inline)) void add_tile_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
#endif

// out[r] = the largest of top[r * kLanes ...], for the rows of a tile.
inline void row_maxima(const float* top, float* out) {
  F lanes[kLanes];
  for (int r = 0; r < kTileRows; ++r) lanes[r] = load(top + r * kLanes);
  transpose(lanes);
  for (int step = kLanes / 2; step; step /= 2) {
    for (int n = 0; n < step; ++n) lanes[n] = max(lanes[n], lanes[n + step]);
  }
  store(out, lanes[0]);
}

}  // namespace
}  // namespace UWAGA_LEVEL
}  // namespace uwaga
#endif  // UWAGA_KERNELS_SIMD_AMX_H_
