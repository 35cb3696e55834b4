#include "base/simd_avx2.h"

#include "kernels/kernels.h"
#include "uwaga/c_api.h"

#define UWAGA_LEVEL avx2
#define UWAGA_LEVEL_NAME "avx2"
#include "kernels/level-inl.h"
