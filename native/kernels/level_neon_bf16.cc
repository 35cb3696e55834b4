#define UWAGA_LEVEL neon_bf16
#define UWAGA_LEVEL_BFLOAT16_PAIRS
#include "kernels/simd_neon_bf16.h"

#include "kernels/level-inl.h"
