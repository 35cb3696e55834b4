#define UWAGA_LEVEL scalar
#define UWAGA_LEVEL_NAME "scalar"
#include "kernels/simd_scalar.h"

#include "kernels/level-inl.h"
