# Installs into one prefix and moves it to another: what is tested next must not remember the first.
include("${CMAKE_CURRENT_LIST_DIR}/checked.cmake")

file(REMOVE_RECURSE "${SCRATCH}")
checked("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${SCRATCH}/first")
file(RENAME "${SCRATCH}/first" "${PREFIX}")

file(GLOB_RECURSE texts "${PREFIX}/*.cmake" "${PREFIX}/*.pc" "${PREFIX}/*.hpp")
foreach(text IN LISTS texts)
  file(STRINGS "${text}" lines REGEX "${SCRATCH}|${BUILD}/")
  if(lines)
    message(FATAL_ERROR "${text} remembers where it was built or installed:\n${lines}")
  endif()
endforeach()
