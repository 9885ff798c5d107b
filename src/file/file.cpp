#include "file/file.hpp"

#include <unimem/core/error.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace unimem::detail {
namespace {

/// How many bytes this process may write from `offset` on: to begin a write beyond its limit (`ulimit -f`) is to be
/// ended by SIGXFSZ.
std::size_t room_within_limit(std::uint64_t offset) noexcept {
  struct ::rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  return limit.rlim_cur - std::min<std::uint64_t>(offset, limit.rlim_cur);
}

/// The name in a sentence of a file that is neither a folder nor a regular file.
char const* kind_of(::mode_t mode) noexcept {
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISBLK(mode)) return "a block device";
  return "a character device, as terminals are";
}

}  // namespace

File File::open(std::string name, int flags, std::string_view doing) {
  UniqueFd descriptor{::open(name.c_str(), flags | O_CLOEXEC)};
  if (!descriptor) throw IoError(name, errno, std::string(doing));
  return {std::move(descriptor), std::move(name)};
}

// O_NONBLOCK: opening a pipe without a writer would wait for ever, only to be refused.
File File::open_regular(std::string name, int flags, std::string_view doing) {
  auto file = open(std::move(name), flags | O_NONBLOCK, doing);
  auto const mode = file.status("cannot look at it").st_mode;
  if (S_ISDIR(mode)) throw IoError(file.name(), EISDIR, "cannot read");
  if (S_ISREG(mode)) return file;
  throw IoError(
      file.name(), 0,
      fmt::format("not a regular file but {}: copy what it gives to a file first (cat > FILE)", kind_of(mode)));
}

std::optional<File> File::unnamed(std::string const& folder, int flags, ::mode_t mode, std::string name,
                                  std::string_view doing) {
  UniqueFd descriptor{::open(folder.c_str(), O_TMPFILE | flags | O_CLOEXEC, mode)};
  if (descriptor) return File{std::move(descriptor), std::move(name)};
  bool const unknown = errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL;
  if (!unknown) throw IoError(std::move(name), errno, std::string(doing));
  return std::nullopt;
}

std::size_t File::read(std::uint64_t offset, std::span<std::byte> to, std::string_view doing, Retries* retries) const {
  std::size_t done = 0;
  Attempts attempts;
  while (done < to.size()) {
    auto const count =
        ::pread(descriptor_.get(), to.data() + done, to.size() - done, static_cast<::off_t>(offset + done));
    if (count == 0) break;
    if (count > 0) {
      done += static_cast<std::size_t>(count);
      attempts.came(done < to.size(), retries);
    } else if (auto const error = errno; !attempts.again(error, retries)) {
      throw IoError(name_, error, std::string(doing));
    }
  }
  return done;
}

void File::write(std::uint64_t offset, std::span<const std::byte> bytes, std::string_view doing) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    auto const within = std::min(bytes.size() - done, room_within_limit(offset + done));
    if (within == 0) throw IoError(name_, EFBIG, std::string(doing));
    auto const count = ::pwrite(descriptor_.get(), bytes.data() + done, within, static_cast<::off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw IoError(name_, errno, std::string(doing));
    if (count == 0) throw IoError(name_, EIO, std::string(doing));  // it would say so for ever
    done += static_cast<std::size_t>(count);
  }
}

void File::begin_to_sync(std::uint64_t offset, std::size_t bytes) const noexcept {
#ifdef SYNC_FILE_RANGE_WRITE
  // Without waiting, the call tells no error that the file has met, and so takes none from `sync`.
  ::sync_file_range(descriptor_.get(), static_cast<::off_t>(offset), static_cast<::off_t>(bytes),
                    SYNC_FILE_RANGE_WRITE);
#endif
}

void File::sync(std::string_view doing) const {
  while (::fdatasync(descriptor_.get()) != 0) {
    if (errno == EINVAL || errno == ENOSYS) return;  // nothing to be synchronized with
    if (errno != EINTR) throw IoError(name_, errno, std::string(doing));
  }
}

struct ::stat File::status(std::string_view doing) const {
  struct ::stat status{};
  if (::fstat(descriptor_.get(), &status) != 0) throw IoError(name_, errno, std::string(doing));
  return status;
}

std::uint64_t File::size(std::string_view doing) const {
  auto const said = [&] { return static_cast<std::uint64_t>(status(doing).st_size); };
  if (auto const bytes = said(); bytes != 0) return bytes;
  std::array<std::byte, 1> first{};
  // Bytes that were appended since it was opened do not count.
  if (read(0, first, doing) != 0 && said() == 0) {
    throw IoError(name_, 0,
                  "its size is not known: the system says 0 bytes, and there are more; copy it to a file first");
  }
  return 0;
}

}  // namespace unimem::detail
