#include <string.h>

#include <atomic>

#include "base/cpu.h"
#include "kernels/kernels.h"

namespace uwaga {

namespace scalar {
extern const Kernels kKernels;
}
#ifdef UWAGA_HAS_AVX2
namespace avx2 {
extern const Kernels kKernels;
}
#endif
#ifdef UWAGA_HAS_AVX512
namespace avx512 {
extern const Kernels kKernels;
}
#endif
#ifdef UWAGA_HAS_AVX512_BF16
namespace avx512_bf16 {
extern const PairKernels kPairKernels;
}
#endif
#ifdef UWAGA_HAS_AMX
namespace amx {
extern const PairKernels kPairKernels;
}
#endif
#ifdef UWAGA_HAS_NEON
namespace neon {
extern const Kernels kKernels;
}
#endif
#ifdef UWAGA_HAS_NEON_BF16
namespace neon_bf16 {
extern const PairKernels kPairKernels;
}
#endif

namespace {

#if defined(UWAGA_HAS_AVX512_BF16) || defined(UWAGA_HAS_NEON_BF16)
Kernels with_pairs(const char* name, const Kernels& base, const PairKernels& pairs) {
  Kernels level = base;
  level.name = name;
  level.pairs = &pairs;
  if (pairs.rows == kTileRows) level.six_row_pairs = &pairs;
  return level;
}
#endif
#ifdef UWAGA_HAS_AVX512_BF16
const Kernels kAvx512Bf16Kernels = with_pairs("avx512_bf16", avx512::kKernels, avx512_bf16::kPairKernels);
#endif
#ifdef UWAGA_HAS_AMX
const Kernels kAmxKernels = with_pairs("amx", kAvx512Bf16Kernels, amx::kPairKernels);
#endif
#ifdef UWAGA_HAS_NEON_BF16
const Kernels kNeonBf16Kernels = with_pairs("neon_bf16", neon::kKernels, neon_bf16::kPairKernels);
#endif

struct Level {
  const Kernels* kernels;
  uint32_t needs;      // features of the processor
  uint32_t avoid = 0;  // with these it is taken by its name alone
};

const Level kLevels[] = {
    {&scalar::kKernels, 0},
#ifdef UWAGA_HAS_AVX2
    {&avx2::kKernels, kAvx2},
#endif
#ifdef UWAGA_HAS_AVX512
    {&avx512::kKernels, kAvx512},
#endif
#ifdef UWAGA_HAS_AVX512_BF16
    {&kAvx512Bf16Kernels, kAvx512 | kAvx512Bf16, kSlowPairs},
#endif
#ifdef UWAGA_HAS_AMX
    {&kAmxKernels, kAvx512 | kAvx512Bf16 | kAmx},
#endif
#ifdef UWAGA_HAS_NEON
    {&neon::kKernels, kNeon},
#endif
#ifdef UWAGA_HAS_NEON_BF16
    {&kNeonBf16Kernels, kNeon | kNeonBf16, kNeonBf16},  // no processor has shown it to be faster than neon
#endif
};
constexpr int kLevelCount = sizeof(kLevels) / sizeof(kLevels[0]);

bool possible(const Level& level) { return (level.needs & ~cpu_features()) == 0; }

std::atomic<const Kernels*> g_active{nullptr};

}  // namespace

const Kernels* level_at(int index) { return index >= 0 && index < kLevelCount ? kLevels[index].kernels : nullptr; }

bool level_supported(int index) { return level_at(index) && possible(kLevels[index]); }

const Kernels* set_level(const char* name) {
  for (int n = kLevelCount - 1; n >= 0; --n) {
    if (!possible(kLevels[n]) || (name && strcmp(name, kLevels[n].kernels->name))) continue;
    if (!name && (kLevels[n].avoid & cpu_features())) continue;
    g_active.store(kLevels[n].kernels);
    return kLevels[n].kernels;
  }
  return nullptr;
}

const Kernels* active_level() {
  const Kernels* active = g_active.load();
  return active ? active : set_level(nullptr);
}

}  // namespace uwaga
