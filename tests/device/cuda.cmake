# The CUDA backend without a GPU.

# Its own declarations of the driver against the real ones.
if(UNIMEM_CUDA_H)
  unimem_test(device_cuda_declarations_test SOURCES cuda_declarations_test.cpp LABELS cuda TIMEOUT 60 WHOLE)
  target_include_directories(device_cuda_declarations_test SYSTEM PRIVATE "${UNIMEM_CUDA_H}")
endif()
