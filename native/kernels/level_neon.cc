#define UWAGA_LEVEL neon
#define UWAGA_LEVEL_NAME "neon"
#include "kernels/simd_neon.h"

#include "kernels/level-inl.h"
