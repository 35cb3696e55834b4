#define UWAGA_LEVEL scalar
#define UWAGA_LEVEL_NAME "scalar"
#define UWAGA_LEVEL_SMALL
#include "kernels/simd_scalar.h"

#include "kernels/level-inl.h"
