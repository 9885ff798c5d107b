#pragma once

#include "core/unique_fd.hpp"
#include "file/retries.hpp"

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace unimem::detail {

/// An open file that is read and written by offsets, and the name that errors give it. It knows nothing of what its
/// bytes are for.
///
/// Every function throws IoError with the name, the system's reason and `doing`, which says what for. Several threads
/// may use it at once; of overlapping writes at the same time either may win, byte by byte.
class File {
 public:
  File() = default;
  File(UniqueFd descriptor, std::string name) noexcept : descriptor_(std::move(descriptor)), name_(std::move(name)) {}

  /// `flags` as of open(2); O_CLOEXEC is added.
  [[nodiscard]] static File open(std::string name, int flags, std::string_view doing);
  /// The same of a regular file, which alone has a size beforehand and is read from any position: EISDIR for a folder,
  /// 0 for pipes, devices and the like, without waiting for what is at their other end.
  [[nodiscard]] static File open_regular(std::string name, int flags, std::string_view doing);
  /// A file in `folder` that has no name there, so that it goes with its last descriptor, however the process ends;
  /// nothing where the file system or the kernel knows no such files (O_TMPFILE). `name`: for errors.
  [[nodiscard]] static std::optional<File> unnamed(std::string const& folder, int flags, ::mode_t mode,
                                                   std::string name, std::string_view doing);

  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }
  [[nodiscard]] std::string const& name() const noexcept { return name_; }

  /// Reads what there is from `offset` on, `to` at most. Returns how many bytes that were: fewer only at the file's
  /// end. `retries`: for failures that may pass; null: all are thrown at once but
  /// EINTR and EAGAIN, by which the system asks for another call.
  [[nodiscard]] std::size_t read(std::uint64_t offset, std::span<std::byte> to, std::string_view doing,
                                 Retries* retries = nullptr) const;
  /// Writes all of `bytes` from `offset` on. Bytes beyond the process's limit for files are
  /// EFBIG, and no signal.
  void write(std::uint64_t offset, std::span<const std::byte> bytes, std::string_view doing) const;
  /// Has the system begin to write what is there, and does not wait for it, where the system can; `sync` then has less
  /// to wait for, and says what has gone wrong.
  void begin_to_sync(std::uint64_t offset, std::size_t bytes) const noexcept;
  /// Returns when the file system has said that it has every byte that was written. Some find out only now that they
  /// are full, or broken.
  void sync(std::string_view doing) const;
  [[nodiscard]] struct ::stat status(std::string_view doing) const;
  /// How many bytes it has, of a regular file. Throws IoError, too, where the system says none and there are some, as
  /// in /proc: the size is not known.
  [[nodiscard]] std::uint64_t size(std::string_view doing) const;

 private:
  UniqueFd descriptor_;
  std::string name_;
};

}  // namespace unimem::detail
