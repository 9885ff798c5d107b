# OpenCL drivers that tests run on, each by itself: PoCL, Mesa's Rusticl and Oclgrind, from the distribution, and Intel's runtime
# for CPUs, as `./dev check` fetches it (tools/driver-wheels.txt). Each has a folder of vendors of its own, so that opencl:0 is its
# device. docs/drivers.md tells what each does differently.

set(UNIMEM_WITHOUT_OPENCL_DRIVERS "" CACHE STRING
    "Drivers (pocl, intel, rusticl, oclgrind) to do without though drivers are required, and why: intel=REASON;…")
find_library(UNIMEM_POCL NAMES libpocl.so.2 DOC "PoCL")
find_file(UNIMEM_INTEL_OPENCL libintelocl.so HINTS "${PROJECT_SOURCE_DIR}/build/drivers/intel" NO_DEFAULT_PATH
          DOC "Intel's OpenCL runtime for CPUs")
find_library(UNIMEM_RUSTICL NAMES libRusticlOpenCL.so.1 DOC "Mesa's Rusticl")
# Without its C library Rusticl has no device at all.
find_path(UNIMEM_LIBCLC spirv64-mesa3d-.spv HINTS /usr/lib/clc /usr/share/clc /usr/libexec/clc DOC "The folder of libclc")
find_file(UNIMEM_OCLGRIND_DRIVER liboclgrind-rt-icd.so PATHS /usr/lib /usr/local/lib PATH_SUFFIXES oclgrind
          DOC "Oclgrind as a driver the OpenCL loader can load")

# By the device that `unimem devices` tells of.
set(UNIMEM_pocl_KNOWN_BY "\"name\":\"pthread")
set(UNIMEM_intel_KNOWN_BY "\"vendor\":\"Intel")
set(UNIMEM_rusticl_KNOWN_BY "\"vendor\":\"Mesa")
set(UNIMEM_oclgrind_KNOWN_BY "\"vendor\":\"Oclgrind")

set(UNIMEM_OPENCL_DRIVERS "")  # those that are here
foreach(driver IN ITEMS pocl intel rusticl oclgrind)
  set(library "")
  if(driver STREQUAL "pocl" AND UNIMEM_POCL)
    set(library "${UNIMEM_POCL}")
    # As many threads however many cores there are: a small machine sees what happens on a larger one.
    set(UNIMEM_pocl_ENVIRONMENT "POCL_MAX_PTHREAD_COUNT=4")
  elseif(driver STREQUAL "intel" AND UNIMEM_INTEL_OPENCL)
    get_filename_component(folder "${UNIMEM_INTEL_OPENCL}" DIRECTORY)
    set(library "${UNIMEM_INTEL_OPENCL}")
    set(UNIMEM_intel_ENVIRONMENT "LD_LIBRARY_PATH=${folder}")
  elseif(driver STREQUAL "rusticl" AND UNIMEM_RUSTICL AND UNIMEM_LIBCLC)
    set(library "${UNIMEM_RUSTICL}")
    set(UNIMEM_rusticl_ENVIRONMENT "RUSTICL_ENABLE=llvmpipe")
  elseif(driver STREQUAL "oclgrind" AND UNIMEM_OCLGRIND_DRIVER)
    set(library "${UNIMEM_OCLGRIND_DRIVER}")
    # One thread, because several race in its own atomics.
    set(UNIMEM_oclgrind_ENVIRONMENT "OCLGRIND_NUM_THREADS=1")
  endif()
  if(NOT library)
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

