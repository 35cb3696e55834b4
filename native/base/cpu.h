// CPU feature detection: what the processor supports and the operating system enables (it must save the registers).
#ifndef UWAGA_BASE_CPU_H_
#define UWAGA_BASE_CPU_H_

#include <stdint.h>

namespace uwaga {

enum : uint32_t {
  kAvx2 = 1u << 0,    // with FMA and F16C
  kAvx512 = 1u << 1,  // F, BW, DQ, VL
  kAvx512Bf16 = 1u << 2,
  kNeon = 1u << 3,
  kAmx = 1u << 4,        // tiles and their products of bfloat16
  kNeonBf16 = 1u << 5,   // FEAT_BF16: BFDOT and conversions
  kSlowPairs = 1u << 6,  // no level needs it: AVX512-BF16 is there, and slower than the same products in float32
};

uint32_t cpu_features();  // the flags above, or-ed

}  // namespace uwaga
#endif  // UWAGA_BASE_CPU_H_
