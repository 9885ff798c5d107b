# MPI, for <unimem/mpi.hpp> alone: the library itself is built without it, so that one library serves every implementation. Optional: without
# it there are no tests of it here, and what is installed is the same.

set(MPI_CXX_SKIP_MPICXX TRUE)
find_package(MPI QUIET COMPONENTS CXX)

# Whoever links unimem::mpi has the headers, the shared library and an MPI.
add_library(unimem_mpi INTERFACE)
add_library(unimem::mpi ALIAS unimem_mpi)
set_target_properties(unimem_mpi PROPERTIES EXPORT_NAME mpi)
target_link_libraries(unimem_mpi INTERFACE unimem $<INSTALL_INTERFACE:MPI::MPI_CXX>)
if(MPI_CXX_FOUND)
  target_link_libraries(unimem_mpi INTERFACE $<BUILD_INTERFACE:MPI::MPI_CXX>)
endif()

# A second implementation that the tests run on: MPICH, as `./dev check` fetches it (tools/interop-wheels.txt).
set(mpich "${PROJECT_SOURCE_DIR}/build/interop")
find_path(UNIMEM_MPICH_INCLUDE mpi.h HINTS "${mpich}/include" NO_DEFAULT_PATH DOC "The folder of MPICH's header")
find_library(UNIMEM_MPICH_LIBRARY NAMES mpi HINTS "${mpich}/lib" NO_DEFAULT_PATH DOC "MPICH")
find_program(UNIMEM_MPICH_EXEC mpiexec.hydra HINTS "${mpich}/bin" NO_DEFAULT_PATH DOC "What starts MPICH's ranks")
if(UNIMEM_MPICH_INCLUDE AND UNIMEM_MPICH_LIBRARY AND UNIMEM_MPICH_EXEC)
  set(UNIMEM_HAS_MPICH TRUE)
  add_library(unimem_mpich INTERFACE)
  target_include_directories(unimem_mpich SYSTEM INTERFACE "${UNIMEM_MPICH_INCLUDE}")
  target_link_libraries(unimem_mpich INTERFACE "${UNIMEM_MPICH_LIBRARY}")
endif()

# What starts ranks of the MPI that was found: Open MPI wants to be told that it may be root's, and that there may be more ranks than cores.
set(UNIMEM_MPI_FLAGS "")
if(MPI_CXX_FOUND)
  execute_process(COMMAND "${MPIEXEC_EXECUTABLE}" --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(version MATCHES "Open MPI|OpenRTE")
    set(UNIMEM_MPI_FLAGS --allow-run-as-root --oversubscribe)
  endif()
endif()
