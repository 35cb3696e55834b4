# The instruction-set levels of this build and the compiler flags of each one's source file; no other file has machine flags.
include(CheckCXXCompilerFlag)

set(UWAGA_LEVEL_SOURCES native/kernels/level_scalar.cc)
# A seventh of the wheel at -O3, for processors that hardly exist.
set_source_files_properties(native/kernels/level_scalar.cc PROPERTIES COMPILE_OPTIONS
  "$<$<CONFIG:Release>:-Os>;$<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-finline-limit=30;-fno-ipa-cp-clone;-fno-tree-slp-vectorize;-falign-functions=1;-falign-loops=1;-falign-jumps=1>")
set(UWAGA_LEVEL_DEFINITIONS)

# Kernels neither throw nor call anything that does: without tables to unwind them the wheel is a fiftieth smaller.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  set(kernel_options "$<$<CONFIG:Release>:-fno-exceptions;-fno-unwind-tables;-fno-asynchronous-unwind-tables>")
  set_property(SOURCE native/kernels/level_scalar.cc APPEND PROPERTY COMPILE_OPTIONS "${kernel_options}")
endif()

# uwaga_level(NAME DEFINITION FLAGS...): native/kernels/level_NAME.cc, where the compiler knows the flags.
function(uwaga_level name definition)
  string(JOIN " " flags ${ARGN})
  string(TOUPPER "UWAGA_COMPILES_${name}" known)
  set(CMAKE_REQUIRED_FLAGS "${flags}")
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)  # no link: Zig would build its C++ library anew for each set of flags
  check_cxx_compiler_flag("${flags}" ${known})
  if(NOT ${known})
    return()
  endif()
  set(source native/kernels/level_${name}.cc)
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${ARGN};${kernel_options}")
  set(UWAGA_LEVEL_SOURCES ${UWAGA_LEVEL_SOURCES} ${source} PARENT_SCOPE)
  set(UWAGA_LEVEL_DEFINITIONS ${UWAGA_LEVEL_DEFINITIONS} ${definition} PARENT_SCOPE)
endfunction()

string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" processor)
if(processor MATCHES "^(x86_64|amd64)$")
  set(avx2 -mavx2 -mfma -mf16c)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
  set(avx512_bf16 ${avx512} -mavx512bf16)
  set(amx ${avx512_bf16} -mamx-tile -mamx-bf16)
  if(UWAGA_EMULATE_AVX512)
    set(avx512 ${avx2} -Wno-psabi)  # no vector of 64 bytes crosses a file here
    set(avx512_bf16 ${avx512})
    set(amx ${avx512})
    set(UWAGA_LEVEL_DEFINITIONS UWAGA_EMULATE_AVX512)
  endif()
  uwaga_level(avx2 UWAGA_HAS_AVX2 ${avx2})
  uwaga_level(avx512 UWAGA_HAS_AVX512 ${avx512})
  uwaga_level(avx512_bf16 UWAGA_HAS_AVX512_BF16 ${avx512_bf16})
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")  # no other system was looked at: Linux has to be asked for the registers
    uwaga_level(amx UWAGA_HAS_AMX ${amx})
  endif()
elseif(processor MATCHES "^(aarch64|arm64)$")
  uwaga_level(neon UWAGA_HAS_NEON)
  # Zig knows no names of architectures.
  if(UWAGA_TARGET)
    uwaga_level(neon_bf16 UWAGA_HAS_NEON_BF16 -mcpu=generic+bf16)
  else()
    uwaga_level(neon_bf16 UWAGA_HAS_NEON_BF16 -march=armv8.2-a+bf16)
  endif()
endif()
