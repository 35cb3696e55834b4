#define UWAGA_LEVEL avx512_bf16
#define UWAGA_LEVEL_NAME "avx512_bf16"
#define UWAGA_LEVEL_PAIRS true
#include "base/simd_avx512_bf16.h"

#include "kernels/kernels.h"
#include "uwaga/c_api.h"

#include "kernels/level-inl.h"
