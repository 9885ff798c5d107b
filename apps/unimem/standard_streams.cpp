#include "standard_streams.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>

namespace unimem::cli {
namespace {

/// Standard error as the process found it. Set before there is a second thread, and never changed again.
int error_descriptor = STDERR_FILENO;

/// 0, or what write() last failed with.
int write_all(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    auto const written = ::write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void occupy(int descriptor, int access) {
  if (::fcntl(descriptor, F_GETFD) != -1) return;
  // Lower descriptors are occupied already, so this one is the lowest free.
  if (::open("/dev/null", access) != descriptor) std::abort();
}

}  // namespace

void secure_standard_streams() {
  occupy(STDIN_FILENO, O_RDONLY);
  occupy(STDOUT_FILENO, O_RDONLY);
  occupy(STDERR_FILENO, O_WRONLY);
  if (int const copy = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1); copy != -1) error_descriptor = copy;
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void write_standard_output(std::string_view text) {
  if (auto const code = write_all(STDOUT_FILENO, text); code != 0) {
    throw IoError("standard output", code, "cannot be written");
  }
}

void complain(std::string_view text) noexcept {
  try {
    std::string line;
    for (char const c : text) {
      auto const byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte == 0x7f) {
        line += fmt::format("\\x{:02x}", byte);
      } else {
        line += c;
      }
    }
    line += '\n';
    static_cast<void>(write_all(error_descriptor, line));
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for a line; the exit code still tells
  }
}

void complain_verbatim(std::string_view text) noexcept {
  static_cast<void>(write_all(error_descriptor, text));
}

HeldStandardError::HeldStandardError() : held_(::memfd_create("standard error", MFD_CLOEXEC)) {
  if (held_ >= 0) ::dup2(held_, STDERR_FILENO);
}

HeldStandardError::~HeldStandardError() {
  if (held_ < 0) return;
  ::dup2(error_descriptor, STDERR_FILENO);
  try {
    complain_verbatim(take());
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for what a library says
  }
  ::close(held_);
}

std::string HeldStandardError::take() {
  std::string text;
  if (held_ < 0) return text;
  std::array<char, 4096> piece{};
  ssize_t count = 0;
  while ((count = ::pread(held_, piece.data(), piece.size(), static_cast<off_t>(text.size()))) > 0) {
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
  static_cast<void>(::ftruncate(held_, 0));
  ::lseek(held_, 0, SEEK_SET);
  return text;
}

bool standard_output_is_terminal() noexcept {
  return ::isatty(STDOUT_FILENO) == 1;
}
bool standard_error_is_terminal() noexcept {
  return ::isatty(STDERR_FILENO) == 1;
}

}  // namespace unimem::cli
