# What NVIDIA publishes and tests compare with: headers and the run-time compiler, from the wheels that `./dev test`
# fetches (tools/wheels.txt), else from a toolkit on this machine. The library itself needs neither.

set(wheels "${PROJECT_SOURCE_DIR}/build/wheels/nvidia")
set(toolkits "$ENV{CUDA_HOME}" /usr/local/cuda /opt/cuda)
find_path(UNIMEM_CUDA_H cuda.h HINTS "${wheels}/cuda_runtime/include" PATHS ${toolkits} PATH_SUFFIXES include
          NO_DEFAULT_PATH DOC "The folder of the CUDA driver's header")
find_path(UNIMEM_NVRTC_H nvrtc.h HINTS "${wheels}/cuda_nvrtc/include" PATHS ${toolkits} PATH_SUFFIXES include
          NO_DEFAULT_PATH DOC "The folder of NVRTC's header")
find_file(UNIMEM_NVRTC NAMES libnvrtc.so.12 libnvrtc.so.13 HINTS "${wheels}/cuda_nvrtc/lib" PATHS ${toolkits}
          PATH_SUFFIXES lib64 NO_DEFAULT_PATH DOC "CUDA's run-time compiler")
if(UNIMEM_CUDA_SDK_REQUIRED AND NOT (UNIMEM_CUDA_H AND UNIMEM_NVRTC_H AND UNIMEM_NVRTC))
  message(FATAL_ERROR "the CUDA headers or NVRTC are missing: they belong in ${wheels} (./dev test fetches them)")
endif()
