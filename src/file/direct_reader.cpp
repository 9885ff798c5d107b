#include "file/direct_reader.hpp"

#include <unimem/core/error.hpp>

#include "file/request_ring.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace unimem::detail {
namespace {

/// Why a file is not read past the page cache: an errno, or words of our own.
struct Refusal {
  int code = 0;
  std::string reason{};
};

/// Fields that the structure has since Linux 6.1, and only newer C libraries name.
constexpr unsigned statx_dioalign = 0x2000;
constexpr std::size_t memory_align_at = 0x98, offset_align_at = 0x9c;

/// The alignment that the file system of `descriptor`'s file asks for; where it does not say, 4096, which every disk
/// takes.
std::variant<DirectAlignment, Refusal> alignment_of(int descriptor) {
  struct ::statfs system{};
  if (::fstatfs(descriptor, &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC)) {
    return Refusal{0, "its file system has no disk: all of it is in memory"};
  }
  struct ::statx status{};
  if (::statx(descriptor, "", AT_EMPTY_PATH, statx_dioalign, &status) != 0) return DirectAlignment{};
  if ((status.stx_mask & statx_dioalign) == 0) return DirectAlignment{};
  std::uint32_t memory = 0, offset = 0;
  std::memcpy(&memory, reinterpret_cast<std::byte const*>(&status) + memory_align_at, sizeof memory);
  std::memcpy(&offset, reinterpret_cast<std::byte const*>(&status) + offset_align_at, sizeof offset);
  if (memory == 0 || offset == 0) return Refusal{0, "its file system reads this file by way of the page cache alone"};
  return DirectAlignment{offset, memory};
}

std::variant<std::pair<File, DirectAlignment>, Refusal> opened(File const& file) {
  // Not by its name, which may be another file's by now.
  auto const self = fmt::format("/proc/self/fd/{}", file.descriptor());
  UniqueFd descriptor{::open(self.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)};
  if (!descriptor) return Refusal{errno};
  auto alignment = alignment_of(descriptor.get());
  if (auto* const refusal = std::get_if<Refusal>(&alignment)) return std::move(*refusal);
  return std::pair{File{std::move(descriptor), file.name()}, std::get<DirectAlignment>(alignment)};
}

/// One of the threads that stand in for a ring.
void read_blocks(int descriptor, BlockReads& reads) noexcept {
  BlockReads::Block block;
  while (reads.next(block)) {
    long result = 0;
    do {
      auto const count = ::pread(descriptor, block.memory + block.done, block.bytes - block.done,
                                 static_cast<::off_t>(block.offset + block.done));
      result = count < 0 ? -errno : static_cast<long>(count);
    } while (reads.take(block, result));
    reads.pass_on();
  }
}

/// Requests of as many threads as there is work for; fewer where the system gives no more.
void read_by_threads(int descriptor, BlockReads& reads, std::size_t bytes) {
  constexpr std::size_t most = 4;
  std::vector<std::jthread> others;
  try {
    others.reserve(most);
    for (std::size_t i = 1; i < most && i * BlockReads::block_bytes < bytes; ++i) {
      others.emplace_back([descriptor, &reads] { read_blocks(descriptor, reads); });
    }
  } catch (std::system_error const&) {  // NOLINT(bugprone-empty-catch): this thread alone does it, too
  } catch (std::bad_alloc const&) {     // NOLINT(bugprone-empty-catch)
  }
  read_blocks(descriptor, reads);
}

}  // namespace

DirectReader DirectReader::open(File const& file) {
  auto result = opened(file);
  if (auto* const made = std::get_if<std::pair<File, DirectAlignment>>(&result)) {
    return {std::move(made->first), made->second};
  }
  auto const& refusal = std::get<Refusal>(result);
  constexpr auto operation = "reading past the page cache (O_DIRECT)";
  if (refusal.code == EINVAL || refusal.code == EOPNOTSUPP) {
    throw UnsupportedOperation(operation, fmt::format("'{}'", file.name()), "its file system has no such reads");
  }
  if (refusal.code != 0) throw IoError(file.name(), refusal.code, "cannot open it past the page cache (O_DIRECT)");
  throw UnsupportedOperation(operation, fmt::format("'{}'", file.name()), refusal.reason);
}

std::optional<DirectReader> DirectReader::where_possible(File const& file) {
  auto result = opened(file);
  auto* const made = std::get_if<std::pair<File, DirectAlignment>>(&result);
  if (made == nullptr) return std::nullopt;
  return DirectReader{std::move(made->first), made->second};
}

DirectReader::Count DirectReader::read(std::uint64_t offset, std::span<std::byte> to, ReadTerms const& terms) const {
  if (to.empty()) return {};
  BlockReads reads(offset, to, alignment_, terms);
  Count count;
  count.by_ring = read_by_ring(file_.descriptor(), reads);
  if (!count.by_ring) read_by_threads(file_.descriptor(), reads, to.size());
  if (auto const& failure = reads.failure(); failure.code != 0) {
    auto const range = failure.bytes != 0 ? failure : BlockReads::Failure{failure.code, offset, to.size()};
    throw IoError(
        file_.name(), failure.code,
        fmt::format("{}, past the page cache: bytes [{}, {})", terms.doing, range.offset, range.offset + range.bytes));
  }
  count.bytes = reads.found();
  return count;
}

}  // namespace unimem::detail
