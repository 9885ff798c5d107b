#include "device/cuda_standin/machine.hpp"

#include "device/cuda_standin/streams.hpp"

#include <cstdio>
#include <cstdlib>

namespace unimem::standin {
namespace {

struct Stack {
  Stack() = default;
  Stack(Stack const&) = delete;
  Stack& operator=(Stack const&) = delete;
  ~Stack() {
    if (contexts.empty() || !process_is_whole()) return;
    Lock const lock{machine().mutex};
    violation("a thread ended with a context on its stack");
  }

  std::vector<std::shared_ptr<ContextState>> contexts;
};

}  // namespace

Machine& machine() {
  static auto& only = *new Machine;
  return only;
}

DeviceState& Machine::device(Device ordinal) {
  require(ordinal >= 0 && static_cast<std::size_t>(ordinal) < devices.size(), Result::invalid_device);
  return devices[static_cast<std::size_t>(ordinal)];
}

void violation(std::string text) {
  auto const reaction = machine().reaction;
  if (reaction != Reaction::note) std::fprintf(stderr, "stand-in CUDA driver: %s\n", text.c_str());
  if (reaction == Reaction::abort) std::abort();
  machine().violations.push_back(std::move(text));
}

std::vector<std::shared_ptr<ContextState>>& context_stack() {
  thread_local Stack stack;
  return stack.contexts;
}

std::shared_ptr<ContextState> current_even_if_lost() {
  auto const& stack = context_stack();
  require(!stack.empty() && stack.back() != nullptr, Result::invalid_context);
  require(!stack.back()->destroyed, Result::context_is_destroyed);
  return stack.back();
}

std::shared_ptr<ContextState> current() {
  auto context = current_even_if_lost();
  require(context->error == Result::success, context->error);
  return context;
}

}  // namespace unimem::standin
