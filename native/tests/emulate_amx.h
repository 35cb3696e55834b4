// The six instructions on tiles (Intel, "Intel Architecture Instruction Set Extensions Programming Reference", chapter 3), for
// processors without AMX, so that the level can be tested anywhere. Slow, for tests only (CMake's UWAGA_EMULATE_AVX512). What would
// be a fault of the processor ends the program.
#ifndef UWAGA_TESTS_EMULATE_AMX_H_
#define UWAGA_TESTS_EMULATE_AMX_H_

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace uwaga_emulated {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

struct TileMemory {
  bool configured = false;
  int rows[kTiles], row_bytes[kTiles];
  alignas(64) unsigned char bytes[kTiles][kRows][kRowBytes];
};
inline thread_local TileMemory tiles;

inline void check(bool allowed) {
  if (!allowed) abort();
}

inline void load_configuration(const void* configuration) {
  const unsigned char* bytes = static_cast<const unsigned char*>(configuration);
  check(bytes[0] == 1 && bytes[1] == 0);  // the palette, the start row
  for (int n = 2; n < 16; ++n) check(bytes[n] == 0);
  for (int t = 0; t < kTiles; ++t) {
    uint16_t row_bytes;
    memcpy(&row_bytes, bytes + 16 + 2 * t, sizeof row_bytes);
    tiles.rows[t] = bytes[48 + t], tiles.row_bytes[t] = row_bytes;
    check(tiles.rows[t] <= kRows && row_bytes <= kRowBytes && (tiles.rows[t] == 0) == (row_bytes == 0));
  }
  memset(tiles.bytes, 0, sizeof tiles.bytes);
  tiles.configured = true;
}

inline void release() { tiles.configured = false; }

inline void clear(int t) {
  check(tiles.configured && tiles.rows[t]);
  memset(tiles.bytes[t], 0, sizeof tiles.bytes[t]);
}

inline void load(int t, const void* p, int64_t row_step) {
  clear(t);
  for (int r = 0; r < tiles.rows[t]; ++r)
    memcpy(tiles.bytes[t][r], static_cast<const char*>(p) + r * row_step, static_cast<size_t>(tiles.row_bytes[t]));
}

inline void store(int t, void* p, int64_t row_step) {
  check(tiles.configured && tiles.rows[t]);
  for (int r = 0; r < tiles.rows[t]; ++r)
    memcpy(static_cast<char*>(p) + r * row_step, tiles.bytes[t][r], static_cast<size_t>(tiles.row_bytes[t]));
}

inline float without_denormals(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

// The low or the high half of a word, a bfloat16.
inline float half(uint32_t word, int which) {
  const uint32_t bits = which ? word & 0xFFFF0000u : word << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return without_denormals(x);
}

inline void add_products(int c, int a, int b) {
  check(tiles.configured && c != a && c != b && a != b);
  const int words = tiles.row_bytes[a] / 4, columns = tiles.row_bytes[c] / 4;
  check(tiles.rows[c] == tiles.rows[a] && tiles.rows[b] == words && tiles.row_bytes[b] == tiles.row_bytes[c]);
  for (int m = 0; m < tiles.rows[c]; ++m) {
    for (int n = 0; n < columns; ++n) {
      float sums[2] = {0.0f, 0.0f};
      for (int w = 0; w < words; ++w) {
        uint32_t left, right;
        memcpy(&left, tiles.bytes[a][m] + 4 * w, sizeof left);
        memcpy(&right, tiles.bytes[b][w] + 4 * n, sizeof right);
        for (int which = 0; which < 2; ++which)
          sums[which] = without_denormals(fmaf(half(left, which), half(right, which), sums[which]));
      }
      float total;
      memcpy(&total, tiles.bytes[c][m] + 4 * n, sizeof total);
      total = without_denormals(without_denormals(total) + without_denormals(sums[0] + sums[1]));
      memcpy(tiles.bytes[c][m] + 4 * n, &total, sizeof total);
    }
  }
}

}  // namespace uwaga_emulated
#endif  // UWAGA_TESTS_EMULATE_AMX_H_
