# Builds the consumer through find_package(unimem) and the target CONSUMED, and runs it.
include("${CMAKE_CURRENT_LIST_DIR}/checked.cmake")

# What the shared library uses inside must not be asked of its consumer: here it cannot be found.
set(hidden "")
if(CONSUMED STREQUAL "unimem::unimem")
  set(hidden -D CMAKE_DISABLE_FIND_PACKAGE_fmt=ON -D CMAKE_DISABLE_FIND_PACKAGE_spdlog=ON)
endif()

string(MAKE_C_IDENTIFIER "${CONSUMED}" folder)
set(build "${SCRATCH}/consumer_${folder}")
checked("${CMAKE_COMMAND}" -G Ninja -S "${CONSUMER}" -B "${build}" -D "CMAKE_PREFIX_PATH=${PREFIX}" -D "CONSUMED=${CONSUMED}"
        -D "CMAKE_BUILD_TYPE=${BUILD_TYPE}" -D "CMAKE_CXX_COMPILER=${CXX}" -D "CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" ${hidden})
checked("${CMAKE_COMMAND}" --build "${build}")
checked("${build}/consumer")
expect("${output}" "unimem ${VERSION}: 1000 elements, sum 1498500\n")
