#include "process/segment.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

namespace unimem::detail {
namespace {

/// No holder changes the size, nor takes these back.
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void throw_out_of_memory(std::size_t bytes, std::string const& reason) {
  OutOfMemory::Facts facts;
  facts.where = "shared memory";
  facts.requested = bytes;
  facts.reason = reason;
  throw OutOfMemory(std::move(facts));
}

/// What the machine has left, by its own estimate; SIZE_MAX where it does not say.
std::size_t available_bytes() {
  std::ifstream counts("/proc/meminfo");
  for (std::string line; std::getline(counts, line);) {
    std::size_t kilobytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %zu kB", &kilobytes) == 1) return kilobytes * 1024;
  }
  return SIZE_MAX;
}

UniqueFd make_file(std::string const& name) {
  // MFD_NOEXEC_SEAL of Linux 6.3: older kernels do not know it; later ones complain of its absence.
  constexpr unsigned no_exec_seal = 8;
  constexpr unsigned always = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd made{::memfd_create(name.c_str(), always | no_exec_seal)};
  if (!made && errno == EINVAL) made = UniqueFd{::memfd_create(name.c_str(), always)};
  if (made) return made;
  if (errno == ENOSYS) throw UnsupportedOperation("shared memory", "this system", "its kernel knows no memfd_create");
  throw IoError("memfd:" + name, errno, "cannot make shared memory");
}

/// The system would not refuse: it takes page after page, and ends processes when there is none left.
void require_available(std::size_t bytes, ContainerLimit const& container) {
  if (auto const available = available_bytes(); bytes > available) {
    throw_out_of_memory(bytes, fmt::format("the machine has {} bytes left", available));
  }
  auto const standing = container.exists() ? container.tightest() : std::nullopt;
  // With what the kernel needs to find the pages of a file by.
  if (!standing || bytes + bytes / 256 <= standing->room()) return;
  OutOfMemory::Facts facts;
  facts.where = "shared memory";
  facts.requested = bytes;
  facts.limit = standing->limit;
  facts.live = standing->used;
  facts.device_free = facts.largest_free = standing->room();
  facts.reason = fmt::format("{} leaves {}", standing->text(), format_size(standing->room()));
  throw OutOfMemory(std::move(facts));
}

void seal(UniqueFd const& file, std::string const& name) {
  if (::fcntl(file.get(), F_ADD_SEALS, seals) != 0) throw IoError("memfd:" + name, errno, "cannot seal shared memory");
}

}  // namespace

Segment Segment::make(std::string const& name, std::size_t bytes, ContainerLimit const& container) {
  require_available(bytes, container);
  auto file = make_file(name);
  int failed = 0;
  do {
    failed = ::posix_fallocate(file.get(), 0, static_cast<::off_t>(bytes));
  } while (failed == EINTR);
  if (failed != 0) throw_out_of_memory(bytes, fmt::format("posix_fallocate of a memfd: {}", std::strerror(failed)));
  seal(file, name);
  return {std::move(file), bytes, "memfd:" + name};
}

Segment Segment::make_copy(std::string const& name, std::span<const std::byte> contents,
                           ContainerLimit const& container) {
  require_available(contents.size(), container);
  auto file = make_file(name);
  for (auto left = contents; !left.empty();) {
    auto const written = ::write(file.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      throw_out_of_memory(contents.size(), fmt::format("write to a memfd: {}", std::strerror(errno)));
    }
    left = left.subspan(static_cast<std::size_t>(written));
  }
  seal(file, name);
  return {std::move(file), contents.size(), "memfd:" + name};
}

Segment Segment::adopt(UniqueFd descriptor, std::size_t bytes, std::string const& from) {
  // A file that can shrink would end this process by SIGBUS at its maker's will.
  auto const found = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (found < 0) throw IoError(from, errno, "sent no shared memory");
  if ((found & seals) != seals) {
    throw IoError(from, EPERM, fmt::format("sent shared memory whose size is not sealed (seals {:#x})", found));
  }
  struct ::stat status{};
  if (::fstat(descriptor.get(), &status) != 0) throw IoError(from, errno, "sent no shared memory");
  if (static_cast<std::size_t>(status.st_size) != bytes) {
    throw IoError(from, EINVAL, fmt::format("sent shared memory of {} bytes, not {}", status.st_size, bytes));
  }
  return {std::move(descriptor), bytes, from};
}

Segment::Segment(UniqueFd descriptor, std::size_t bytes, std::string const& name)
    : descriptor_(std::move(descriptor)), bytes_(bytes) {
  auto* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(), 0);
  if (at == MAP_FAILED) {
    if (errno == EPERM || errno == EACCES) throw IoError(name, errno, "cannot map shared memory to write");
    throw_out_of_memory(bytes, fmt::format("mmap of {}: {}", name, std::strerror(errno)));
  }
  data_ = static_cast<std::byte*>(at);
}

Segment::Segment(Segment&& other) noexcept
    : descriptor_(std::move(other.descriptor_)), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Segment::~Segment() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace unimem::detail
