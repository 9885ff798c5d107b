#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/detail/value_type.hpp>
#include <unimem/device/memory.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

/// How many work items make a group, whose items share memory and can wait for each other: what OpenCL calls a work
/// group, and CUDA a block. `GroupSize{n}` is one-dimensional.
struct GroupSize {
  std::size_t x = 1;
  std::size_t y = 1;
  std::size_t z = 1;

  /// x · y · z; throws InvalidArgument if that does not fit 64 bits.
  [[nodiscard]] UNIMEM_API std::size_t items() const;

  friend constexpr bool operator==(GroupSize, GroupSize) = default;
};

/// How many work items a kernel runs over, in up to three dimensions; `Range{n}` is one-dimensional. A kernel that asks
/// for its group runs in groups of the size it is told: `Range{1024, 1024}.group({16, 16})`.
struct Range {
  std::size_t x = 1;
  std::size_t y = 1;
  std::size_t z = 1;
  GroupSize group_size{0, 0, 0};  ///< all 0: the library chooses

  /// x · y · z; throws InvalidArgument if that does not fit 64 bits.
  [[nodiscard]] UNIMEM_API std::size_t items() const;

  [[nodiscard]] constexpr bool has_group() const noexcept { return group_size != GroupSize{0, 0, 0}; }
  /// The same items in groups of that size. Throws InvalidArgument where a dimension of it is 0, or does not divide the
  /// range's.
  [[nodiscard]] UNIMEM_API Range group(GroupSize size) const;
  /// How many groups there are in each dimension; of a range that has groups.
  [[nodiscard]] constexpr GroupSize groups() const noexcept {
    return {x / group_size.x, y / group_size.y, z / group_size.z};
  }

  friend constexpr bool operator==(Range, Range) = default;
};

/// The index of one work item, what OpenCL calls its global id.
struct WorkItem {
  std::size_t x = 0;
  std::size_t y = 0;
  std::size_t z = 0;
};

/// What a host loop is handed for each kernel argument: an address and a size. For a buffer the window the kernel was
/// given, for a scalar the value's bytes.
struct HostArgument {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// The host form of a kernel, with its loop inside: runs the items `[begin, end)` of `range`, or its groups where it is
/// a loop over groups, numbered with x fastest. Called from several threads at once, on disjoint parts.
using HostLoop = std::function<void(Range range, std::size_t begin, std::size_t end, std::span<const HostArgument>)>;

/// A kernel before it meets a device: any of its forms may be missing.
struct ProgramSource {
  std::string name;    ///< the entry point, and what errors call it
  std::string source;  ///< the portable source form (docs/kernels.md), or plain source of the backend's language
  HostLoop host;       ///< the host form
  bool host_takes_groups = false;  ///< the host form is a loop over groups
};

/// One argument of a launch: memory, or a scalar of up to 16 bytes.
struct KernelArgument {
  enum class Kind : std::uint8_t { memory, scalar };

  Kind kind = Kind::memory;
  DeviceMemory memory;
  alignas(16) std::array<std::byte, 16> scalar{};
  std::size_t scalar_bytes = 0;
  bool writes = true;  ///< of memory: whether the kernel may write there
};

/// What one parameter of a program takes, as far as the compiler, the driver or the source itself tells.
struct ProgramParameter {
  /// `unknown` takes what the driver takes; `other` is what no argument can stand for: an image, a sampler, memory of a
  /// work group.
  enum class Kind : std::uint8_t { unknown, buffer, scalar, other };

  Kind kind = Kind::unknown;
  ValueType value{};      ///< of a scalar, or of an element
  bool is_const = false;  ///< of a buffer: the kernel only reads it
  std::string type;       ///< as the compiler spells it, e.g. "float*"; may be empty
  std::string name;       ///< empty where that is not known
};

/// A kernel made ready for one device. Immutable, usable from any thread and any queue of that device.
class UNIMEM_API Program {
 public:
  Program() = default;
  Program(Program const&) = delete;
  Program& operator=(Program const&) = delete;
  virtual ~Program();

  /// One for each argument that the program takes; nothing where it takes any, as host loops do, which are checked
  /// against `Kernel::parameters`.
  [[nodiscard]] virtual std::vector<ProgramParameter> const* parameters() const noexcept { return nullptr; }

  /// Throws KernelError where it cannot run over that range: it asks for its group and none is given, or the group is
  /// larger than the device can make it.
  virtual void check_range(Range range) const;

  /// Which compiler made it, by the name and version it gives itself; empty where none did. Together with
  /// `DeviceInfo::driver` it tells what a program's machine code comes from.
  [[nodiscard]] virtual std::string_view compiler() const noexcept { return {}; }
};

/// One run of a program, as `Queue::run` takes it.
struct ProgramRun {
  std::shared_ptr<Program const> program;
  Range range;
  std::vector<KernelArgument> arguments;
};

/// Runs in a row that `Queue::capture` has made ready for one device, to be submitted as one as often as one likes.
/// Immutable, usable from any thread and any queue of that device.
class UNIMEM_API CapturedRuns {
 public:
  CapturedRuns() = default;
  CapturedRuns(CapturedRuns const&) = delete;
  CapturedRuns& operator=(CapturedRuns const&) = delete;
  virtual ~CapturedRuns();
};

}  // namespace unimem
