#include "kernel/known_answer.hpp"

#include <unimem/core/build.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/core/name.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/pool/allocation.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <optional>
#include <string_view>
#include <utility>

namespace unimem::detail {
namespace {

using Role = KnownArgument::Role;
using Arguments = std::vector<KnownArgument>;

constexpr std::string_view kept_value = "right\n";

std::string key_of(KnownAnswer const& answer, Program const& program, Device const& device) {
  auto const& info = device.info();
  auto key = fmt::format("unimem {}\n{}|{}|{}|{}|{}\n", version(), to_string(device.backend()), info.name, info.vendor,
                         info.driver, program.compiler());
  for (auto const& run : answer.runs) key += fmt::format("{} items {} bytes\n", run.items, run.bytes);
  return key + fmt::format("{}\n{}", answer.kernel.name(), answer.kernel.forms().source);
}

/// What the host form makes of `arguments`, on the calling thread: no pool of threads that could be waiting for it.
void run_on_host(Kernel const& kernel, std::size_t items, Arguments& arguments) {
  std::vector<HostArgument> host;
  for (auto& argument : arguments) host.push_back({argument.bytes.data(), argument.bytes.size()});
  kernel.forms().host(Range{items}, 0, items, host);
}

/// What the device makes of them.
void run_on_device(std::shared_ptr<Program const> const& program, Device& device, MemoryManager& manager,
                   Location location, std::size_t items, Arguments& arguments) {
  std::vector<Allocation> memory(arguments.size());
  std::vector<KernelArgument> given(arguments.size());
  auto queue = device.create_queue();  // goes first, and waits for the work on the memory
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto const& [role, value, bytes] = arguments[i];
    if (role == Role::scalar) {
      given[i].kind = KernelArgument::Kind::scalar;
      given[i].scalar_bytes = bytes.size();
      std::ranges::copy(bytes, given[i].scalar.begin());
      continue;
    }
    memory[i] = manager.acquire(device, location, bytes.size(), {.name = Name("known answer")});
    given[i].memory = memory[i].memory();
    given[i].writes = role != Role::input;
    queue.upload(memory[i].memory(), bytes.data(), bytes.size());
  }
  queue.run(program, Range{items}, given);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!given[i].writes || arguments[i].role == Role::scalar) continue;
    queue.download(arguments[i].bytes.data(), memory[i].memory(), arguments[i].bytes.size());
  }
  queue.synchronize();
}

template <class T>
T element_at(std::vector<std::byte> const& bytes, std::size_t index) {
  T element;
  std::memcpy(&element, bytes.data() + index * sizeof(T), sizeof element);
  return element;
}

/// Every NaN is as good as another; of zeros the sign counts.
template <class T>
bool same(T a, T b) {
  if constexpr (std::floating_point<T>) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
  } else {
    return a == b;
  }
}

/// Which elements differ, in words; nothing if none does.
template <class T>
std::optional<std::string> difference(KnownArgument const& expected, KnownArgument const& found) {
  auto const count = expected.bytes.size() / sizeof(T);
  std::size_t wrong = 0, first = 0;
  for (auto i = count; i-- > 0;) {
    if (same(element_at<T>(expected.bytes, i), element_at<T>(found.bytes, i))) continue;
    ++wrong;
    first = i;
  }
  if (wrong == 0) return std::nullopt;
  return fmt::format("{} of {} elements are wrong, the first of them, at {}, is {} and not {}", wrong, count, first,
                     element_at<T>(found.bytes, first), element_at<T>(expected.bytes, first));
}

std::optional<std::string> difference(KnownArgument const& expected, KnownArgument const& found) {
  auto const [number, bytes, lanes] = expected.value;
  if (number == ValueType::Number::floating && bytes == sizeof(double)) return difference<double>(expected, found);
  if (number == ValueType::Number::floating && bytes == sizeof(float)) return difference<float>(expected, found);
  switch (bytes) {
    case sizeof(std::uint64_t):
      return difference<std::uint64_t>(expected, found);
    case sizeof(std::uint32_t):
      return difference<std::uint32_t>(expected, found);
    case sizeof(std::uint16_t):
      return difference<std::uint16_t>(expected, found);
    default:
      return difference<std::uint8_t>(expected, found);
  }
}

[[noreturn]] void refuse(KnownAnswer const& answer, Program const& program, Device const& device, KnownRun const& run,
                         std::size_t argument, std::string_view difference) {
  auto const& info = device.info();
  throw KernelError(
      std::string(answer.kernel.name()),
      fmt::format("is computed wrong on {} ({}, driver {}, {}): in a run of {} items with a known answer, "
                  "in argument {}, {}; no data went through it",
                  device.id(), info.name, info.driver, program.compiler(), run.items, argument + 1, difference));
}

}  // namespace

KnownAnswers::KnownAnswers(std::filesystem::path directory)
    : cache_(std::move(directory), "answer", std::uintmax_t{4} << 20) {}  // an entry is a few thousand bytes

void KnownAnswers::check(KnownAnswer const& answer, Device& device, MemoryManager& manager, Location location) {
  auto const program = answer.kernel.program(device);
  auto key = key_of(answer, *program, device);
  if (is_known(key)) return;
  for (auto const& run : answer.runs) {
    auto expected = run.arguments();
    auto found = expected;
    run_on_host(answer.kernel, run.items, expected);
    run_on_device(program, device, manager, location, run.items, found);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (auto const what = difference(expected[i], found[i])) refuse(answer, *program, device, run, i, *what);
    }
  }
  remember(std::move(key));
}

bool KnownAnswers::is_known(std::string const& key) {
  {
    std::lock_guard const lock{mutex_};
    if (right_.contains(key)) return true;
  }
  bool damaged = false;
  auto const kept = cache_.find(key, &damaged);
  if (damaged || (kept && *kept != kept_value)) {
    log(LogLevel::warning,
        fmt::format("{} holds no answer of a kernel; it is run again", cache_.file_of(key).string()));
  }
  if (!kept || *kept != kept_value) return false;
  std::lock_guard const lock{mutex_};
  right_.insert(key);
  return true;
}

void KnownAnswers::remember(std::string key) {
  if (auto const problem = cache_.keep(key, kept_value)) {
    log(LogLevel::info, fmt::format("that a kernel is computed right cannot be kept as {}: {}; later processes will "
                                    "run it again",
                                    cache_.file_of(key).string(), problem.message()));
  }
  std::lock_guard const lock{mutex_};
  right_.insert(std::move(key));
}

}  // namespace unimem::detail
