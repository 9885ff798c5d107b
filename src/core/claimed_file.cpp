#include "core/claimed_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <system_error>
#include <tuple>
#include <utility>

namespace unimem::detail {
namespace {

constexpr auto irregular = "not a regular file";

std::string reason_of(int code) {
  if (code == ELOOP) return "a symbolic link, which is not followed";
  if (code == ENXIO) return irregular;  // a pipe without a reader, or a socket
  return std::generic_category().message(code);
}

/// When this process began to use the library.
::timespec const& beginning() noexcept {
  static ::timespec const moment = [] {
    ::timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return now;
  }();
  return moment;
}

[[maybe_unused]] auto const& begun = beginning();

/// The whole file, as a lock of fcntl(2). Such locks guard nothing here, since closing any other descriptor of the file
/// gives them up; but the system knows whose they are.
struct ::flock whole_file() noexcept {
  struct ::flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

std::string taken_by(int file) {
  auto lock = whole_file();
  bool const known = ::fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid > 0;
  auto const who = known ? fmt::format("process {} writes it", lock.l_pid) : std::string("it is being written already");
  return who + " (%p in the name gives each process its own)";
}

/// Why a file that is locked is not to be written to.
std::string objection_to(int file) {
  struct ::stat status{};
  if (::fstat(file, &status) != 0) return reason_of(errno);
  if (status.st_uid != ::geteuid()) return fmt::format("it belongs to another user ({})", status.st_uid);
  if (status.st_nlink > 1) return "it has other names";
  auto const& written = status.st_mtim;
  bool const since = std::tie(written.tv_sec, written.tv_nsec) > std::tie(beginning().tv_sec, beginning().tv_nsec);
  if (status.st_size > 0 && since) {
    return "another process has written it since this one began (%p in the name gives each process its own)";
  }
  return {};
}

}  // namespace

std::string name_for_process(std::string_view pattern) {
  std::string name(pattern);
  auto const id = std::to_string(::getpid());
  for (std::size_t at = 0; (at = name.find("%p", at)) != std::string::npos; at += id.size()) name.replace(at, 2, id);
  return name;
}

ClaimedFile claim_file(std::string const& path) {
  constexpr int how = O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  UniqueFd file{::open(path.c_str(), how, 0600)};
  if (!file) return {{}, reason_of(errno)};
  struct ::stat status{};
  if (::fstat(file.get(), &status) != 0) return {{}, reason_of(errno)};
  if (!S_ISREG(status.st_mode)) return {{}, irregular};
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    return {{}, errno == EWOULDBLOCK ? taken_by(file.get()) : "it cannot be locked: " + reason_of(errno)};
  }
  if (auto objection = objection_to(file.get()); !objection.empty()) return {{}, std::move(objection)};
  if (::fchmod(file.get(), 0600) != 0 || ::ftruncate(file.get(), 0) != 0) return {{}, reason_of(errno)};
  auto named = whole_file();
  static_cast<void>(::fcntl(file.get(), F_SETLK, &named));  // where that is refused, no holder is named
  return {std::move(file), {}};
}

}  // namespace unimem::detail
