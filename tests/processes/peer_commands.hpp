#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unimem::testing {

/// What a process does with buffers that it shares, as it is told, line by line: "COMMAND ARGUMENT…". Each is answered
/// with one line, "ok …" or "error TYPE MESSAGE".
///
/// A process has two buffers, of which commands mean the first; the second where "@1 " stands before them.
class PeerCommands {
 public:
  PeerCommands();
  ~PeerCommands();
  PeerCommands(PeerCommands const&) = delete;
  PeerCommands& operator=(PeerCommands const&) = delete;

  [[nodiscard]] std::string answer(std::string const& line);

 private:
  class Process;
  std::unique_ptr<Process> process_;
};

/// The byte at an index of what "pattern" commands write, by their seed.
[[nodiscard]] constexpr std::uint8_t pattern_byte(std::uint32_t seed, std::size_t index) noexcept {
  auto mixed = (seed * 0x9e3779b1U) ^ (static_cast<std::uint32_t>(index) * 0x85ebca6bU);
  mixed ^= mixed >> 15U;
  mixed *= 0x2c1b3c6dU;
  return static_cast<std::uint8_t>(mixed >> 24U);
}

[[nodiscard]] std::vector<std::uint8_t> pattern_of(std::size_t count, std::uint32_t seed);

/// How commands tell of bytes: a few as they are, in hexadecimal digits, more by a sum and their count.
[[nodiscard]] std::string told(std::span<std::uint8_t const> bytes);

}  // namespace unimem::testing