# unimem_on_opencl_drivers(<test program> DRIVERS <driver>... [FILTER <gtest filter>] [TIMEOUT <seconds>] [ENVIRONMENT <NAME=VALUE>...]
#                          [FAIL_ON <regex>])
#
# Runs a program that unimem_test made once more on each of these drivers that are here, as <program>_<driver>. In the release
# build alone: a sanitizer sees the same calls on PoCL. FAIL_ON: what must not be in its output.
function(unimem_on_opencl_drivers program)
  cmake_parse_arguments(PARSE_ARGV 1 on "" "FILTER;TIMEOUT;FAIL_ON" "DRIVERS;ENVIRONMENT")
  if(UNIMEM_SANITIZE OR NOT TARGET ${program})
    return()
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
                                            ENVIRONMENT "${UNIMEM_${driver}_ENVIRONMENT};${on_ENVIRONMENT}")
    if(on_FAIL_ON)
      set_tests_properties(${name} PROPERTIES FAIL_REGULAR_EXPRESSION "${on_FAIL_ON}")
    endif()
  endforeach()
endfunction()

# unimem_opencl_conformance(<test program> [OCLGRIND_WITHOUT <gtest filter> BECAUSE <reason>] [RACES])
#
# Runs a program on all of the drivers: what it says of each is the table of docs/drivers.md (tools/driver_table.py). A test that
# can do nothing on a driver is skipped by itself, with the reason; OCLGRIND_WITHOUT leaves out what takes too long where each
# access is watched. RACES: there it watches for races as well, which takes a hundred bytes an element.
function(unimem_opencl_conformance program)
  cmake_parse_arguments(PARSE_ARGV 1 suite "RACES" "OCLGRIND_WITHOUT;BECAUSE" "")
  if(UNIMEM_SANITIZE OR NOT TARGET ${program})
    return()
  endif()
  unimem_on_opencl_drivers(${program} DRIVERS pocl intel rusticl TIMEOUT 300)
  set(filter "")
  if(suite_OCLGRIND_WITHOUT)
    set(filter FILTER "-${suite_OCLGRIND_WITHOUT}")
  endif()
  set(watch "")
  if(suite_RACES)
    set(watch ENVIRONMENT OCLGRIND_DATA_RACES=1)
  endif()
  unimem_on_opencl_drivers(${program} DRIVERS oclgrind TIMEOUT 600 ${filter} ${watch} FAIL_ON "data race;Invalid (read|write)")
  set_property(GLOBAL APPEND PROPERTY UNIMEM_OPENCL_CONFORMANCE "${program}|${suite_OCLGRIND_WITHOUT}|${suite_BECAUSE}")
endfunction()

# A driver without a device would have every test skipped. And what tools/driver_table.py reads: a line for each driver, with why it is
# missing if it is, and one for each program of the conformance suites, with what of it is left out on Oclgrind, and why.
function(unimem_opencl_drivers_have_devices)
  foreach(driver IN LISTS UNIMEM_OPENCL_DRIVERS)
    add_test(NAME opencl_driver_${driver} COMMAND unimem_cli devices --verbose)
    set_tests_properties(opencl_driver_${driver} PROPERTIES LABELS "opencl;${driver};check" TIMEOUT 60
      PASS_REGULAR_EXPRESSION "\"id\":\"opencl:0\".*${UNIMEM_${driver}_KNOWN_BY}" ENVIRONMENT "${UNIMEM_${driver}_ENVIRONMENT}")
  endforeach()
  set(lines "")
  foreach(driver IN ITEMS pocl intel rusticl oclgrind)
    set(reason "")
    if(NOT driver IN_LIST UNIMEM_OPENCL_DRIVERS)
      set(reason "not found")
      if(";${UNIMEM_WITHOUT_OPENCL_DRIVERS}" MATCHES ";${driver}=([^;]+)")
        set(reason "${CMAKE_MATCH_1}")
      endif()
    endif()
    string(APPEND lines "driver|${driver}||${reason}\n")
  endforeach()
  get_property(programs GLOBAL PROPERTY UNIMEM_OPENCL_CONFORMANCE)
  foreach(program IN LISTS programs)
    string(APPEND lines "program|${program}\n")
  endforeach()
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/opencl_conformance.txt" CONTENT "${lines}" @ONLY)
endfunction()
