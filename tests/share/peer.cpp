#include "share/peer_commands.hpp"

#include <iostream>
#include <string>

// Another process that tests share buffers with.

int main() {
  unimem::testing::PeerCommands peer;
  for (std::string line; std::getline(std::cin, line);) std::cout << peer.answer(line) << std::endl;  // NOLINT
}
