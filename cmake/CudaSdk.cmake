# What NVIDIA publishes and tests compare with: headers and the run-time compiler, from the wheels that `./dev check`
# fetches (tools/wheels.txt), else from a toolkit on this machine. The library itself needs neither.

set(wheels "${PROJECT_SOURCE_DIR}/build/wheels/nvidia")
set(toolkits "$ENV{CUDA_HOME}" /usr/local/cuda /opt/cuda)
find_path(UNIMEM_CUDA_H cuda.h HINTS "${wheels}/cuda_runtime/include" PATHS ${toolkits} PATH_SUFFIXES include
          NO_DEFAULT_PATH DOC "The folder of the CUDA driver's header")
find_path(UNIMEM_NVRTC_H nvrtc.h HINTS "${wheels}/cuda_nvrtc/include" PATHS ${toolkits} PATH_SUFFIXES include
          NO_DEFAULT_PATH DOC "The folder of NVRTC's header")
find_file(UNIMEM_NVRTC NAMES libnvrtc.so.12 libnvrtc.so.13 HINTS "${wheels}/cuda_nvrtc/lib" PATHS ${toolkits}
          PATH_SUFFIXES lib64 NO_DEFAULT_PATH DOC "CUDA's run-time compiler")

# CCCL, whose cuda::mr has two generations of names, and what its headers include of the toolkit's. From the wheels alone: a
# toolkit may bring any version in between, whose names are neither's.
find_path(UNIMEM_CCCL_2 cuda/memory_resource HINTS "${wheels}/cuda_cccl/include" NO_DEFAULT_PATH DOC "CCCL 2")
find_path(UNIMEM_CCCL_3 cuda/memory_resource HINTS "${wheels}/cu13/include/cccl" NO_DEFAULT_PATH DOC "CCCL 3")
find_path(UNIMEM_CUDART_H cuda_runtime_api.h HINTS "${wheels}/cuda_runtime/include" PATHS ${toolkits} PATH_SUFFIXES include
          NO_DEFAULT_PATH DOC "The folder of the CUDA runtime's header")
find_path(UNIMEM_CUDA_CRT crt/host_defines.h HINTS "${wheels}/cu13/include" PATHS ${toolkits} PATH_SUFFIXES include
          NO_DEFAULT_PATH DOC "The folder of what the CUDA runtime's header includes")

foreach(part IN ITEMS CUDA_H NVRTC_H NVRTC CCCL_2 CCCL_3 CUDART_H CUDA_CRT)
  if(UNIMEM_CUDA_SDK_REQUIRED AND NOT UNIMEM_${part})
    message(FATAL_ERROR "UNIMEM_${part} is missing: it belongs in ${wheels} (./dev check fetches it)")
  endif()
endforeach()
