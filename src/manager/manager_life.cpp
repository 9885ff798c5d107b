#include <unimem/core/detail/environment.hpp>
#include <unimem/core/detail/lazy.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/manager/detail/default_spill.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/fork.hpp"
#include "core/stack.hpp"
#include "manager/manager_state.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

// How managers begin and end, and what is reported of memory that was not given back by then.

namespace unimem {
namespace {

/// Asked before anything is made.
ManagerOptions checked(ManagerOptions options) {
  detail::require_stacks(options.leaks.stacks);
  detail::require_stacks(options.pools.stacks);
  return options;
}

void report_leaks(LeakOptions const& options, MemoryManager const& manager) noexcept {
  if (!options.report_at_end) return;
  try {
    auto const report = manager.leak_report();
    if (report.empty()) return;
    if (options.report) return options.report(report);
    auto const text = report.text();
    std::fwrite(text.data(), 1, text.size(), stderr);
  } catch (std::exception const& error) {
    log(LogLevel::error, std::string("there is no leak report: ") + error.what());
  }
}

/// The default manager's wish, by the environment.
LeakOptions wished() {
  LeakOptions options;
  options.report_at_end = environment_flag("UNIMEM_LEAKS", false);
  options.stacks.every = environment_size("UNIMEM_LEAK_STACKS").value_or(0);
  return options;
}

/// What the environment wants of the default manager of the process that first had one, and not of its forked children.
struct DefaultWish {
  LeakOptions options;
  detail::MadeHere made{};
};
DefaultWish const* default_wish = nullptr;

void report_default_leaks() noexcept {
  if (!default_wish->made.inherited()) report_leaks(default_wish->options, default_manager());
}

}  // namespace

MemoryManager::MemoryManager(ManagerOptions options)
    : state_(new State(checked(std::move(options))), [](State* state) {
        if (!state->made.inherited()) delete state;  // NOLINT(cppcoreguidelines-owning-memory): this is its deleter
      }) {}

MemoryManager::MemoryManager(State& shared) noexcept : state_(std::shared_ptr<State>{}, &shared) {}

MemoryManager::~MemoryManager() {
  bool const owns = state_.use_count() != 0;
  if (!owns || state_->made.inherited()) return;
  report_leaks(state_->options.leaks, *this);
  // Its owner's callbacks may be of things that end with it, and what it keeps serves its buffers alone.
  state_->pressure->close();
  if (state_.use_count() == 1) return;
  try {
    for (auto* const pool : state_->all()) pool->trim();
  } catch (std::exception const& error) {
    log(LogLevel::error, std::string("what a manager keeps for its buffers is not given back: ") + error.what());
  }
}

MemoryManager::State& MemoryManager::state() const {
  state_->made.require("using a memory manager");
  return *state_;
}

std::shared_ptr<MemoryManager> MemoryManager::share() const {
  state_->made.require("making a buffer of a memory manager");
  // An owner of a share in it copies that; the state's own way to itself has none to copy.
  if (state_.use_count() != 0) return {state_, &state_->self};
  return {state_->shared_from_this(), &state_->self};
}

namespace {

/// What was said of where to spill before the default manager was made.
struct DefaultSpill {
  std::mutex mutex;
  std::string directory;
};

DefaultSpill& default_spill() {
  static constinit detail::PerProcess<DefaultSpill> instance;
  return instance.get();
}

std::string default_spill_directory() {
  auto& said = default_spill();
  std::lock_guard const lock{said.mutex};
  return environment("UNIMEM_SPILL").value_or(said.directory);
}

}  // namespace

void detail::spill_by_default_in(std::string directory) {
  auto& said = default_spill();
  std::lock_guard const lock{said.mutex};
  said.directory = std::move(directory);
}

MemoryManager& default_manager() {
  // Never destroyed: buffers in static storage are, at an unknown time, and give their memory back to it.
  static constinit detail::PerProcess<detail::Lazy<MemoryManager>> instance;
  auto const& manager = instance.get().get([] {
    ManagerOptions options;
    options.leaks = wished();
    options.spill.directory = default_spill_directory();
    auto made = [&] {
      try {
        return std::make_unique<MemoryManager>(options);
      } catch (IoError const& refused) {
        throw IoError(refused.path, refused.code, "making a file in the folder of the default manager (UNIMEM_SPILL)");
      }
    }();
    if (options.leaks.report_at_end && default_wish == nullptr) {
      default_wish = new DefaultWish{options.leaks};
      // Before the constructor of the first static buffer has ended: such buffers are destroyed before this is called.
      if (std::atexit(report_default_leaks) != 0) log(LogLevel::error, "there will be no leak report: atexit is full");
    }
    return made;
  });
  return manager.state_->self;  // as all that requests are counted by
}

}  // namespace unimem
