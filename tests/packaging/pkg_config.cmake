# Builds the consumer with nothing but the compiler and pkg-config, and runs it.
include("${CMAKE_CURRENT_LIST_DIR}/checked.cmake")

find_program(PKG_CONFIG pkg-config REQUIRED)
set(ENV{PKG_CONFIG_PATH} "${PREFIX}/${LIBDIR}/pkgconfig")
checked("${PKG_CONFIG}" --modversion unimem)
expect("${output}" "${VERSION}\n")
checked("${PKG_CONFIG}" --cflags --libs unimem)
separate_arguments(flags UNIX_COMMAND "${output}")
set(program "${SCRATCH}/consumer_pkg_config")
checked("${CXX}" -std=c++20 "${CONSUMER}/main.cpp" -o "${program}" ${flags})
set(ENV{LD_LIBRARY_PATH} "${PREFIX}/${LIBDIR}")
checked("${program}")
expect("${output}" "unimem ${VERSION}: 1000 elements, sum 1498500\n")
