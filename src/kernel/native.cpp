#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/kernel/native.hpp>

#include "core/nvtx.hpp"
#include "core/type_name.hpp"
#include "kernel/recording.hpp"

#include <fmt/format.h>

#include <exception>
#include <string>
#include <vector>

namespace unimem {
namespace {

constexpr auto what = "native work";

/// Why an operand does not go with the parameter; empty where it does.
std::string misfit(KernelOperand const& operand, NativeParameter const& parameter) {
  if (!parameter.is_pointer) return {};
  auto const& byte = typeid(std::byte);
  bool const untyped = *parameter.type == byte || *operand.element == byte;
  if (!untyped && !detail::same_type(*parameter.type, *operand.element)) {
    return "has elements of another type than the pointer it is taken by";
  }
  if (operand.operand.intent == Intent::read && parameter.is_mutable) {
    return "is passed as read, and taken by a pointer that may write: pass readwrite, or take a pointer to const";
  }
  if (operand.operand.intent == Intent::write && !parameter.is_mutable) {
    return "is passed as write, and taken by a pointer to const, which cannot";
  }
  if (operand.operand.range.begin % parameter.alignment != 0) {
    return fmt::format("starts at byte {}, its elements need alignment {}", operand.operand.range.begin,
                       parameter.alignment);
  }
  return {};
}

}  // namespace

Event run_native(Queue& queue, std::span<const KernelOperand> operands, std::span<const NativeParameter> parameters,
                 std::function<void(void*, std::span<const DeviceMemory>, std::span<void* const>)> const& submit) {
  detail::NvtxRange const shown{[] { return std::string(what); }};
  auto& device = queue.device();
  if (detail::Recording::of_this_thread() != nullptr) {
    throw UnsupportedOperation(what, std::string(device.id()), "launches alone are captured into a graph");
  }
  static_cast<void>(queue.native<void*>());  // throws where there is none, before anything moves
  if (operands.size() != parameters.size()) {
    throw KernelError(what, fmt::format("given {} buffers, takes {}", operands.size(), parameters.size()));
  }
  std::vector<Operand> untyped;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    auto const why = misfit(operands[i], parameters[i]);
    if (!why.empty()) throw KernelError(what, fmt::format("argument {} {}", i + 1, why));
    untyped.push_back(operands[i].operand);
  }
  std::exception_ptr thrown;
  auto const event =
      use_on_device(queue, untyped, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
        std::vector<void*> addresses(memory.size());
        for (std::size_t i = 0; i < memory.size(); ++i) {
          if (!parameters[i].is_pointer || memory[i].empty()) continue;
          addresses[i] = device.address(memory[i]);
          if (addresses[i] == nullptr) {
            throw UnsupportedOperation("a pointer to device memory", std::string(device.id()),
                                       "its memory has no address: take a unimem::DeviceMemory");
          }
        }
        return queue.run_native(
            [&](void* native) {
              try {
                submit(native, memory, addresses);
              } catch (...) {
                thrown = std::current_exception();
                throw;
              }
            },
            needs);
      });
  if (!thrown) return event;
  // The caller is told here: what it was to write is back at its last good copy, and no access says it
  // again.
  static_cast<void>(event.wait_for_error());
  for (auto const& operand : untyped) operand.buffer->resolve_known(operand.range, thrown);
  std::rethrow_exception(thrown);
}

}  // namespace unimem
