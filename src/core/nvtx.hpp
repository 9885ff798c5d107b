#pragma once

#include <atomic>
#include <exception>
#include <string>

namespace unimem::detail {

/// A named stretch of the calling thread's time on the timeline of NVIDIA's tools (Nsight Systems and the like): what
/// the thread submits meanwhile is shown under that name. They listen through NVTX, whose interface is a library that
/// the tool names in the environment (`NVTX_INJECTION64_PATH`); it is loaded when the first range begins, and neither
/// NVTX nor a toolkit is needed to build this. Without a tool a range costs one branch.
///
/// Ranges of a thread are nested. Thread-safe.
class NvtxRange {
 public:
  /// `name()` gives the name, a std::string, and is called only where a tool listens.
  template <class Name>
  explicit NvtxRange(Name const& name) noexcept {
    // Acquire: who sees that a tool listens sees its functions.
    if (listening.load(std::memory_order_acquire) != State::off) [[unlikely]]
      begin(name);
  }
  NvtxRange(NvtxRange const&) = delete;
  NvtxRange& operator=(NvtxRange const&) = delete;
  ~NvtxRange() {
    if (open_) [[unlikely]]
      pop();
  }

 private:
  enum class State : unsigned char { unknown, off, on };

  template <class Name>
  void begin(Name const& name) noexcept {
    if (!has_tool()) return;
    try {
      open_ = push(name());
    } catch (std::exception const&) {
      return;  // no memory for a name, on which no work depends
    }
  }
  /// Looks for a tool, the first time.
  [[nodiscard]] static bool has_tool() noexcept;
  [[nodiscard]] static bool push(std::string const& name) noexcept;
  static void pop() noexcept;

  static std::atomic<State> listening;
  bool open_ = false;
};

}  // namespace unimem::detail
