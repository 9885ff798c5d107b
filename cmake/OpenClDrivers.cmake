# OpenCL drivers that tests run on besides PoCL and Oclgrind: Intel's runtime for CPUs, as `./dev check` fetches it
# (tools/driver-wheels.txt), and Mesa's Rusticl, from the distribution. Each has a folder of vendors of its own, so that
# opencl:0 is its device. docs/drivers.md tells what each does differently.

set(UNIMEM_WITHOUT_OPENCL_DRIVERS "" CACHE STRING "Drivers (intel, rusticl) to do without though drivers are required, and why: intel=REASON;…")
find_file(UNIMEM_INTEL_OPENCL libintelocl.so HINTS "${PROJECT_SOURCE_DIR}/build/drivers/intel" NO_DEFAULT_PATH
          DOC "Intel's OpenCL runtime for CPUs")
find_library(UNIMEM_RUSTICL NAMES libRusticlOpenCL.so.1 DOC "Mesa's Rusticl")
# Without its C library Rusticl has no device at all.
find_path(UNIMEM_LIBCLC spirv64-mesa3d-.spv HINTS /usr/lib/clc /usr/share/clc /usr/libexec/clc DOC "The folder of libclc")

set(UNIMEM_OPENCL_DRIVERS "")  # those that are here
foreach(driver IN ITEMS intel rusticl)
  if(driver STREQUAL "intel" AND UNIMEM_INTEL_OPENCL)
    get_filename_component(folder "${UNIMEM_INTEL_OPENCL}" DIRECTORY)
    set(library "${UNIMEM_INTEL_OPENCL}")
    set(UNIMEM_intel_ENVIRONMENT "LD_LIBRARY_PATH=${folder}")
    set(UNIMEM_intel_VENDOR "Intel")
  elseif(driver STREQUAL "rusticl" AND UNIMEM_RUSTICL AND UNIMEM_LIBCLC)
    set(library "${UNIMEM_RUSTICL}")
    set(UNIMEM_rusticl_ENVIRONMENT "RUSTICL_ENABLE=llvmpipe")
    set(UNIMEM_rusticl_VENDOR "Mesa")
  else()
    if(UNIMEM_OPENCL_DRIVERS_REQUIRED AND NOT UNIMEM_WITHOUT_OPENCL_DRIVERS MATCHES "(^|;)${driver}=.")
      message(FATAL_ERROR "the OpenCL driver ${driver} is missing: ./dev check fetches it; to do without, tell the reason: "
                          "-D UNIMEM_WITHOUT_OPENCL_DRIVERS='${driver}=REASON'")
    endif()
    continue()
  endif()
  set(vendors "${PROJECT_BINARY_DIR}/opencl_drivers/${driver}")
  file(WRITE "${vendors}/${driver}.icd" "${library}\n")
  list(APPEND UNIMEM_${driver}_ENVIRONMENT "OCL_ICD_VENDORS=${vendors}")
  list(APPEND UNIMEM_OPENCL_DRIVERS ${driver})
endforeach()

# unimem_on_opencl_drivers(<test program> [FILTER <gtest filter>] [DRIVERS <driver>...] [TIMEOUT <seconds>])
#
# Runs a program that unimem_test made once more on each of these drivers (all that are here), as <program>_<driver>. In
# the release build alone: a sanitizer sees the same calls on PoCL.
function(unimem_on_opencl_drivers program)
  cmake_parse_arguments(PARSE_ARGV 1 on "" "FILTER;TIMEOUT" "DRIVERS")
  if(UNIMEM_SANITIZE OR NOT TARGET ${program})
    return()
  endif()
  if(NOT on_DRIVERS)
    set(on_DRIVERS ${UNIMEM_OPENCL_DRIVERS})
  endif()
  if(NOT on_TIMEOUT)
    set(on_TIMEOUT 120)
  endif()
  foreach(driver IN LISTS on_DRIVERS)
    if(NOT driver IN_LIST UNIMEM_OPENCL_DRIVERS)
      continue()
    endif()
    set(name ${program}_${driver})
    set(filter "")
    if(on_FILTER)
      set(filter "--gtest_filter=${on_FILTER}")
    endif()
    add_test(NAME ${name} COMMAND ${program} ${filter} "--gtest_output=xml:${PROJECT_BINARY_DIR}/test_reports/${name}.xml")
    set_tests_properties(${name} PROPERTIES LABELS "opencl;${driver};check" TIMEOUT ${on_TIMEOUT} COST ${on_TIMEOUT}
                                            ENVIRONMENT "${UNIMEM_${driver}_ENVIRONMENT}")
  endforeach()
endfunction()

# A driver without a device would have every test skipped.
function(unimem_opencl_drivers_have_devices)
  foreach(driver IN LISTS UNIMEM_OPENCL_DRIVERS)
    add_test(NAME opencl_driver_${driver} COMMAND unimem_cli devices --verbose)
    set_tests_properties(opencl_driver_${driver} PROPERTIES LABELS "opencl;${driver};check" TIMEOUT 60
      PASS_REGULAR_EXPRESSION "\"id\":\"opencl:0\".*\"vendor\":\"${UNIMEM_${driver}_VENDOR}" ENVIRONMENT "${UNIMEM_${driver}_ENVIRONMENT}")
  endforeach()
endfunction()
