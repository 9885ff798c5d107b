# Under a sanitizer the headers that nearly every file reads are read once; the release build, which does without, is where a
# file shows that it includes what it uses.
if(UNIMEM_SANITIZE)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/library_headers.cpp" CONTENT "// Built for its precompiled header alone.\n")
  add_library(unimem_library_headers OBJECT "${PROJECT_BINARY_DIR}/library_headers.cpp")
  target_link_libraries(unimem_library_headers PRIVATE unimem_flags fmt::fmt spdlog::spdlog Threads::Threads)
  target_precompile_headers(unimem_library_headers PRIVATE <algorithm> <atomic> <functional> <map> <memory> <mutex> <optional>
                                                           <span> <string> <vector> <fmt/format.h>)
endif()

# unimem_folder(<name> FLOOR <n> [LINKS <lower folder>...])
#
# One target per folder of the house: `unimem_<name>`, made of src/<name>/**.cpp, seeing include/ and src/. It refuses
# at configure time to link a folder that does not stand on a lower floor; tools/check_includes.py holds the
# #include lines to the same picture.
function(unimem_folder name)
  cmake_parse_arguments(PARSE_ARGV 1 folder "" "FLOOR" "LINKS")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cpp")
  if(NOT sources)  # A folder of headers alone is a target all the same.
    set(sources "${PROJECT_BINARY_DIR}/headers_only.cpp")
    file(TOUCH "${sources}")
  endif()
  set(target unimem_${name})
  add_library(${target} OBJECT ${sources})
  set_target_properties(${target} PROPERTIES UNIMEM_FLOOR ${folder_FLOOR})
  target_compile_definitions(${target} PRIVATE UNIMEM_BUILDING)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${target} PRIVATE unimem_flags fmt::fmt spdlog::spdlog Boost::headers Threads::Threads)
  if(UNIMEM_SANITIZE)
    target_precompile_headers(${target} REUSE_FROM unimem_library_headers)
  endif()
  foreach(lower IN LISTS folder_LINKS)
    get_target_property(lower_floor unimem_${lower} UNIMEM_FLOOR)
    if(NOT lower_floor LESS folder_FLOOR)
      message(FATAL_ERROR "${name} (floor ${folder_FLOOR}) may not link ${lower} (floor ${lower_floor})")
    endif()
    target_link_libraries(${target} PUBLIC unimem_${lower})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY UNIMEM_FOLDERS ${name})
endfunction()
