#pragma once

#include <unimem/core/byte_ranges.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {
class Device;
}  // namespace unimem

namespace unimem::detail {

/// What one buffer had on one device when it was put to sleep.
struct SleepingPart {
  std::uint64_t buffer = 0;  ///< its id
  Device* device = nullptr;
  ByteRanges current;     ///< the bytes that were up to date there
  std::size_t bytes = 0;  ///< of memory
};

/// Whether the tag names the buffer: it is the buffer's name, or that goes on behind it with a '/' or a '.'. The empty
/// one names all.
[[nodiscard]] bool tag_covers(std::string_view tag, std::string_view name) noexcept;

/// What of a manager's sleeps, by tag. A tag is in it from when its sleep begins to when its waking has ended.
///
/// Thread-safe.
class SleepBook {
 public:
  /// A sleep begins. Throws InvalidArgument if the tag sleeps already, or one that covers it or that it covers.
  void begin(std::string const& tag);
  /// It is asleep.
  void keep(std::string const& tag, std::vector<SleepingPart> parts) noexcept;
  /// It is not, after all or any more.
  void forget(std::string const& tag) noexcept;
  /// A waking begins: what is to come back. Throws NotFound, which lists what sleeps; InvalidArgument while another
  /// thread puts it to sleep or wakes it.
  [[nodiscard]] std::vector<SleepingPart> take(std::string const& tag);

 private:
  struct Sleep {
    bool changing = true;  ///< a thread is at it
    std::vector<SleepingPart> parts;
  };

  std::mutex mutex_;
  std::map<std::string, Sleep> sleeps_;
};

}  // namespace unimem::detail
