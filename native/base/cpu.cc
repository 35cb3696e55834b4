// Compiled for the baseline processor: this runs before anything is known about the real one.
#include "base/cpu.h"

#if defined(__linux__) && defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace uwaga {

namespace {

#if defined(__linux__) && defined(__x86_64__)
// Whether the processor has tiles and the system lets this process use them: it must be asked once, before the first use, since
// their 8 KiB of state do not fit into what it saves for every thread (Linux, Documentation/arch/x86/xstate.rst).
bool has_amx() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;   // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  constexpr unsigned kTiles = 1u << 24, kBfloat16 = 1u << 22;  // of leaf 7, in edx
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (kTiles | kBfloat16)) != (kTiles | kBfloat16)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

#if defined(__aarch64__)
bool has_bf16() {
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

}  // namespace

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
#if defined(__linux__) && defined(__x86_64__)
    if ((found & kAvx512Bf16) && has_amx()) found |= kAmx;
#endif
    // VDPBF16PS is slower on Intel's processors than the same tiles in float32 (docs/log.md, "ARM").
    if ((found & kAvx512Bf16) && __builtin_cpu_is("intel")) found |= kSlowPairs;
#ifdef UWAGA_EMULATE_AVX512
    if (found & kAvx2) found |= kAvx512 | kAvx512Bf16 | kAmx;
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
