#include "device/cuda_standin/machine.hpp"

#include "device/cuda_standin/streams.hpp"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>

namespace unimem::standin {
namespace {

using Stack = std::vector<std::shared_ptr<ContextState>>;

/// The end of a thread that ever had a current context.
void end_stack(void* kept) {
  std::unique_ptr<Stack> const stack{static_cast<Stack*>(kept)};
  if (stack->empty() || !process_is_whole()) return;
  Lock const lock{machine().mutex};
  violation("a thread ended with a context on its stack");
}

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
  // Not thread_local: what the loader gives a thread for a library that came later is freed by whoever gets the
  // thread's place, which ThreadSanitizer takes for a race.
  static auto const key = [] {
    pthread_key_t made{};
    pthread_key_create(&made, end_stack);
    return made;
  }();
  auto* stack = static_cast<Stack*>(pthread_getspecific(key));
  if (stack == nullptr) {
    stack = std::make_unique<Stack>().release();
    pthread_setspecific(key, stack);
  }
  return *stack;
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
