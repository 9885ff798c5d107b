#pragma once

#include <unimem/device/memory.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace unimem::detail {

/// The bytes of one buffer in a file, as memory of the file device (`FileDevice`), with this for an object: a file of
/// the library's (`SpillFile`), or the user's (`BackingFile`). Copies keep it until they have ended.
///
/// Reads and writes may come from several threads at once.
class FileMemory : public std::enable_shared_from_this<FileMemory> {
 public:
  /// A number of events and of the bytes they moved. Relaxed: nothing else is published through them.
  struct Moved {
    void add(std::size_t moved) noexcept {
      times.fetch_add(1, std::memory_order_relaxed);
      bytes.fetch_add(moved, std::memory_order_relaxed);
    }
    void remove(std::size_t moved) noexcept {
      times.fetch_sub(1, std::memory_order_relaxed);
      bytes.fetch_sub(moved, std::memory_order_relaxed);
    }
    std::atomic<std::uint64_t> times{0};
    std::atomic<std::size_t> bytes{0};
  };

  explicit FileMemory(std::size_t bytes) noexcept : bytes_(bytes) {}
  FileMemory(FileMemory const&) = delete;
  FileMemory& operator=(FileMemory const&) = delete;
  virtual ~FileMemory() = default;

  [[nodiscard]] DeviceMemory memory() const noexcept { return {reinterpret_cast<std::uintptr_t>(this), 0, bytes_}; }
  [[nodiscard]] static std::shared_ptr<FileMemory> of(DeviceMemory memory) {
    return reinterpret_cast<FileMemory*>(memory.object)->shared_from_this();
  }

  /// Puts `bytes` there. Throws IoError; what is there then is undefined.
  virtual void put(std::size_t offset, std::span<const std::byte> bytes) const = 0;
  /// Reads those from `offset` on that fill `target`. Throws IoError; they are still there then.
  virtual void get(std::size_t offset, std::span<std::byte> target) const = 0;
  /// The same for callers without memory for all of them.
  virtual void get_directly(std::size_t offset, std::span<std::byte> target) const = 0;

 protected:
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::size_t bytes_;
};

}  // namespace unimem::detail
