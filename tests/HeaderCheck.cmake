# Every public header compiles alone: one generated source per header, with nothing but the public include folders. It
# includes the header twice, so a missing guard shows too.

file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/include/*.hpp")
list(APPEND headers unimem/core/version.hpp)
set(sources "")
foreach(header IN LISTS headers)
  string(MAKE_C_IDENTIFIER "${header}" identifier)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/header_check/${identifier}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include <${header}>\n#include <${header}>\n")
  list(APPEND sources "${source}")
endforeach()

add_library(header_check OBJECT ${sources})
set_target_properties(header_check PROPERTIES UNITY_BUILD OFF)
target_include_directories(header_check PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_BINARY_DIR}/include")
target_link_libraries(header_check PRIVATE unimem_flags)
