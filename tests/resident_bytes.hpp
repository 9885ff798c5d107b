#pragma once

#include <cstddef>
#include <fstream>
#include <limits>
#include <string>

namespace unimem::testing {

/// The physical memory that this process has. Counted by the system in kibibytes: its count of pages is of the
/// machine's, whose size an emulated processor's need not be.
inline std::size_t resident_bytes() {
  std::ifstream status{"/proc/self/status"};
  std::string name;
  while (status >> name && name != "VmRSS:") status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  std::size_t kibibytes = 0;
  status >> kibibytes;
  return kibibytes * 1'024;
}

}  // namespace unimem::testing
