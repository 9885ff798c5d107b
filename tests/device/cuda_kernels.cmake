# Kernels under CUDA, without a GPU: by NVRTC itself, which needs none, and by a stand-in for it, whose kernels run on the
# host. The stand-in has no soname: once loaded, it would be what the loader finds for that name.

add_library(cuda_standin_nvrtc MODULE cuda_standin/nvrtc/nvrtc.cpp cuda_standin/nvrtc/host_compiler.cpp)
set_target_properties(cuda_standin_nvrtc PROPERTIES PREFIX "" OUTPUT_NAME "libnvrtc.so" SUFFIX ".12" NO_SONAME TRUE
                      CXX_VISIBILITY_PRESET default LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/cuda_standin")
target_include_directories(cuda_standin_nvrtc PRIVATE "${PROJECT_SOURCE_DIR}/tests")
target_compile_features(cuda_standin_nvrtc PRIVATE cxx_std_20)
target_compile_options(cuda_standin_nvrtc PRIVATE -Wall -Wextra)  # no sanitizer: it is loaded as toolkits are
target_compile_definitions(cuda_standin_nvrtc PRIVATE
  UNIMEM_STANDIN_COMPILER="${CMAKE_CXX_COMPILER}" UNIMEM_STANDIN_COMPILER_ID="${CMAKE_CXX_COMPILER_ID}")

unimem_test(device_cuda_kernel_test LABELS cuda TIMEOUT 300 WHOLE
            SOURCES cuda_kernel_cache_test.cpp cuda_launch_shape_test.cpp cuda_nvrtc_search_test.cpp cuda_prelude_test.cpp
                    cuda_program_test.cpp cuda_parameter_test.cpp)
add_dependencies(device_cuda_kernel_test cuda_standin_nvrtc)
target_compile_definitions(device_cuda_kernel_test PRIVATE
  UNIMEM_STANDIN_NVRTC="$<TARGET_FILE:cuda_standin_nvrtc>")

# A sanitizer keeps NVRTC from finding its own libraries: it takes over the loader's calls.
if(UNIMEM_NVRTC AND NOT UNIMEM_SANITIZE)
  unimem_test(device_cuda_compile_test SOURCES cuda_compile_test.cpp LABELS cuda TIMEOUT 300 WHOLE)
  target_compile_definitions(device_cuda_compile_test PRIVATE
    UNIMEM_NVRTC="${UNIMEM_NVRTC}" UNIMEM_SOURCE_FOLDER="${PROJECT_SOURCE_DIR}")
endif()

if(UNIMEM_NVRTC_H)
  unimem_test(device_cuda_nvrtc_declarations_test SOURCES cuda_nvrtc_declarations_test.cpp LABELS cuda TIMEOUT 60 WHOLE)
  target_include_directories(device_cuda_nvrtc_declarations_test SYSTEM PRIVATE "${UNIMEM_NVRTC_H}")
endif()
