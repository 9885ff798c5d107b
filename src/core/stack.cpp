#include "core/stack.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/name.hpp>

#include "core/fork_locks.hpp"

#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

// Where lint looks with another compiler than the one that builds there is no such header.
#if defined(UNIMEM_BACKTRACE) && __has_include(<backtrace.h>)
#define UNIMEM_HAS_STACKS
#include <backtrace.h>
#include <cxxabi.h>

#include <cstdlib>
#endif

namespace unimem {

namespace {

/// The calls of other languages, by numbers that are no addresses of code: those have not the topmost bit.
class NamedCalls {
 public:
  std::uintptr_t number_of(std::string_view text) {
    Name const name(text);
    if (!mutex_.lock()) return lost;
    std::lock_guard const lock{mutex_, std::adopt_lock};
    auto const [found, is_new] = numbers_.try_emplace(name, names_.size());
    if (is_new) names_.push_back(name);
    return topmost | found->second;
  }

  /// Empty for what is no such number.
  std::string_view text_of(std::uintptr_t number) {
    if ((number & topmost) == 0 || number == lost || !mutex_.lock()) return {};
    std::lock_guard const lock{mutex_, std::adopt_lock};
    auto const index = number & ~topmost;
    return index < names_.size() ? names_[index].view() : std::string_view{};
  }

 private:
  static constexpr auto topmost = ~(UINTPTR_MAX >> 1);
  static constexpr auto lost = UINTPTR_MAX;  ///< of a forked child that inherited the table in the middle of a change

  detail::ForkableMutex mutex_;
  std::vector<Name> names_;
  std::unordered_map<Name, std::uintptr_t> numbers_;
};

/// Never destroyed: what is left is reported by destructors of static objects.
NamedCalls& named_calls() {
  static auto& instance = *new NamedCalls;
  return instance;
}

}  // namespace

std::uintptr_t name_call(std::string_view text) {
  return named_calls().number_of(text);
}

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
  std::string found(named_calls().text_of(address));
  if (!found.empty()) return found;
  backtrace_pcinfo(
      symbols(), address,
      [](void* data, std::uintptr_t /*address*/, char const* file, int line, char const* function) {
        auto& text = *static_cast<std::string*>(data);
        if (function == nullptr) return 0;
        // The first is where it is; the function it was inlined into comes next, up to the one that was called: maybe
        // the user's.
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
  auto const named = named_calls().text_of(address);
  return named.empty() ? fmt::format("{:#x}", address) : std::string(named);
}

#endif

namespace {

/// Release and acquire: with whatever it needs.
std::atomic<std::vector<std::string> (*)() noexcept> place_describer{nullptr};

}  // namespace

void set_place_describer(std::vector<std::string> (*describe)() noexcept) noexcept {
  place_describer.store(describe, std::memory_order_release);  // with what it was made from
}

namespace detail {

ProgramPlace ProgramPlace::here() {
  if (auto* const describe = place_describer.load(std::memory_order_acquire)) {
    if (auto words = describe(); !words.empty()) return {std::move(words), {}};
  }
  return {{}, capture_stack()};
}

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

std::string describe_place(std::string_view what, ProgramPlace const& place) {
  if (place.words.empty()) return describe_calls(what, place.calls);
  auto text = fmt::format("\n  {}", what);
  for (auto const& call : place.words) text += fmt::format("\n      {}", call);
  return text;
}

void require_stacks(StackOptions const& stacks) {
  if (stacks.every == 0 || can_capture_stacks()) return;
  throw UnsupportedOperation("capturing stacks", "this build of unimem",
                             "libbacktrace was not found when it was built");
}

}  // namespace detail

}  // namespace unimem
