#include <unimem/stream/file_buffer.hpp>

#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "core/system_page.hpp"
#include "file/file.hpp"
#include "manager/backing_file.hpp"
#include "stream/backed_core.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <memory>
#include <utility>

namespace unimem::detail {
namespace {

std::size_t bytes_wanted(File const& file, std::size_t element_bytes, FileOptions const& options) {
  auto const size = file.size("cannot look at it");
  if (options.offset > size) {
    throw InvalidArgument("offset", fmt::format("{}", options.offset),
                          fmt::format("at most the {} bytes of '{}'", size, file.name()));
  }
  auto const left = size - options.offset;
  if (element_bytes == 0) throw InvalidArgument("element", "0 bytes", "at least one byte");
  if (options.count) {
    auto const bytes = checked_multiply(*options.count, element_bytes, "count");
    if (bytes <= left) return bytes;
    throw InvalidArgument(
        "count", fmt::format("{} elements of {} bytes", *options.count, element_bytes),
        fmt::format("at most the {} bytes that '{}' has from byte {} on", left, file.name(), options.offset));
  }
  if (left % element_bytes == 0) return left;
  throw IoError(file.name(), 0,
                fmt::format("its {} bytes from byte {} on are no multiple of an element's {}", left, options.offset,
                            element_bytes));
}

/// What can be looked at where it lies: elements are aligned there as they are in the file, and nothing is written.
void check_mapped(std::uint64_t offset, std::size_t alignment, FileMode mode) {
  if (mode != FileMode::read) {
    throw InvalidArgument("access", "FileAccess::mapped with a mode that writes",
                          "FileMode::read: the system would write a changed page to the file at any moment, torn");
  }
  auto const page = system_page_bytes();
  if (alignment > page) {
    throw InvalidArgument("access",
                          fmt::format("FileAccess::mapped of elements that are aligned to {} bytes", alignment),
                          fmt::format("elements that are aligned to a page, of {} bytes, at most", page));
  }
  if (offset % alignment == 0) return;
  throw InvalidArgument("offset", fmt::format("{}", offset),
                        fmt::format("a multiple of {}, as elements are aligned, with FileAccess::mapped", alignment));
}

}  // namespace

std::shared_ptr<BufferCore> buffer_core_from_file(std::filesystem::path const& path, std::size_t element_bytes,
                                                  std::size_t alignment, FileOptions const& options,
                                                  std::string_view dtype) {
  bool const writes = options.mode == FileMode::read_write;
  auto file = File::open_regular(path.string(), writes ? O_RDWR : O_RDONLY,
                                 writes ? "cannot open for reading and writing" : "cannot open for reading");
  auto const bytes = bytes_wanted(file, element_bytes, options);
  return make_backed_core(std::make_shared<File const>(std::move(file)), {options.offset, bytes}, alignment, options,
                          path.filename().string(), {std::string(dtype), element_bytes, {bytes / element_bytes}});
}

std::shared_ptr<BufferCore> make_backed_core(std::shared_ptr<File const> file, BackingFile::Part part,
                                             std::size_t alignment, FileOptions const& options, std::string const& name,
                                             BufferElements elements) {
  if (options.access == FileAccess::mapped) check_mapped(part.offset, alignment, options.mode);
  BufferOptions made;
  made.manager = options.manager;
  made.device = options.device;
  made.name = options.name.empty() ? name : options.name;
  made.name_use = options.name.empty() ? NameUse::place : NameUse::saving;
  made.elements = std::make_shared<BufferElements const>(std::move(elements));
  auto& manager = options.manager != nullptr ? *options.manager : default_manager();
  return BufferCore::make(std::move(made), std::make_shared<BackingFile>(std::move(file), options.mode, part,
                                                                         manager.file_traffic(), options.access));
}

}  // namespace unimem::detail
