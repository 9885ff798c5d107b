#include <unimem/core/error.hpp>

#include "core/unique_fd.hpp"
#include "process/shared_ranges.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

// Which processes live, by the system's word.

namespace unimem::detail {
namespace {

struct Status {
  char state = 0;
  long threads = 0;
  std::uint64_t started = 0;
};

/// Nothing: there is no such process. Throws IoError where the system does not say.
std::optional<Status> status_of(std::string const& process) {
  auto const path = fmt::format("/proc/{}/stat", process);
  constexpr auto cannot = "cannot see whether a process lives";
  UniqueFd const file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file && errno != ENOENT && errno != ESRCH) throw IoError(path, errno, cannot);
  if (!file) return std::nullopt;
  std::array<char, 2'048> text{};
  auto const got = ::read(file.get(), text.data(), text.size());
  if (got < 0 && errno != ESRCH) throw IoError(path, errno, cannot);
  if (got <= 0) return std::nullopt;
  std::string_view const line(text.data(), static_cast<std::size_t>(got));
  // "pid (name) state …", and the name may hold anything, ") R 1" too.
  auto const behind_name = line.rfind(')');
  if (behind_name == std::string_view::npos) throw IoError(path, EPROTO, cannot);
  std::istringstream fields{std::string(line.substr(behind_name + 1))};
  Status found;
  std::string skipped;
  fields >> found.state;
  for (int field = 4; field < 20; ++field) fields >> skipped;
  fields >> found.threads >> skipped >> found.started;
  if (!fields) throw IoError(path, EPROTO, cannot);
  return found;
}

}  // namespace

SharedRanges::Process SharedRanges::this_process() {
  auto const status = status_of("self");
  if (!status) throw IoError("/proc/self/stat", ENOENT, "cannot see when this process began");
  return {static_cast<std::uint32_t>(::getpid()), status->started};
}

std::optional<SharedRanges::Process> SharedRanges::process(std::uint32_t pid) {
  auto const status = status_of(std::to_string(pid));
  if (!status) return std::nullopt;
  Process const found{pid, status->started};
  return is_alive(found) ? std::optional{found} : std::nullopt;
}

bool SharedRanges::is_alive(Process process) {
  // Asks without a descriptor, where the answer is no. A zombie is there; so is another user's process.
  if (process.pid == 0 || (::kill(static_cast<::pid_t>(process.pid), 0) != 0 && errno == ESRCH)) return false;
  auto const status = status_of(std::to_string(process.pid));
  if (!status || status->started != process.started || status->state == 'X') return false;
  // A process whose first thread alone has ended is shown as a zombie, too.
  return status->state != 'Z' || status->threads > 1;
}

}  // namespace unimem::detail
