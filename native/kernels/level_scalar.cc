#include "base/simd_scalar.h"

#include "kernels/kernels.h"
#include "uwaga/c_api.h"

#define UWAGA_LEVEL scalar
#define UWAGA_LEVEL_NAME "scalar"
#include "kernels/level-inl.h"
