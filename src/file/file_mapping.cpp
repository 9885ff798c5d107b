#include "file/file_mapping.hpp"

#include <unimem/core/error.hpp>

#include "core/system_page.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace unimem::detail {
namespace {

std::byte* map_pages(File const& file, std::uint64_t offset, std::size_t bytes) {
  auto* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.descriptor(), static_cast<::off_t>(offset));
  if (at != MAP_FAILED) return static_cast<std::byte*>(at);
  auto const why = errno;
  if (why == ENODEV || why == EOPNOTSUPP) {
    throw UnsupportedOperation("mapping", fmt::format("'{}'", file.name()),
                               fmt::format("its file system maps no files: {}", std::strerror(why)));
  }
  if (why != ENOMEM) throw IoError(file.name(), why, "cannot map");
  OutOfMemory::Facts facts;
  facts.where = "host address space";
  facts.requested = bytes;
  facts.reason = fmt::format("mmap of '{}': {}", file.name(), std::strerror(why));
  throw OutOfMemory(std::move(facts));
}

}  // namespace

FileMapping::FileMapping(std::shared_ptr<File const> file, std::uint64_t offset, std::size_t bytes)
    : file_(std::move(file)),
      offset_(offset),
      skew_(static_cast<std::size_t>(offset % system_page_bytes())),
      mapped_(skew_ + bytes),
      base_(map_pages(*file_, offset - skew_, mapped_)) {
  try {
    auto const whole_pages = (mapped_ + system_page_bytes() - 1) / system_page_bytes() * system_page_bytes();
    guard_.emplace(base_, whole_pages, GuardedRegion::Source{file_->descriptor(), offset - skew_});
  } catch (...) {
    ::munmap(base_, mapped_);
    throw;
  }
}

FileMapping::~FileMapping() {
  guard_.reset();  // first: once unmapped, the addresses may be reused
  ::munmap(base_, mapped_);
}

void FileMapping::check(ByteRange range) const {
  if (range.empty()) return;
  auto const begin = offset_ + range.begin, end = offset_ + range.end;
  auto const size = static_cast<std::uint64_t>(file_->status("looking at a mapped file").st_size);
  if (size < end) {
    throw IoError(
        file_->name(), EIO,
        fmt::format("reading bytes [{}, {}) in place, since it has become shorter: it ends at {}", begin, end, size));
  }
  auto const missing = guard_->missing();
  if (!missing.meets({skew_ + range.begin, skew_ + range.end})) return;
  auto const first = offset_ - skew_;
  throw IoError(file_->name(), EIO,
                fmt::format("reading bytes [{}, {}) in place: between {} and {} there were none to be had when they "
                            "were touched, and they read 0xCD since",
                            begin, end, first + missing.begin, first + missing.end));
}

void FileMapping::will_need(ByteRange range) const noexcept {
  auto const first = (skew_ + range.begin) / system_page_bytes() * system_page_bytes();
  if (!range.empty()) ::madvise(base_ + first, skew_ + range.end - first, MADV_WILLNEED);
}

}  // namespace unimem::detail
