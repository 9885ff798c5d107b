# The OpenCL backend on whatever this machine has, on each driver by itself, and on drivers that are broken.
# Without any, the tests are skipped and say so.

find_path(UNIMEM_OPENCL_HEADERS CL/cl_icd.h DOC "The OpenCL headers, with the loader's interface to drivers")

unimem_test(device_opencl_test LABELS opencl TIMEOUT 300 WHOLE
            SOURCES opencl_test.cpp opencl_asynchrony_test.cpp opencl_fault_test.cpp opencl_kernel_test.cpp THREADS)
unimem_test(device_opencl_run_order_test SOURCES opencl_run_order_test.cpp opencl_crowded_runs_test.cpp LABELS opencl
            TIMEOUT 300 WHOLE THREADS)
unimem_test(device_opencl_process_test SOURCES opencl_process_test.cpp LABELS opencl TIMEOUT 120 CHECK THREADS)
# A forked child that calls exit hangs inside of Intel's runtime (docs/drivers.md), and what never ends takes ten seconds.
unimem_on_opencl_drivers(device_opencl_process_test DRIVERS intel rusticl FILTER "-*Forked*:*NeverEnds*")

unimem_opencl_conformance(device_opencl_test OCLGRIND_WITHOUT "*OneProgramRunsOnManyQueuesAtOnce/Faulty"
                          BECAUSE "kernels over nine million items run once, and not over the faulty driver too")

if(UNIMEM_OPENCL_HEADERS)
  add_library(opencl_fake_driver MODULE opencl_fake_driver.cpp)
  target_include_directories(opencl_fake_driver PRIVATE "${UNIMEM_OPENCL_HEADERS}")
  target_compile_options(opencl_fake_driver PRIVATE -Wall -Wextra)  # no sanitizer: it is loaded as drivers are
  unimem_test(device_opencl_installation_test SOURCES opencl_installation_test.cpp LABELS opencl TIMEOUT 120 WHOLE)
  if(TARGET device_opencl_installation_test)
    add_dependencies(device_opencl_installation_test opencl_fake_driver)
    target_compile_definitions(device_opencl_installation_test PRIVATE
      UNIMEM_FAKE_DRIVER_LIBRARY="$<TARGET_FILE:opencl_fake_driver>"
      UNIMEM_OCLGRIND_LIBRARY="$<IF:$<BOOL:${UNIMEM_OCLGRIND_DRIVER}>,${UNIMEM_OCLGRIND_DRIVER},>")
  endif()
endif()
