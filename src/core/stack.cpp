#include "core/stack.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Where lint looks with another compiler than the one that builds there is no such header.
#if defined(UNIMEM_BACKTRACE) && __has_include(<backtrace.h>)
#define UNIMEM_HAS_STACKS
#include <backtrace.h>
#include <cxxabi.h>

#include <cstdlib>
#endif

namespace unimem {

#ifdef UNIMEM_HAS_STACKS

namespace {

/// What cannot be found out is not said.
void nothing_known(void* /*data*/, char const* /*message*/, int /*number*/) {}

/// Made once, as its library wants it; it has no end.
backtrace_state* symbols() {
  static auto* const state = backtrace_create_state(nullptr, 1, nothing_known, nullptr);
  return state;
}

std::string demangled(char const* name) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> const text{abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free};
  return status == 0 && text ? std::string(text.get()) : std::string(name);
}

}  // namespace

std::size_t detail::capture_stack(std::span<std::uintptr_t> calls) noexcept {
  struct Taken {
    std::span<std::uintptr_t> calls;
    std::size_t count = 0;
  } taken{calls};
  if (calls.empty()) return 0;
  backtrace_simple(
      symbols(), 1,
      [](void* data, std::uintptr_t address) {
        auto& so_far = *static_cast<Taken*>(data);
        if (address != UINTPTR_MAX) so_far.calls[so_far.count++] = address;  // which stands for the end
        return so_far.count == so_far.calls.size() ? 1 : 0;
      },
      nothing_known, &taken);
  return taken.count;
}

bool can_capture_stacks() noexcept {
  return true;
}

std::string describe_address(std::uintptr_t address) {
  std::string found;
  backtrace_pcinfo(
      symbols(), address,
      [](void* data, std::uintptr_t /*address*/, char const* file, int line, char const* function) {
        auto& text = *static_cast<std::string*>(data);
        if (function == nullptr) return 0;
        // The first is where it is; who it was inlined into comes next, up to the one that was called: maybe the
        // user's.
        if (!text.empty()) text += ", inlined into ";
        text += demangled(function);
        if (file != nullptr) text += fmt::format(" at {}:{}", file, line);
        return 0;
      },
      nothing_known, &found);
  if (found.empty()) {
    backtrace_syminfo(
        symbols(), address,
        [](void* data, std::uintptr_t /*address*/, char const* symbol, std::uintptr_t /*value*/,
           std::uintptr_t /*size*/) {
          if (symbol != nullptr) *static_cast<std::string*>(data) = demangled(symbol);
        },
        nothing_known, &found);
  }
  return found.empty() ? fmt::format("{:#x}", address) : found;
}

#else

std::size_t detail::capture_stack(std::span<std::uintptr_t> /*calls*/) noexcept {
  return 0;
}

bool can_capture_stacks() noexcept {
  return false;
}

std::string describe_address(std::uintptr_t address) {
  return fmt::format("{:#x}", address);
}

#endif

namespace detail {

std::vector<std::uintptr_t> capture_stack() {
  CallStack stack;
  stack.capture();
  return {stack.calls().begin(), stack.calls().end()};
}

std::unique_ptr<Trail> begin_trail() {
  auto trail = std::make_unique<Trail>();
  trail->acquired.capture();
  return trail;
}

std::string describe_calls(std::string_view what, std::span<std::uintptr_t const> calls) {
  if (calls.empty()) return {};
  auto text = fmt::format("\n  {}", what);
  for (auto const address : calls) text += fmt::format("\n      {}", describe_address(address));
  return text;
}

void require_stacks(StackOptions const& stacks) {
  if (stacks.every == 0 || can_capture_stacks()) return;
  throw UnsupportedOperation("capturing stacks", "this build of unimem",
                             "libbacktrace was not found when it was built");
}

}  // namespace detail

}  // namespace unimem
