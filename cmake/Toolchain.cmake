# Compiler settings every target of the project shares. Nothing here reaches a consumer of the installed package.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(UNIMEM_CCACHE ccache)
if(UNIMEM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # No precompiled header (cmake/Folder.cmake, tests/CMakeLists.txt) uses __DATE__ or __TIME__.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${UNIMEM_CCACHE}")
endif()

add_library(unimem_flags INTERFACE)
target_compile_options(unimem_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow
  # One result on every device: a fused multiply-add rounds once where OpenCL, told not to contract, rounds twice.
  -ffp-contract=off
  # GCC 12 sees overlapping copies in `"text" + std::string` once it inlines (its bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>,$<CONFIG:Release>>:-Wno-restrict>
  $<$<BOOL:${UNIMEM_WERROR}>:-Werror>)
if(CMAKE_UNITY_BUILD)
  target_compile_options(unimem_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage> -Wno-shadow)  # a source is included by another, after others
endif()
if(UNIMEM_SANITIZE)
  # Clang forgets in a precompiled header what libstdc++ 12 says round its own use of what it deprecates.
  target_compile_options(unimem_flags INTERFACE -fsanitize=${UNIMEM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
                                                $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>)
  target_link_options(unimem_flags INTERFACE -fsanitize=${UNIMEM_SANITIZE})
endif()
