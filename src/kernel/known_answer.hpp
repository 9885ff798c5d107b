#pragma once

#include <unimem/device/detail/value_type.hpp>
#include <unimem/device/device.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/disk_cache.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace unimem::detail {

/// One argument of a run whose answer is known.
struct KnownArgument {
  enum class Role : std::uint8_t { input, output, in_place, scalar };

  Role role = Role::scalar;
  ValueType value{};               ///< of an element, or of the scalar
  std::vector<std::byte> bytes{};  ///< before the run

  template <class T>
  [[nodiscard]] static KnownArgument scalar(T value) {
    return {Role::scalar, value_type_of<T>(), bytes_of(std::span{&value, 1})};
  }
  template <class T>
  [[nodiscard]] static KnownArgument memory(Role role, std::span<const T> elements) {
    return {role, value_type_of<T>(), bytes_of(elements)};
  }
  /// `count` elements of a pattern that no item leaves in place without being noticed.
  template <class T>
  [[nodiscard]] static KnownArgument output(std::size_t count) {
    return {Role::output, value_type_of<T>(), std::vector<std::byte>(count * sizeof(T), std::byte{0xA5})};
  }

 private:
  template <class T>
  [[nodiscard]] static std::vector<std::byte> bytes_of(std::span<T> values) {
    auto const bytes = std::as_bytes(values);
    return {bytes.begin(), bytes.end()};
  }
};

/// One small run of a kernel.
struct KnownRun {
  std::size_t items = 0;
  std::size_t bytes = 0;                                  ///< of memory that the arguments take
  std::function<std::vector<KnownArgument>()> arguments;  ///< made only where the run is needed
};

/// What a kernel must compute before it is trusted with data: in each of these runs on a device that compiles its
/// source exactly what its host form computes, every NaN being as good as another.
struct KnownAnswer {
  Kernel kernel;  ///< with both forms
  std::vector<KnownRun> runs;
};

/// Which kernels have been seen to compute what they should, in this process, and on disk by earlier ones: drivers
/// miscompile in silence (docs/drivers.md). An answer counts for the source, the version of the library, and the
/// device, driver and compiler by the names and versions they give. Wrong answers are not kept: each is found again.
///
/// Thread-safe. No lock is held while a kernel runs: threads that come at once each run it, which is harmless.
class KnownAnswers {
 public:
  /// `directory`: where the answers are kept; empty: in this process alone.
  explicit KnownAnswers(std::filesystem::path directory);

  /// Runs the kernel on `device`, which compiles source, with memory of `location` from `manager`, unless its answer
  /// is known to be right. What is copied for that is counted by the device, and by nothing else. Throws KernelError,
  /// naming device, driver and compiler, if the answer is wrong, and what compiling, memory and the device throw.
  void check(KnownAnswer const& answer, Device& device, MemoryManager& manager, Location location);

 private:
  [[nodiscard]] bool is_known(std::string const& key);
  void remember(std::string key);

  DiskCache const cache_;
  std::mutex mutex_;
  std::set<std::string> right_;  ///< keys
};

}  // namespace unimem::detail
