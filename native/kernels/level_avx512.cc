#define UWAGA_LEVEL avx512
#define UWAGA_LEVEL_NAME "avx512"
#include "kernels/simd_avx512.h"

#include "kernels/level-inl.h"
