#include "manager/stack.hpp"

#include <unimem/manager/usage.hpp>

#include <fmt/format.h>

#include <memory>
#include <string>

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

constexpr std::size_t most_calls = 64;

/// What cannot be found out is not said.
void nothing_known(void* /*data*/, char const* /*message*/, int /*number*/) {}

/// Made once, as its library wants it; it has no end.
backtrace_state* symbols() {
  static auto* const state = backtrace_create_state(nullptr, 1, nothing_known, nullptr);
  return state;
}

struct Found {
  std::string function;
  std::string file;
  int line = 0;
};

std::string demangled(char const* name) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> const text{abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free};
  return status == 0 && text ? std::string(text.get()) : std::string(name);
}

}  // namespace

std::vector<std::uintptr_t> detail::capture_stack() {
  std::vector<std::uintptr_t> calls;
  calls.reserve(most_calls);
  backtrace_simple(
      symbols(), 1,
      [](void* data, std::uintptr_t address) {
        auto& found = *static_cast<std::vector<std::uintptr_t>*>(data);
        if (address != UINTPTR_MAX) found.push_back(address);  // which stands for the end
        return found.size() == most_calls ? 1 : 0;
      },
      nothing_known, &calls);
  return calls;
}

bool can_capture_stacks() noexcept {
  return true;
}

std::string describe_address(std::uintptr_t address) {
  Found found;
  backtrace_pcinfo(
      symbols(), address,
      [](void* data, std::uintptr_t /*address*/, char const* file, int line, char const* function) {
        auto& one = *static_cast<Found*>(data);
        if (function == nullptr) return 0;
        // Of calls that were inlined into one another the last said is the outermost; the first is where it is.
        one.function = demangled(function);
        one.file = file == nullptr ? "" : file;
        one.line = line;
        return 1;
      },
      nothing_known, &found);
  if (found.function.empty()) {
    backtrace_syminfo(
        symbols(), address,
        [](void* data, std::uintptr_t /*address*/, char const* symbol, std::uintptr_t /*value*/,
           std::uintptr_t /*size*/) {
          if (symbol != nullptr) static_cast<Found*>(data)->function = demangled(symbol);
        },
        nothing_known, &found);
  }
  if (found.function.empty()) return fmt::format("{:#x}", address);
  if (found.file.empty()) return found.function;
  return fmt::format("{} at {}:{}", found.function, found.file, found.line);
}

#else

std::vector<std::uintptr_t> detail::capture_stack() {
  return {};
}

bool can_capture_stacks() noexcept {
  return false;
}

std::string describe_address(std::uintptr_t address) {
  return fmt::format("{:#x}", address);
}

#endif

}  // namespace unimem
