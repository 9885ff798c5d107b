#pragma once

#include <unimem/core/stack.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail {

/// The most calls of a stack that are captured.
inline constexpr std::size_t most_calls = 64;

/// Writes the addresses that the calls on this thread's stack will return to, the innermost first, this library's own
/// included, as many as there is room for. Returns how many: none where the library was built without what captures
/// them. Allocates nothing.
[[nodiscard]] std::size_t capture_stack(std::span<std::uintptr_t> calls) noexcept;

/// The same, at most `most_calls`. Throws std::bad_alloc.
[[nodiscard]] std::vector<std::uintptr_t> capture_stack();

/// A stack in a place of its own, so that capturing it cannot fail.
class CallStack {
 public:
  void capture() noexcept { count_ = capture_stack(calls_); }
  [[nodiscard]] std::span<std::uintptr_t const> calls() const noexcept { return {calls_.data(), count_}; }

 private:
  std::array<std::uintptr_t, most_calls> calls_{};
  std::size_t count_ = 0;
};

/// The calls that took something, and that gave it back: what is told when it is given back once more. A
/// kilobyte.
struct Trail {
  CallStack acquired;
  CallStack released;
};

/// A trail that begins here. Throws std::bad_alloc.
[[nodiscard]] std::unique_ptr<Trail> begin_trail();

/// Where in the program a thread is: in words only when there is something to report.
struct ProgramPlace {
  std::vector<std::string> words;     ///< of a program that describes itself (`set_place_describer`)
  std::vector<std::uintptr_t> calls;  ///< of any other
  /// This one. Throws std::bad_alloc.
  [[nodiscard]] static ProgramPlace here();
};

/// Of which of many allocations the stack is captured: every n-th. Thread-safe.
class StackSampler {
 public:
  [[nodiscard]] bool is_due(StackOptions const& stacks) noexcept {
    return stacks.every != 0 && seen_.fetch_add(1, std::memory_order_relaxed) % stacks.every == 0;  // a count alone
  }

 private:
  std::atomic<std::uint64_t> seen_{0};  ///< counted only where stacks are sampled
};

/// What stands below a message: a line with `what` these calls did, one for each of them; nothing if there are none.
[[nodiscard]] std::string describe_calls(std::string_view what, std::span<std::uintptr_t const> calls);

[[nodiscard]] std::string describe_place(std::string_view what, ProgramPlace const& place);

/// Throws UnsupportedOperation for stacks that are asked for where none can be captured.
void require_stacks(StackOptions const& stacks);

}  // namespace unimem::detail
