#define UWAGA_LEVEL avx2
#define UWAGA_LEVEL_NAME "avx2"
#include "kernels/simd_avx2.h"

#include "kernels/level-inl.h"
