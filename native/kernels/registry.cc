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
extern const Kernels kKernels;
}
#endif
#ifdef UWAGA_HAS_NEON
namespace neon {
extern const Kernels kKernels;
}
#endif
#ifdef UWAGA_HAS_NEON_BF16
namespace neon_bf16 {
extern const Kernels kKernels;
}
#endif

namespace {

struct Level {
  const Kernels* kernels;
  uint32_t needs;             // features of the processor
  bool only_by_name = false;  // no processor has shown it to be faster than the level before
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
    {&avx512_bf16::kKernels, kAvx512 | kAvx512Bf16},
#endif
#ifdef UWAGA_HAS_NEON
    {&neon::kKernels, kNeon},
#endif
#ifdef UWAGA_HAS_NEON_BF16
    {&neon_bf16::kKernels, kNeon | kNeonBf16, true},
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
    if (!possible(kLevels[n])) continue;
    if (name ? strcmp(name, kLevels[n].kernels->name) != 0 : kLevels[n].only_by_name) continue;
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
