#include "stream/pipe_input.hpp"

#include <unimem/core/error.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace unimem::detail {

bool PipeInput::is_at(std::filesystem::path const& path) noexcept {
  struct ::stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISFIFO(status.st_mode);
}

// O_NONBLOCK: opening a pipe waits for a writer otherwise, and could not be told to stop.
PipeInput::PipeInput(std::filesystem::path const& path)
    : path_(path.string()), descriptor_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (!descriptor_) throw IoError(path_, errno, "cannot open for reading");
}

std::size_t PipeInput::read(std::span<std::byte> to, Retries& retries, std::function<bool()> const& stop) {
  constexpr int wait_ms = 100;
  std::size_t done = 0;
  Attempts attempts;
  while (done < to.size() && !stop()) {
    // Before a first writer a read says that the pipe is at its end; `poll` waits for one.
    ::pollfd ready{descriptor_.get(), POLLIN, 0};
    auto const events = ::poll(&ready, 1, wait_ms);
    if (events == 0 || (events < 0 && errno == EINTR)) continue;
    if (events < 0) throw IoError(path_, errno, "cannot wait for it");
    auto const count = ::read(descriptor_.get(), to.data() + done, to.size() - done);
    if (count == 0) break;
    if (count > 0) {
      done += static_cast<std::size_t>(count);
      attempts.came(false, &retries);
    } else if (auto const error = errno; error != EAGAIN && !attempts.again(error, &retries)) {
      throw IoError(path_, error, "cannot read");
    }
  }
  return done;
}

}  // namespace unimem::detail
