#pragma once

#include <unimem/buffer/detail/dtype.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/export.hpp>
#include <unimem/manager/file_access.hpp>
#include <unimem/manager/file_mode.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>

namespace unimem {

/// How a buffer is made from a file.
struct FileOptions {
  FileMode mode = FileMode::read;
  std::uint64_t offset = 0;                   ///< bytes before the first element; above 4 GiB too
  std::optional<std::size_t> count{};         ///< of elements; none: all there are from `offset` on
  FileAccess access = FileAccess::automatic;  ///< the way its bytes come
  MemoryManager* manager = nullptr;           ///< where memory comes from; null: default_manager()
  Device* device = nullptr;                   ///< the device used when none is named; null: default_device()
  std::string name{};                         ///< of the buffer; none: the file's, which `save` does not know it by
};

namespace detail {
[[nodiscard]] UNIMEM_API std::shared_ptr<BufferCore> buffer_core_from_file(std::filesystem::path const& path,
                                                                           std::size_t element_bytes,
                                                                           std::size_t alignment,
                                                                           FileOptions const& options,
                                                                           std::string_view dtype = {});
}  // namespace detail

/// A buffer whose first valid copy is a file of the user's. Nothing is read before its bytes are looked at, and no more
/// than the ranges that are; they come to the host or to devices as from any other place. The file stays open, and has
/// the size that it had: a read beyond where it ends by then is IoError with the range, and nothing else of the buffer
/// is lost.
///
/// On the host its memory comes in parts, so that a buffer may be larger than the host's limit
/// (`MemoryManager::set_limit`): parts that are not leased, mapped or given away by address (`host`, `host_view`) make
/// room for others, the one first that will be used last by its history. What the file has as well goes without being
/// written; what is newer goes to the file (FileMode::read_write) or to the manager's folder to spill to
/// (FileMode::copy_on_write; without one it stays).
///
/// FileMode::read: all that writes is UnsupportedOperation. FileMode::read_write: `flush` writes to the file what is
/// newer than there, and the buffer's end does, without waiting; the process's end waits for that. `free`, `reset` and
/// `discard` forget what the file does not have. `resize` is UnsupportedOperation.
///
/// By default bytes come past the page cache where it does not have them (FileAccess; statistics tell how many). What
/// the buffer has written to the file is read back whichever way.
///
/// FileAccess::mapped, with FileMode::read alone: the host, and devices that work in its memory, look at the file's own
/// pages in the system's cache. Nothing is copied for them, no limit counts them, and they are mapped at the first
/// look, all of the file at once; a device with memory of its own reads the file. Elements are aligned in memory as
/// they are in the file: `offset` is a multiple of that. A byte that the file no longer has, or that cannot be read,
/// reads 0xCD through an address that was given out, and the next access to it on the host is IoError with the range;
/// so it stays until `free` or `reset`. Writing to those addresses is SIGSEGV. (After numpy.memmap.) The library meets
/// SIGBUS there; a handler that is installed later has to pass on what is not its own.
///
/// Throws IoError: missing, not to be opened for that mode, not a regular file, or no multiple of the element's size;
/// InvalidArgument for an offset or count beyond the file's end, and for FileAccess::mapped in another mode or at an
/// offset that elements are not aligned at; UnsupportedOperation for FileAccess::direct where the file system has no
/// such reads, and for FileAccess::mapped where it maps no files.
/// (Behaviour after numpy.memmap.)
template <class T>
[[nodiscard]] UnifiedBuffer<T> from_file(std::filesystem::path const& path, FileOptions const& options = {}) {
  auto core = detail::buffer_core_from_file(path, sizeof(T), alignof(T), options, detail::dtype_of<T>());
  auto const count = core->size_bytes() / sizeof(T);
  return {Shape(count), std::move(core)};
}

}  // namespace unimem
