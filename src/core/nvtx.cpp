#include "core/nvtx.hpp"

#include <unimem/core/detail/environment.hpp>

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace unimem::detail {
namespace {

// NVTX's interface to tools, version 3, declared here from its documentation, as far as it is used: a tool asks for
// tables of pointers to functions, and puts its own functions there.
namespace nvtx {

using Function = void (*)();
using DomainHandle = struct DomainTag*;

enum Module : int { core2 = 5, modules = 7 };
enum Core2 : int { domain_range_push = 4, domain_range_pop = 5, domain_create = 12, core2_size = 16 };
enum Table : std::uint32_t { callbacks = 1, version_info = 3 };

/// The sizes of all modules' tables, those that are not called here included: a tool may insist.
constexpr std::array<unsigned, modules> table_sizes{0, 16, 9, 15, 7, 16, 7};

/// nvtxEventAttributes_t.
struct EventAttributes {
  std::uint16_t version = 3;
  std::uint16_t size = 48;
  std::uint32_t category = 0;
  std::int32_t color_type = 0;
  std::uint32_t color = 0;
  std::int32_t payload_type = 0;
  std::int32_t reserved = 0;
  std::uint64_t payload = 0;
  std::int32_t message_type = 1;  ///< characters
  char const* message = nullptr;
};
static_assert(sizeof(EventAttributes) == 48 && offsetof(EventAttributes, message) == 40);

struct Callbacks {
  std::size_t bytes;
  int (*table_of_module)(int module, Function*** table, unsigned* size);
};

struct VersionInfo {
  std::size_t bytes;
  std::uint32_t version;
  std::uint32_t reserved;
  void (*set_tool_version)(std::uint32_t version);
};

using GetExportTable = void const* (*)(std::uint32_t table);
using Initialize = int (*)(GetExportTable get);

}  // namespace nvtx

/// Where the tool puts its functions, and where it finds these places.
struct Tool {
  std::array<std::array<nvtx::Function, 16>, nvtx::modules> functions{};
  std::array<std::array<nvtx::Function*, 16>, nvtx::modules> places{};
  nvtx::DomainHandle domain = nullptr;

  template <class F>
  [[nodiscard]] F core2(nvtx::Core2 which) const noexcept {
    return reinterpret_cast<F>(functions[nvtx::core2][static_cast<std::size_t>(which)]);
  }
};

/// Never destroyed: ranges may begin while the process ends.
Tool& tool() {
  static auto& only = *new Tool;
  return only;
}

int table_of_module(int module, nvtx::Function*** table, unsigned* size) {
  if (module <= 0 || module >= nvtx::modules) return 0;
  auto const index = static_cast<std::size_t>(module);
  for (std::size_t i = 1; i < nvtx::table_sizes[index]; ++i) tool().places[index][i] = &tool().functions[index][i];
  if (size != nullptr) *size = nvtx::table_sizes[index];
  if (table != nullptr) *table = tool().places[index].data();
  return 1;
}

void const* export_table(std::uint32_t which) {
  static constexpr nvtx::Callbacks callbacks{sizeof callbacks, table_of_module};
  static constexpr nvtx::VersionInfo version{sizeof version, 3, 0, [](std::uint32_t) {}};
  if (which == nvtx::callbacks) return &callbacks;
  if (which == nvtx::version_info) return &version;
  return nullptr;
}

/// Whether there is a tool that listens to ranges. Its library is never unloaded: it knows our places.
bool find_tool() {
  auto const path = environment("NVTX_INJECTION64_PATH");
  if (!path) return false;
  auto* const handle = dlopen(path->c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return false;
  auto const initialize = reinterpret_cast<nvtx::Initialize>(dlsym(handle, "InitializeInjectionNvtx2"));
  if (initialize == nullptr || initialize(export_table) == 0) return false;
  auto const create = tool().core2<nvtx::DomainHandle (*)(char const*)>(nvtx::domain_create);
  if (create != nullptr) tool().domain = create("unimem");
  return tool().core2<nvtx::Function>(nvtx::domain_range_push) != nullptr &&
         tool().core2<nvtx::Function>(nvtx::domain_range_pop) != nullptr;
}

}  // namespace

std::atomic<NvtxRange::State> NvtxRange::listening{State::unknown};

bool NvtxRange::has_tool() noexcept {
  auto state = listening.load(std::memory_order_acquire);
  if (state != State::unknown) return state == State::on;
  static std::mutex looking;
  std::lock_guard const lock{looking};
  state = listening.load(std::memory_order_relaxed);
  if (state == State::unknown) {
    try {
      state = find_tool() ? State::on : State::off;
    } catch (std::exception const&) {
      state = State::off;
    }
    listening.store(state, std::memory_order_release);  // the tool's functions are seen with it
  }
  return state == State::on;
}

bool NvtxRange::push(std::string const& name) noexcept {
  using Push = int (*)(nvtx::DomainHandle, nvtx::EventAttributes const*);
  nvtx::EventAttributes attributes;
  attributes.message = name.c_str();
  tool().core2<Push>(nvtx::domain_range_push)(tool().domain, &attributes);
  return true;
}

void NvtxRange::pop() noexcept {
  using Pop = int (*)(nvtx::DomainHandle);
  tool().core2<Pop>(nvtx::domain_range_pop)(tool().domain);
}

}  // namespace unimem::detail
