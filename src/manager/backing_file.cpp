#include "manager/backing_file.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include "manager/read_way.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

namespace unimem::detail {
namespace {

/// Whether the page cache may keep so much.
bool has_room(std::size_t bytes) {
  return bytes <= device("cpu").memory_info().free_bytes;
}

}  // namespace

BackingFile::BackingFile(std::shared_ptr<File const> file, FileMode mode, Part part,
                         std::shared_ptr<FileTraffic> traffic, FileAccess access)
    : FileMemory(part.bytes),
      file_(std::move(file)),
      reader_(*file_, read_way(access)),
      before_(reader_.way() == ReadWay::by_residency ? part.bytes : 0),
      mode_(mode),
      mapped_(access == FileAccess::mapped),
      offset_(part.offset),
      traffic_(std::move(traffic)) {
  if (mapped_ && part.bytes != 0) FileMapping const can_be(file_, offset_, 1);
  if (!mapped_) traffic_->any.store(true, std::memory_order_relaxed);
}

std::shared_ptr<FileMapping const> BackingFile::map() const {
  struct Counted {
    Counted(BackingFile const& of, std::shared_ptr<FileTraffic> in)
        : mapping(of.file_, of.offset_, of.bytes()), traffic(std::move(in)) {
      traffic->mapped.fetch_add(mapping.bytes(), std::memory_order_relaxed);
    }
    Counted(Counted const&) = delete;
    Counted& operator=(Counted const&) = delete;
    ~Counted() { traffic->mapped.fetch_sub(mapping.bytes(), std::memory_order_relaxed); }

    FileMapping mapping;
    std::shared_ptr<FileTraffic> traffic;
  };
  auto counted = std::make_shared<Counted const>(*this, traffic_);
  return {counted, &counted->mapping};
}

void BackingFile::put(std::size_t offset, std::span<const std::byte> bytes) const {
  constexpr auto doing = "writing what a buffer has newer than the file";
  auto const begin = offset_ + offset;
  // Behind the end of a file that has become shorter it would leave a hole, whose zeros would be read as data.
  if (auto const end = static_cast<std::uint64_t>(file_->status(doing).st_size); begin > end) {
    throw IoError(file_->name(), EIO,
                  fmt::format("{}, bytes [{}, {}): it has become shorter, and ends at {}", doing, begin,
                              begin + bytes.size(), end));
  }
  file_->write(begin, bytes, doing);
  traffic_->written.add(bytes.size());
}

void BackingFile::get(std::size_t offset, std::span<std::byte> target) const {
  auto const begin = offset_ + offset;
  bool const again = reader_.way() == ReadWay::by_residency && before_.note(offset, target.size()) &&
                     target.size() >= FileReader::least_direct && has_room(bytes());
  auto const count = reader_.read(*file_, begin, target, {.doing = "reading bytes of a buffer", .comes_again = again});
  if (count.bytes != target.size()) {
    throw IoError(file_->name(), EIO,
                  fmt::format("reading bytes [{}, {}), since it has become shorter: it ends at {}", begin,
                              begin + target.size(), begin + count.bytes));
  }
  traffic_->read.add(target.size());
  traffic_->direct.fetch_add(count.direct, std::memory_order_relaxed);
  traffic_->by_ring.fetch_add(count.by_ring, std::memory_order_relaxed);
}

void BackingFile::sync() const {
  file_->sync("flushing a buffer to the file");
}

}  // namespace unimem::detail
