// Compiled for the baseline processor: this runs before anything is known about the real one.
#include "base/cpu.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace uwaga {

#if defined(__aarch64__)
static bool has_bf16() {
#if defined(__linux__)
  constexpr unsigned long kHwcap2Bf16 = 1ul << 14;  // HWCAP2_BF16 of asm/hwcap.h, which older headers lack
  return getauxval(AT_HWCAP2) & kHwcap2Bf16;
#elif defined(__APPLE__)
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, nullptr, 0) == 0 && has;
#else
  return false;
#endif
}
#endif

uint32_t cpu_features() {
#if defined(__x86_64__) || defined(__i386__)
  static const uint32_t features = [] {
    __builtin_cpu_init();  // asks the operating system about the registers too
    uint32_t found = 0;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
      found |= kAvx2;
    }
    if ((found & kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      found |= kAvx512;
      if (__builtin_cpu_supports("avx512bf16")) found |= kAvx512Bf16;
    }
#ifdef UWAGA_EMULATE_AVX512
    if (found & kAvx2) found |= kAvx512 | kAvx512Bf16;
#endif
    return found;
  }();
  return features;
#elif defined(__aarch64__)
  static const uint32_t features = kNeon | (has_bf16() ? kNeonBf16 : 0u);
  return features;
#else
  return 0;
#endif
}

}  // namespace uwaga
