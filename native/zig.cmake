# CMake's toolchain for another platform: Zig's C++ compiler (PyPI: ziglang), which brings the headers and libraries of each.
#   cmake -DCMAKE_TOOLCHAIN_FILE=native/zig.cmake -DUWAGA_TARGET=aarch64-linux-gnu.2.28 -DUWAGA_PYTHON=python ...
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES UWAGA_TARGET UWAGA_PYTHON)
if(UWAGA_TARGET MATCHES "^([^-]+)-([^-.]+)")
  set(CMAKE_SYSTEM_PROCESSOR ${CMAKE_MATCH_1})
  set(system ${CMAKE_MATCH_2})
endif()
if(system STREQUAL "linux")
  set(CMAKE_SYSTEM_NAME Linux)
elseif(system STREQUAL "macos")
  set(CMAKE_SYSTEM_NAME Darwin)
elseif(system STREQUAL "windows")
  set(CMAKE_SYSTEM_NAME Windows)
else()
  message(FATAL_ERROR "UWAGA_TARGET must be a target of Zig such as aarch64-linux-gnu.2.28, not '${UWAGA_TARGET}'")
endif()
set(CMAKE_CXX_COMPILER ${UWAGA_PYTHON} -m ziglang c++ -target ${UWAGA_TARGET})
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
set(CMAKE_STRIP true)  # the linker has done it; this machine's strip does not know the format
