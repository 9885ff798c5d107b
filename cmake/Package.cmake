# `cmake --install`: the libraries, their headers, find_package(unimem), a pkg-config file and the command line. Nothing
# installed holds an absolute path, so a prefix may be moved (tests/packaging does).

include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/unimem")

# An export set for each: a consumer of the shared library must not be asked for what only the others need.
install(TARGETS unimem EXPORT unimem_shared
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS unimem_static EXPORT unimem_static
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS unimem_mpi EXPORT unimem_mpi)
install(EXPORT unimem_shared FILE unimem-shared.cmake NAMESPACE unimem:: DESTINATION "${package_dir}")
install(EXPORT unimem_static FILE unimem-static.cmake NAMESPACE unimem:: DESTINATION "${package_dir}")
install(EXPORT unimem_mpi FILE unimem-mpi.cmake NAMESPACE unimem:: DESTINATION "${package_dir}")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/unimem" "${PROJECT_BINARY_DIR}/include/unimem"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.hpp")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/unimem-config.cmake.in"
                              "${PROJECT_BINARY_DIR}/unimem-config.cmake" INSTALL_DESTINATION "${package_dir}")
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/unimem-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/unimem-config.cmake" "${PROJECT_BINARY_DIR}/unimem-config-version.cmake"
        DESTINATION "${package_dir}")

# The prefix is told relative to where the .pc file lies, so that the whole tree may be moved.
set(pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH prefix_from_pc "/prefix/${pc_dir}" "/prefix")
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
# What unimem::static links (cmake/Library.cmake). Not as packages required: those give their flags to whoever asks for
# ours, and must be there even for the shared library.
set(static_libraries "-lspdlog -lfmt")
if(UNIMEM_HAS_PROMETHEUS)
  string(APPEND static_libraries " -lprometheus-cpp-core")
endif()
if(UNIMEM_HAS_URING)
  string(APPEND static_libraries " -luring")
endif()
if(UNIMEM_HAS_BACKTRACE)
  string(APPEND static_libraries " -lbacktrace")
endif()
string(APPEND static_libraries " -pthread -ldl")
configure_file("${PROJECT_SOURCE_DIR}/cmake/unimem.pc.in" "${PROJECT_BINARY_DIR}/unimem.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/unimem.pc" DESTINATION "${pc_dir}")

if(TARGET unimem_cli)
  file(RELATIVE_PATH lib_from_bin "/prefix/${CMAKE_INSTALL_BINDIR}" "/prefix/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(unimem_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${lib_from_bin}")
  install(TARGETS unimem_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
