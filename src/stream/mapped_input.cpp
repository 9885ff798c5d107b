#include "stream/mapped_input.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "core/system_page.hpp"
#include "device/host_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace unimem::detail {
namespace {

#ifdef MADV_POPULATE_READ
constexpr int populate_read = MADV_POPULATE_READ;
#else
constexpr int populate_read = 22;  // Linux 5.14; older C libraries do not name it
#endif

/// Between two questions whether to stop: some milliseconds of a slow disk.
constexpr std::size_t populate_step = std::size_t{8} << 20;

/// Brings pages in with one call a step instead of a fault every 64 KiB, and before the threads that compute need them.
/// Returns false if the file has no such page. Kernels that cannot do it bring the pages in on touch.
bool populate(std::byte* begin, std::size_t bytes, std::function<bool()> const& stop) {
  for (std::size_t at = 0; at < bytes && !stop(); at += populate_step) {
    if (::madvise(begin + at, std::min(populate_step, bytes - at), populate_read) == 0) continue;
    if (errno == EFAULT) return false;
    return true;
  }
  return true;
}

}  // namespace

MappedInput::MappedInput(InputFile const& input, std::size_t windows, std::size_t window_bytes)
    : input_(input),
      page_bytes_(system_page_bytes()),
      // Where a file lies in memory in folios as large as a huge page, one entry of a page table maps it, if address
      // and position agree up to there: mapping a GiB takes 2 ms then, and 60 by small pages (Linux 6.18, ext4). A
      // chunk may begin anywhere in its first huge page.
      stride_(round_up(checked_add(window_bytes, huge_page_bytes, "chunk"), huge_page_bytes)),
      reserved_(checked_multiply(windows, stride_, "buffers")),
      base_(map_addresses(reserved_, huge_page_bytes, 0, PROT_NONE)) {
  if (base_ == nullptr) throw IoError(input_.path(), errno, "cannot map");
  try {
    guard_ = std::make_unique<GuardedRegion>(base_, reserved_);
  } catch (...) {
    ::munmap(base_, reserved_);
    throw;
  }
}

MappedInput::~MappedInput() {
  guard_.reset();  // first: once unmapped, the addresses may be reused
  ::munmap(base_, reserved_);
}

std::span<std::byte> MappedInput::open(std::size_t window, std::uint64_t offset, std::size_t bytes, Retries& retries,
                                       std::function<bool()> const& stop) {
  auto const position = input_.data_offset() + offset;
  auto const within = static_cast<std::size_t>(position % page_bytes_);
  auto* const at = address_of(window) + position % huge_page_bytes - within;
  auto* const mapped = ::mmap(at, within + bytes, PROT_READ, MAP_SHARED | MAP_FIXED, input_.descriptor(),
                              static_cast<::off_t>(position - within));
  if (mapped == MAP_FAILED) throw IoError(input_.path(), errno, "cannot map");
  auto const pages = round_up(within + bytes, page_bytes_);
  if (!populate(at, pages, stop)) {
    // A page that the disk did not give is as one that the file does not have: reading tells, and can be tried again.
    read_through(offset, bytes, retries);
    if (!populate(at, pages, stop)) input_.throw_shrunk();
  }
  return {at + within, bytes};
}

void MappedInput::read_through(std::uint64_t offset, std::size_t bytes, Retries& retries) const {
  constexpr std::size_t step = std::size_t{64} << 10;
  std::vector<std::byte> block(std::min(step, bytes));
  for (std::size_t at = 0; at < bytes; at += step) {
    input_.read(offset + at, std::span{block}.first(std::min(step, bytes - at)), {.doing = {}, .retries = &retries});
  }
}

void MappedInput::close(std::size_t window) {
  // Mapping nothing over it instead of unmapping: a gap could be taken by another mapping.
  auto* const gap =
      ::mmap(address_of(window), stride_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (gap == MAP_FAILED) throw IoError(input_.path(), errno, "cannot unmap");
}

void MappedInput::check() const {
  if (guard_->broken()) input_.throw_shrunk();
  input_.check_size();
}

}  // namespace unimem::detail
