#pragma once

#include <unimem/core/export.hpp>
#include <unimem/core/name.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/manager/options.hpp>
#include <unimem/manager/placement.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace unimem {

/// How a write to the host side is noticed.
enum class Tracking : std::uint8_t {
  access,  ///< a mutable view counts as written when it is taken
  pages,   ///< the system tells which pages were written, by any code; UnsupportedOperation where it cannot.
           ///< A retained pointer may be written at any time between operations, and reading through a mutable view
           ///< never costs an upload. Small buffers (below 64 KiB) and memory shared with a device mark on access:
           ///< `tracking()` says what serves
  manual,  ///< only `mark_*` and the library's own writes count
};

/// What the elements of a buffer were when it was made, for files that keep their names and types.
struct BufferElements {
  std::string dtype{};               ///< NumPy's name of their type, or ml_dtypes'; empty: another, a structure say
  std::size_t bytes = 1;             ///< of one
  std::vector<std::size_t> shape{};  ///< outermost first; none for a scalar
};

/// What the name of a buffer is for, besides errors and reports.
enum class NameUse : std::uint8_t {
  reports,  ///< nothing: many may have it
  place,    ///< `sleep` and `wake`: a file's, which its buffer has where none was given
  saving    ///< `save` and `restore` as well: what a program has given
};

/// What a buffer is asked to be besides its shape. In `{.device = …, .name = …}` members keep the order they have here.
struct BufferOptions {
  MemoryManager* manager = nullptr;  ///< where memory comes from; null: default_manager()
  Device* device = nullptr;          ///< the device used when none is named; null: default_device()
  /// `pinned` is the same as `pinned = true`; `unified` needs a device that has such memory.
  Location location = Location::device;
  Placement placement = Placement::automatic;     ///< a hint
  AccessPattern access = AccessPattern::unknown;  ///< a hint
  Tracking tracking = Tracking::access;
  bool pinned = false;  ///< page-lock the host side; whether it worked: `is_pinned()`
  /// Its host memory is made so that other processes can have it, too: `publish` with `cross_process` copies nothing.
  bool shared = false;
  bool strict = false;  ///< every access before `allocate()` raises BufferNotAllocated
  std::string name{};   ///< shown in errors and reports, and what `save`, `restore`, `sleep` and `wake` know it by
  NameUse name_use = NameUse::saving;
  int priority = 0;  ///< of buffers that could give device memory back those of lower priority do first
  /// How `MemoryManager::allocate` came to the location; null for buffers that are made otherwise.
  std::shared_ptr<PlacementDecision const> decision{};
  /// Where in the program it was made, which stands for its name in usage reports and for what is known of its use if
  /// it has none. What makes buffers fills it in, unless it is there already.
  Name site{};
  /// Of one with a name. What makes buffers fills it in.
  std::shared_ptr<BufferElements const> elements{};
  /// The calls of another language that made it, the innermost first, each by its number (`name_call`), which reports
  /// put before the captured stack. Null: every how many-th stack is captured is the manager's to count. Else the
  /// stacks of this buffer's memory are captured if there are calls, and not if there are none.
  std::shared_ptr<std::vector<std::uintptr_t> const> made_by{};
};

/// What frees wrapped memory.
class UNIMEM_API Ownership {
 public:
  /// The caller, after the last buffer that wraps it is gone and its work has ended. The buffer's end waits for other
  /// threads that are evicting it; where it goes in the middle of work that they wait for, the log says so.
  [[nodiscard]] static Ownership borrow() { return {}; }

  /// The library: calls `deleter(pointer)` once, when the last use has ended; not at all if wrapping is refused. That
  /// may be after the last buffer is gone, and on another thread: a queue's, or one that was just evicting the buffer.
  /// What it throws is told to the log, since buffers end where no exception can be thrown.
  [[nodiscard]] static Ownership take(std::function<void(void*)> deleter) {
    Ownership result;
    result.deleter_ = std::move(deleter);
    return result;
  }

  [[nodiscard]] std::function<void(void*)> const& deleter() const noexcept { return deleter_; }

 private:
  std::function<void(void*)> deleter_;
};

}  // namespace unimem
