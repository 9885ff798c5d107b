# Toolchain of the preset aarch64: Debian's cross compiler, with the packages of arm64 that `./dev check --long` unpacks into
# build/aarch64-packages, and programs run by qemu.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)

get_filename_component(packages "${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-packages" ABSOLUTE)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH "${packages}" /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# What qemu loads programs with. UNIMEM_QEMU_PAGE_BYTES: the page size that programs see; nothing: this system's.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu -E "LD_LIBRARY_PATH=${packages}/usr/lib/aarch64-linux-gnu")
if(UNIMEM_QEMU_PAGE_BYTES)
  list(APPEND CMAKE_CROSSCOMPILING_EMULATOR -p ${UNIMEM_QEMU_PAGE_BYTES})
endif()
