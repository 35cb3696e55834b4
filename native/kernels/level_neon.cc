#include "base/simd_neon.h"

#include "kernels/kernels.h"
#include "uwaga/c_api.h"

#define UWAGA_LEVEL neon
#define UWAGA_LEVEL_NAME "neon"
#include "kernels/level-inl.h"
