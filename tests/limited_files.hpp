#pragma once

#include <sys/resource.h>

#include <csignal>
#include <cstddef>

namespace unimem {

/// No file that this process or its children write becomes larger: writing beyond fails (EFBIG), as on a full disk.
inline void limit_files_to(std::size_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit const limit{bytes, bytes};
  setrlimit(RLIMIT_FSIZE, &limit);
}

}  // namespace unimem
