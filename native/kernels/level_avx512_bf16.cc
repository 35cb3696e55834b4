#define UWAGA_LEVEL avx512_bf16
#define UWAGA_LEVEL_BFLOAT16_PAIRS
#include "kernels/simd_avx512_bf16.h"

#include "kernels/level-inl.h"
