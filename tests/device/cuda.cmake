# The CUDA backend without a GPU.

# Its own declarations of the driver against the real ones.
if(UNIMEM_CUDA_H)
  unimem_test(device_cuda_declarations_test SOURCES cuda_declarations_test.cpp LABELS cuda TIMEOUT 60 WHOLE)
  target_include_directories(device_cuda_declarations_test SYSTEM PRIVATE "${UNIMEM_CUDA_H}")
endif()

# The stand-in driver: a libcuda.so.1 over host memory, for tests alone, and kernels for it.

file(GLOB standin_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cuda_standin/*.cpp")
add_library(cuda_standin SHARED ${standin_sources})
set_target_properties(cuda_standin PROPERTIES PREFIX "" OUTPUT_NAME libcuda SUFFIX .so.1
                      LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/cuda_standin")
target_include_directories(cuda_standin PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
target_link_libraries(cuda_standin PRIVATE unimem_flags unimem_unity_flags Threads::Threads ${CMAKE_DL_LIBS})

add_library(cuda_standin_kernels MODULE cuda_standin_kernels.cpp)
set_target_properties(cuda_standin_kernels PROPERTIES CXX_VISIBILITY_PRESET default)
target_include_directories(cuda_standin_kernels PRIVATE "${PROJECT_SOURCE_DIR}/tests")
target_compile_options(cuda_standin_kernels PRIVATE -Wall -Wextra)  # no sanitizer, as the stand-in NVRTC has none

# unimem_on_standin(<test>): the program finds the stand-ins for the driver and for NVRTC (cuda_kernels.cmake), kernels for
# the one beside, and a place for what the other compiles, which is nobody else's.
function(unimem_on_standin test)
  add_dependencies(${test} cuda_standin cuda_standin_nvrtc cuda_standin_kernels)
  target_compile_definitions(${test} PRIVATE
    UNIMEM_CUDA_STANDIN="$<TARGET_FILE:cuda_standin>" UNIMEM_NVRTC_STANDIN="$<TARGET_FILE:cuda_standin_nvrtc>"
    UNIMEM_CUDA_STANDIN_KERNELS="$<TARGET_FILE:cuda_standin_kernels>"
    UNIMEM_STANDIN_CACHE="${PROJECT_BINARY_DIR}/standin_cache")
endfunction()

# unimem_on_hardware(<test>): a program on the stand-in that `./dev gpu` runs on a GPU too. Here it runs once more the way it
# does there, as if the stand-in were the one GPU of the machine: nothing of what is then left may script the stand-in.
function(unimem_on_hardware test)
  set_property(GLOBAL APPEND PROPERTY UNIMEM_HARDWARE_SUITES ${test})
  if(NOT UNIMEM_SANITIZE)
    set(name ${test}_as_on_hardware)
    add_test(NAME ${name} COMMAND ${test} "--gtest_output=xml:${PROJECT_BINARY_DIR}/test_reports/${name}.xml")
    set_tests_properties(${name} PROPERTIES LABELS "cuda;check" TIMEOUT 300 ENVIRONMENT
      "UNIMEM_TEST_CUDA=real;UNIMEM_CUDA_LIBRARY=$<TARGET_FILE:cuda_standin>;UNIMEM_CUDA_STANDIN_DEVICES=1;\
UNIMEM_CUDA_STANDIN_CAPACITY=2147483648;UNIMEM_CUDA_STANDIN_VIOLATIONS=abort;\
UNIMEM_NVRTC_LIBRARY=$<TARGET_FILE:cuda_standin_nvrtc>;UNIMEM_CACHE_DIR=${PROJECT_BINARY_DIR}/standin_cache")
  endif()
endfunction()

unimem_test(device_cuda_standin_test LABELS cuda TIMEOUT 120 WHOLE
            SOURCES cuda_standin_test.cpp cuda_standin_mapping_test.cpp cuda_standin_streams_test.cpp
                    cuda_standin_order_test.cpp cuda_standin_capture_test.cpp cuda_standin_kernels_test.cpp
                    cuda_standin_faults_test.cpp)
unimem_on_standin(device_cuda_standin_test)
# What the environment says, and how a process ends, happens once in each.
unimem_test(device_cuda_standin_process_test SOURCES cuda_standin_process_test.cpp LABELS cuda TIMEOUT 60)
unimem_on_standin(device_cuda_standin_process_test)

# The backend on the stand-in.
unimem_test_optimized(cuda_conformance_test.cpp)
unimem_test(device_cuda_test SOURCES cuda_conformance_test.cpp cuda_pieces_test.cpp cuda_streams_test.cpp LABELS cuda
            TIMEOUT 300 WHOLE)
unimem_on_standin(device_cuda_test)
set_property(TEST device_cuda_test APPEND PROPERTY ENVIRONMENT UNIMEM_CUDA_STANDIN_VIOLATIONS=abort)
unimem_on_hardware(device_cuda_test)

# The same once more where all streams share one hardware queue, and calls that may wait for the GPU do.
if(NOT UNIMEM_SANITIZE)
  add_test(NAME device_cuda_test_in_one_hardware_queue
           COMMAND device_cuda_test "--gtest_output=xml:${PROJECT_BINARY_DIR}/test_reports/device_cuda_test_in_one_hardware_queue.xml")
  set_tests_properties(device_cuda_test_in_one_hardware_queue PROPERTIES LABELS "cuda;check" TIMEOUT 300 ENVIRONMENT
    "UNIMEM_CUDA_STANDIN_HARDWARE_QUEUES=1;UNIMEM_CUDA_STANDIN_VIOLATIONS=abort")
endif()

# Order behind host work, and how often the driver is called.
unimem_test(device_cuda_order_test SOURCES cuda_order_test.cpp LABELS cuda TIMEOUT 300 WHOLE)
unimem_on_standin(device_cuda_order_test)

# Steps of `./dev gpu` of a size or a setting of their own; the first looks at a process that has done nothing yet.
unimem_test(device_cuda_steps_test SOURCES cuda_steps_test.cpp LABELS cuda TIMEOUT 120 WHOLE)
unimem_on_standin(device_cuda_steps_test)
unimem_on_hardware(device_cuda_steps_test)
set_property(TEST device_cuda_steps_test APPEND PROPERTY ENVIRONMENT UNIMEM_CUDA_STANDIN_VIOLATIONS=abort
             UNIMEM_CUDA_STANDIN_CAPACITY=1073741824 CUDA_DEVICE_MAX_CONNECTIONS=1)

# Which GPUs it finds, once in each process.
unimem_test(device_cuda_visible_test SOURCES cuda_visible_test.cpp LABELS cuda TIMEOUT 60)
unimem_on_standin(device_cuda_visible_test)

# The backend once more with faults planted in it. They corrupt memory, which is the point; a sanitizer would end the program at the
# first. One CTest a case, since some end a GPU.
if(UNIMEM_PYTHON AND NOT UNIMEM_SANITIZE)
  unimem_test(device_cuda_mutants_test SOURCES cuda_mutants_test.cpp cuda_drills.cpp LABELS cuda TIMEOUT 60)
  unimem_mutants(device_cuda_mutants_test device/cuda cuda_mutants.txt unimem::detail::cuda)
  target_link_libraries(device_cuda_mutants_test PRIVATE spdlog::spdlog)
  unimem_on_standin(device_cuda_mutants_test)
endif()

# The GPU benchmarks once, with next to nothing to move: that they run. No figure of the stand-in's means anything.
if(TARGET bench_gpu AND NOT UNIMEM_SANITIZE)
  add_test(NAME bench_gpu_on_standin
           COMMAND bench_gpu --quick --python "${UNIMEM_PYTHON}" --json "${CMAKE_CURRENT_BINARY_DIR}/bench_gpu.json")
  set_tests_properties(bench_gpu_on_standin PROPERTIES LABELS "cuda;check" TIMEOUT 120
    PASS_REGULAR_EXPRESSION "no figure means anything.*driver calls in" FAIL_REGULAR_EXPRESSION "FAILED;: met;: missed" ENVIRONMENT
    "UNIMEM_CUDA_LIBRARY=$<TARGET_FILE:cuda_standin>;UNIMEM_NVRTC_LIBRARY=$<TARGET_FILE:cuda_standin_nvrtc>;\
UNIMEM_CACHE_DIR=${PROJECT_BINARY_DIR}/standin_cache")
  add_dependencies(bench_gpu cuda_standin cuda_standin_nvrtc)
endif()
