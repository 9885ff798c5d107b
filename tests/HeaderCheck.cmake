# Every public header compiles alone: one generated source per header, with nothing but the public include folders. It
# includes the header twice, so a missing guard shows too.

file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/include/*.hpp")
list(APPEND headers unimem/core/version.hpp)
set(sources "")
set(mpi_sources "")
foreach(header IN LISTS headers)
  string(MAKE_C_IDENTIFIER "${header}" identifier)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/header_check/${identifier}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include <${header}>\n#include <${header}>\n")
  if(header MATCHES "^unimem/(cluster/|mpi\\.hpp)")  # these include MPI's own
    list(APPEND mpi_sources "${source}")
  else()
    list(APPEND sources "${source}")
  endif()
endforeach()

add_library(header_check OBJECT ${sources})
set_target_properties(header_check PROPERTIES UNITY_BUILD OFF)
target_include_directories(header_check PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_BINARY_DIR}/include")
target_link_libraries(header_check PRIVATE unimem_flags)

if(MPI_CXX_FOUND)
  add_library(header_check_mpi OBJECT ${mpi_sources})
  set_target_properties(header_check_mpi PROPERTIES UNITY_BUILD OFF)
  target_include_directories(header_check_mpi PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_BINARY_DIR}/include")
  target_link_libraries(header_check_mpi PRIVATE unimem_flags MPI::MPI_CXX)
endif()
