#pragma once

#include <string>
#include <vector>

namespace unimem::testing {

/// The command that starts a program of this build: its path, behind the words that start the emulator where the
/// program is built for another processor.
inline std::vector<std::string> command_of(std::string const& path) {
#ifdef UNIMEM_TEST_EMULATOR
  std::vector<std::string> words{UNIMEM_TEST_EMULATOR};
#else
  std::vector<std::string> words;
#endif
  words.push_back(path);
  return words;
}

}  // namespace unimem::testing
