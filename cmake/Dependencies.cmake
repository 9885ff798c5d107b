# What the project is built with: the packages of this system, or what `./dev gpu --prepare` put into a folder for machines
# that have none. Of a system with both, the folder's are taken.

option(UNIMEM_WITH_URING "Do not build without liburing (it is used where it is found)" OFF)
option(UNIMEM_WITH_PROMETHEUS "Do not build without prometheus-cpp (it is used where it is found)" OFF)
set(UNIMEM_CARRIED "" CACHE PATH "A folder that `./dev gpu --prepare` has filled, to be used in place of the system's packages")

find_package(Threads REQUIRED)

# libbacktrace comes with GCC, beside its own libraries, where -lbacktrace finds it. Clang looks there too, and not for its header, which
# lies among GCC's own: the last place to look. What cannot have it says so when it is asked for stacks (`can_capture_stacks`).
include(CheckCXXSourceCompiles)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libbacktrace.a
                  OUTPUT_VARIABLE library OUTPUT_STRIP_TRAILING_WHITESPACE)
  cmake_path(GET library PARENT_PATH folder)
  set(UNIMEM_BACKTRACE_FLAGS "-idirafter${folder}/include")
endif()
set(CMAKE_REQUIRED_FLAGS "${UNIMEM_BACKTRACE_FLAGS}")
set(CMAKE_REQUIRED_LIBRARIES backtrace)
check_cxx_source_compiles("#include <backtrace.h>
int main() { return backtrace_create_state(nullptr, 1, nullptr, nullptr) == nullptr; }" UNIMEM_HAS_BACKTRACE)
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_FLAGS)
if(NOT UNIMEM_CARRIED)
  find_package(fmt REQUIRED)
  find_package(spdlog REQUIRED)
  find_package(nlohmann_json REQUIRED)
  find_package(Boost 1.74 REQUIRED CONFIG)  # headers alone
  # Optional: what is built without it says so when it is asked (`can_expose_to_prometheus`). Not by its CMake package, which
  # wants the web servers of its other parts.
  set(required "")
  if(UNIMEM_WITH_PROMETHEUS)
    set(required REQUIRED)
  endif()
  find_path(UNIMEM_PROMETHEUS_INCLUDE prometheus/text_serializer.h ${required})
  find_library(UNIMEM_PROMETHEUS_CORE prometheus-cpp-core ${required})
  if(UNIMEM_PROMETHEUS_INCLUDE AND UNIMEM_PROMETHEUS_CORE)
    set(UNIMEM_HAS_PROMETHEUS TRUE)
  endif()
  # Optional: without it, several requests to a disk are several threads' (docs/decisions/file-access.md). The archive, where there
  # is one: its code is position independent, and 20 KB; who uses the shared library need not have it.
  set(required "")
  if(UNIMEM_WITH_URING)
    set(required REQUIRED)
  endif()
  find_path(UNIMEM_URING_INCLUDE liburing.h ${required})
  find_library(UNIMEM_URING_LIBRARY NAMES liburing.a uring ${required})
  if(UNIMEM_URING_INCLUDE AND UNIMEM_URING_LIBRARY)
    set(UNIMEM_HAS_URING TRUE)
  endif()
  return()
endif()

# Headers alone, whatever the packages may hold besides. They share one folder, in which OpenCL's lie too.
foreach(target fmt::fmt spdlog::spdlog nlohmann_json::nlohmann_json CLI11::CLI11 Boost::headers)
  add_library(${target} INTERFACE IMPORTED)
  target_include_directories(${target} INTERFACE "${UNIMEM_CARRIED}/include")
endforeach()
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)
target_compile_definitions(spdlog::spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_link_libraries(spdlog::spdlog INTERFACE fmt::fmt)

# GoogleTest from its sources, without its own build files: each version of CMake finds another fault with them.
set(carried_gtest "${UNIMEM_CARRIED}/googletest")
add_library(carried_gmock STATIC EXCLUDE_FROM_ALL "${carried_gtest}/googletest/src/gtest-all.cc"
                                                  "${carried_gtest}/googlemock/src/gmock-all.cc")
target_include_directories(carried_gmock SYSTEM
  PUBLIC "${carried_gtest}/googletest/include" "${carried_gtest}/googlemock/include"
  PRIVATE "${carried_gtest}/googletest" "${carried_gtest}/googlemock")
target_compile_options(carried_gmock PRIVATE -w)
target_link_libraries(carried_gmock PUBLIC Threads::Threads)
add_library(carried_gtest_main STATIC EXCLUDE_FROM_ALL "${carried_gtest}/googletest/src/gtest_main.cc")
target_link_libraries(carried_gtest_main PUBLIC carried_gmock)
add_library(GTest::gtest ALIAS carried_gmock)
add_library(GTest::gmock ALIAS carried_gmock)
add_library(GTest::gtest_main ALIAS carried_gtest_main)
