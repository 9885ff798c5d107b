# The installed command line finds its library from wherever the prefix was moved to.
include("${CMAKE_CURRENT_LIST_DIR}/checked.cmake")

unset(ENV{LD_LIBRARY_PATH})
checked("${PREFIX}/${BINDIR}/unimem" version)
string(FIND "${output}" "${VERSION}" found)
if(found EQUAL -1)
  message(FATAL_ERROR "expected the version ${VERSION} in:\n${output}")
endif()
