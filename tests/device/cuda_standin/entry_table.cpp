#include "device/cuda_standin/machine.hpp"
#include "device/cuda_standin/streams.hpp"

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>

// The way into the stand-in: the one function the library exports for the driver's users, and what every call passes
// before it is carried out.

namespace unimem::standin {
namespace {

/// Set in a forked child, where the workers are not and the lock may be held for ever; and when the library has ended.
std::atomic<bool> forked = false;
std::atomic<bool> gone = false;

struct Life {
  Life() {
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
  }
  ~Life() { gone = true; }
};
Life const life;

bool works_uninitialized(std::string_view name) {
  return name == "cuInit" || name == "cuDriverGetVersion" || name == "cuGetErrorName" || name == "cuGetErrorString";
}

/// Every call: the state of the process, the count, the fault whose turn it is, and then the work.
template <class Call>
Result enter(char const* name, Call call) noexcept {
  if (forked) return Result::not_initialized;
  if (gone) {
    // A real driver may crash here. Nobody is left to be told but the terminal; a test of exits looks there.
    std::fprintf(stderr, "stand-in CUDA driver: %s after the driver is gone\n", name);
    return Result::deinitialized;
  }
  auto& all = machine();
  Lock lock{all.mutex};
  try {
    if (!all.initialized && !works_uninitialized(name)) return Result::not_initialized;
    auto const& contexts = context_stack();
    auto const device = contexts.empty() || contexts.back() == nullptr ? Faults::any_device : contexts.back()->device;
    auto const verdict = all.faults.next_call(name, device);
    all.late_fault = Result::success;
    if (verdict.code != Result::success) {
      if (verdict.kind == FaultKind::late) {
        all.late_fault = verdict.code;
      } else {
        auto const& stack = context_stack();
        if (verdict.kind == FaultKind::sticky && !stack.empty()) lose_and_wait(lock, *stack.back(), verdict.code);
        return verdict.code;
      }
    }
    return call(lock);
  } catch (Refused const& refused) {
    return refused.code;
  } catch (std::bad_alloc const&) {
    return Result::out_of_memory;
  } catch (...) {
    return Result::unknown;
  }
}

/// The function that C calls, made of the one that carries it out.
template <class Call>
struct Entry;

template <class... Parameters>
struct Entry<Result (*)(Lock&, Parameters...)> {
  template <Result (*call)(Lock&, Parameters...), auto const& name>
  static Result enter_with(Parameters... parameters) {
    return enter(name, [&](Lock& lock) { return call(lock, parameters...); });
  }
};

#define UNIMEM_NAME(function, version, ...) constexpr char function##_name[] = #function;
UNIMEM_CUDA_FUNCTIONS(UNIMEM_NAME)
UNIMEM_CUDA_LATER_FUNCTIONS(UNIMEM_NAME)
#undef UNIMEM_NAME

struct Offered {
  std::string_view name;
  int version;
  void* function;
};

Offered const offered[] = {
#define UNIMEM_OFFER(function, version, ...) \
  {#function, version,                       \
   reinterpret_cast<void*>(&Entry<decltype(&calls::function)>::enter_with<&calls::function, function##_name>)},
    UNIMEM_CUDA_FUNCTIONS(UNIMEM_OFFER) UNIMEM_CUDA_LATER_FUNCTIONS(UNIMEM_OFFER)
#undef UNIMEM_OFFER
};

int version_to_be() {
  auto const* const told = std::getenv("UNIMEM_CUDA_STANDIN_VERSION");
  return told == nullptr ? 12080 : std::atoi(told);
}

/// Whether the list in the environment names the function.
bool left_out(std::string_view name) {
  auto const* const told = std::getenv("UNIMEM_CUDA_STANDIN_MISSING");
  std::string_view rest = told == nullptr ? "" : told;
  while (!rest.empty()) {
    auto const comma = rest.find(',');
    if (rest.substr(0, comma) == name) return true;
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
  }
  return false;
}

}  // namespace

bool process_is_whole() noexcept {
  return !forked && !gone;
}

}  // namespace unimem::standin

/// cuGetProcAddress: a function as of `version` of the API. Only the form that the table asks for is there.
extern "C" __attribute__((visibility("default"))) unimem::detail::cuda::Result cuGetProcAddress_v2(
    char const* symbol, void** function, int version, std::uint64_t flags, int* status) {
  using unimem::detail::cuda::Result;
  using namespace unimem::standin;
  enum : int { found = 0, not_found = 1, version_not_sufficient = 2 };
  if (symbol == nullptr || function == nullptr || flags > 1) return Result::invalid_value;
  *function = nullptr;
  if (status != nullptr) *status = not_found;
  auto const driver_version = version_to_be();
  {
    Lock const lock{machine().mutex};
    machine().version = driver_version;
  }
  for (auto const& entry : offered) {
    if (entry.name != symbol || entry.version > driver_version || left_out(symbol)) continue;
    if (version < entry.version) {
      if (status != nullptr) *status = version_not_sufficient;
      return Result::not_found;
    }
    if (status != nullptr) *status = found;
    *function = entry.function;
    return Result::success;
  }
  return Result::not_found;
}
