# The OpenCL backend on whatever this machine has: PoCL as installed, Oclgrind by itself, and drivers that are broken.
# Without any, the tests are skipped and say so.

find_path(UNIMEM_OPENCL_HEADERS CL/cl_icd.h DOC "The OpenCL headers, with the loader's interface to drivers")
find_file(UNIMEM_OCLGRIND_DRIVER liboclgrind-rt-icd.so PATHS /usr/lib /usr/local/lib PATH_SUFFIXES oclgrind
          DOC "Oclgrind as a driver the OpenCL loader can load")

unimem_test(device_opencl_test LABELS opencl TIMEOUT 300 WHOLE
            SOURCES opencl_test.cpp opencl_asynchrony_test.cpp opencl_fault_test.cpp opencl_kernel_test.cpp THREADS)
unimem_test(device_opencl_run_order_test SOURCES opencl_run_order_test.cpp opencl_crowded_runs_test.cpp LABELS opencl
            TIMEOUT 300 WHOLE THREADS)
unimem_test(device_opencl_process_test SOURCES opencl_process_test.cpp LABELS opencl TIMEOUT 120 CHECK THREADS)
# A forked child that calls exit hangs inside of Intel's runtime (docs/drivers.md), and what never ends takes ten seconds.
unimem_on_opencl_drivers(device_opencl_process_test FILTER "-*Forked*:*NeverEnds*")

# The same program on Oclgrind, which has memory of its own and watches every access of a kernel: slow, so kernels over nine
# million items run there once and not a second time over the faulty driver, and not under a sanitizer, which would watch
# Oclgrind's allocations and not the kernel, and sees the same calls on PoCL.
if(UNIMEM_OCLGRIND_DRIVER AND NOT UNIMEM_SANITIZE)
  set(vendors "${CMAKE_CURRENT_BINARY_DIR}/oclgrind_vendors")
  file(WRITE "${vendors}/oclgrind.icd" "${UNIMEM_OCLGRIND_DRIVER}\n")
  add_test(NAME device_opencl_oclgrind_test
           COMMAND device_opencl_test "--gtest_filter=-*OneProgramRunsOnManyQueuesAtOnce/Faulty"
                   "--gtest_output=xml:${PROJECT_BINARY_DIR}/test_reports/device_opencl_oclgrind_test.xml")
  get_test_property(device_opencl_test ENVIRONMENT environment)
  if(NOT environment)
    set(environment "")
  endif()
  # One thread, because several race in Oclgrind's own atomics.
  set_tests_properties(device_opencl_oclgrind_test PROPERTIES LABELS "opencl;check" TIMEOUT 600 COST 600
                       ENVIRONMENT "${environment};OCL_ICD_VENDORS=${vendors};OCLGRIND_NUM_THREADS=1")
endif()

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
