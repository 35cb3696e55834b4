#define UWAGA_LEVEL amx
#define UWAGA_LEVEL_BFLOAT16_PAIRS
#define UWAGA_LEVEL_AMX
#include "kernels/simd_amx.h"

#include "kernels/level-inl.h"
