#define UWAGA_LEVEL avx512
#define UWAGA_LEVEL_NAME "avx512"
#include "base/simd_avx512.h"

#include "kernels/kernels.h"
#include "uwaga/c_api.h"

#include "kernels/level-inl.h"
