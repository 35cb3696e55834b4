// Included before every source on x86-64 Linux: wherever it is built, the library asks for no more than glibc 2.28 and the
// libstdc++ of gcc 8, which is what wheels for manylinux_2_28 may do.
#pragma once

#include <new>

#ifdef __GLIBC__
// Of glibc 2.29 on, these functions differ from the older ones in errno alone.
__asm__(".symver exp, exp@GLIBC_2.2.5");
__asm__(".symver exp2, exp2@GLIBC_2.2.5");
__asm__(".symver log, log@GLIBC_2.2.5");
#endif

#if defined(__GLIBCXX__) && defined(__cpp_exceptions)  // kernels have none, and allocate nothing
// libstdc++'s allocators call it from gcc 11 on, and its library has it from then on.
namespace std {
[[noreturn]] __attribute__((visibility("hidden"))) inline void __throw_bad_array_new_length() {
  throw bad_array_new_length();
}
}  // namespace std
#endif
