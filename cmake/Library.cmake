# The two libraries users link: unimem::unimem (shared) and unimem::static, both made of every folder's objects.

configure_file("${PROJECT_SOURCE_DIR}/cmake/version.hpp.in" "${PROJECT_BINARY_DIR}/include/unimem/core/version.hpp" @ONLY)

get_property(folders GLOBAL PROPERTY UNIMEM_FOLDERS)
set(objects "")
foreach(folder IN LISTS folders)
  list(APPEND objects $<TARGET_OBJECTS:unimem_${folder}>)
endforeach()

add_library(unimem SHARED ${objects})
add_library(unimem_static STATIC ${objects})
add_library(unimem::unimem ALIAS unimem)
add_library(unimem::static ALIAS unimem_static)
set_target_properties(unimem PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINKER_LANGUAGE CXX)
set_target_properties(unimem_static PROPERTIES OUTPUT_NAME unimem EXPORT_NAME static LINKER_LANGUAGE CXX)
foreach(library unimem unimem_static)
  target_include_directories(${library} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${library} INTERFACE cxx_std_20)
endforeach()

# What the shared library uses inside is its own business: a consumer needs neither the headers nor the packages. A
# static one cannot hide it, so cmake/unimem-config.cmake.in looks for the same three.
target_link_libraries(unimem PRIVATE $<BUILD_INTERFACE:unimem_flags> $<BUILD_INTERFACE:fmt::fmt>
                                     $<BUILD_INTERFACE:spdlog::spdlog> $<BUILD_INTERFACE:Threads::Threads> ${CMAKE_DL_LIBS})
target_link_libraries(unimem_static PRIVATE $<BUILD_INTERFACE:unimem_flags> fmt::fmt spdlog::spdlog Threads::Threads
                                            ${CMAKE_DL_LIBS})

if(UNIMEM_HAS_PROMETHEUS)
  target_link_libraries(unimem PRIVATE $<BUILD_INTERFACE:${UNIMEM_PROMETHEUS_CORE}>)
  target_link_libraries(unimem_static PRIVATE $<BUILD_INTERFACE:${UNIMEM_PROMETHEUS_CORE}>
                                              $<INSTALL_INTERFACE:prometheus-cpp-core>)
endif()

# The archive's functions are inside the shared library, and not for others to see.
if(UNIMEM_HAS_URING)
  target_link_libraries(unimem PRIVATE $<BUILD_INTERFACE:${UNIMEM_URING_LIBRARY}>)
  target_link_libraries(unimem_static PRIVATE $<BUILD_INTERFACE:${UNIMEM_URING_LIBRARY}> $<INSTALL_INTERFACE:uring>)
  target_link_options(unimem PRIVATE LINKER:--exclude-libs,liburing.a)
endif()

# By its name: the linker finds it where its compiler has it, also for who links the static library elsewhere. Its functions are
# inside the shared one, and not for others to see.
if(UNIMEM_HAS_BACKTRACE)
  target_link_libraries(unimem PRIVATE $<BUILD_INTERFACE:backtrace>)
  target_link_libraries(unimem_static PRIVATE backtrace)
  target_link_options(unimem PRIVATE LINKER:--exclude-libs,libbacktrace.a)
endif()

# A fault that hides until a user links the library is found here instead.
if(NOT UNIMEM_SANITIZE)
  target_link_options(unimem PRIVATE LINKER:--no-undefined)
endif()
