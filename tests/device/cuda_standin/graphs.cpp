#include "device/cuda_standin/capture.hpp"
#include "device/cuda_standin/modules.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace unimem::standin {
namespace {

/// The real driver follows a dangling pointer here.
bool has_its_modules(ExecutableState const& executable) {
  return std::ranges::all_of(executable.commands, [](Command const& command) {
    auto const alive = [&](auto const& entry) { return entry.second == command.module; };
    return command.module == nullptr || std::any_of(machine().modules.begin(), machine().modules.end(), alive);
  });
}

}  // namespace

namespace calls {

Result cuGraphInstantiateWithFlags(Lock& /*lock*/, GraphExec* executable, Graph graph, unsigned long long flags) {
  static_cast<void>(current());
  require(executable != nullptr && flags == 0);
  auto const source = machine().graphs.at(graph, Result::invalid_value);
  auto made = std::make_shared<ExecutableState>();
  made->commands = source->commands;
  *executable = machine().executables.add(std::move(made));
  return Result::success;
}

Result cuGraphLaunch(Lock& lock, GraphExec executable, Stream stream) {
  auto const target = stream_for_work(stream, "cuGraphLaunch");
  auto const state = machine().executables.at(executable, Result::invalid_value);
  require(target->capture == nullptr, Result::not_supported);
  if (!has_its_modules(*state)) {
    violation("cuGraphLaunch of a graph whose module was unloaded");
    refuse(Result::invalid_handle);
  }
  // CUDA Driver API, "Graph object thread safety": whoever uses one sees to it that nobody else does.
  if (std::exchange(state->launching, true)) violation("cuGraphLaunch of one graph by two threads at once");
  lock.unlock();
  std::this_thread::yield();
  lock.lock();
  state->launching = false;
  Command first;
  first.name = "cuGraphLaunch";
  if (state->last != nullptr && !state->last->done) first.waits.push_back(state->last);
  state->last = submit(target, std::move(first));
  for (auto const& command : state->commands) state->last = submit(target, command);
  return Result::success;
}

Result cuGraphDestroy(Lock& /*lock*/, Graph graph) {
  static_cast<void>(machine().graphs.at(graph, Result::invalid_value));
  machine().graphs.erase(graph);
  return Result::success;
}

Result cuGraphExecDestroy(Lock& /*lock*/, GraphExec executable) {
  static_cast<void>(machine().executables.at(executable, Result::invalid_value));
  machine().executables.erase(executable);  // what is queued of it runs
  return Result::success;
}

}  // namespace calls

}  // namespace unimem::standin
