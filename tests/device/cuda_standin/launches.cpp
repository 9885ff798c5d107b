#include "device/cuda_standin/modules.hpp"
#include "device/cuda_standin/streams.hpp"

#include <array>
#include <cstring>

namespace unimem::standin {
namespace {

constexpr unsigned largest_block = 1024;
constexpr unsigned largest_block_z = 64;
constexpr unsigned largest_grid_x = 0x7fff'ffff;
constexpr unsigned largest_grid_yz = 65535;
constexpr unsigned largest_shared_bytes = 48U << 10;  // without an attribute that allows more

/// Below this, a number in a kernel's parameters may well be a count. The program's own memory lies above it.
constexpr Address lowest_host_address = Address{1} << 40;
/// And below this: no program has memory there, so that a number with its upper bits set is a number.
constexpr Address host_addresses_end = Address{1} << 47;

/// A kernel with everything it was given, copied when it was launched.
struct Launch {
  void (*run)(unsigned const*, unsigned const*, void* const*) = nullptr;
  std::array<unsigned, 3> grid{};
  std::array<unsigned, 3> block{};
  std::vector<std::vector<std::byte>> values;
};

// How cuLaunchKernel's last parameter names a packed buffer of parameters.
auto* const buffer_pointer = reinterpret_cast<void*>(1);
auto* const buffer_size = reinterpret_cast<void*>(2);

std::vector<std::byte> bytes_of(void const* value, std::size_t bytes) {
  auto const* const begin = static_cast<std::byte const*>(value);
  return {begin, begin + bytes};
}

std::vector<std::vector<std::byte>> values_by_address(StandInKernel const& kernel, void* const* parameters) {
  std::vector<std::vector<std::byte>> values;
  for (unsigned at = 0; at < kernel.parameter_count; ++at) {
    require(parameters[at] != nullptr);
    values.push_back(bytes_of(parameters[at], kernel.parameter_bytes[at]));
  }
  return values;
}

std::vector<std::vector<std::byte>> values_from_buffer(StandInKernel const& kernel, void* const* extra) {
  std::byte const* buffer = nullptr;
  std::size_t size = 0;
  for (; *extra != nullptr; extra += 2) {
    if (extra[0] == buffer_pointer)
      buffer = static_cast<std::byte const*>(extra[1]);
    else if (extra[0] == buffer_size)
      size = *static_cast<std::size_t const*>(extra[1]);
    else
      refuse(Result::invalid_value);
  }
  std::vector<std::vector<std::byte>> values;
  for (unsigned at = 0; at < kernel.parameter_count; ++at) {
    auto const offset = kernel.parameter_offsets[at], bytes = kernel.parameter_bytes[at];
    require(buffer != nullptr && offset + bytes <= size);
    values.push_back(bytes_of(buffer + offset, bytes));
  }
  return values;
}

/// What a kernel may touch by what it was given: every number in it that is an address is taken for a pointer.
void add_uses(Command& command, std::vector<std::byte> const& value, int device) {
  for (std::size_t at = 0; at + sizeof(Address) <= value.size(); at += sizeof(Address)) {
    Address pointer = 0;
    std::memcpy(&pointer, value.data() + at, sizeof pointer);
    auto const& memory = machine().memory;
    if (memory.around(pointer) == nullptr) {
      auto const ends_an_allocation = pointer > 0 && memory.around(pointer - 1) != nullptr;
      if (ends_an_allocation) continue;  // of nothing: it will not be followed
      auto const host = pointer >= lowest_host_address && pointer < host_addresses_end && is_mapped(pointer);
      if (!is_device_address(pointer) && !host) continue;
    }
    command.uses.push_back({pointer, 0, device, false});
  }
}

}  // namespace

namespace calls {

Result cuLaunchKernel(Lock& /*lock*/, Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream,
                      void** parameters, void** extra) {
  auto const context = current();
  auto const state = machine().functions.at(function);
  auto const target = stream_of(stream);
  require(state->module->context == context && target->context == context, Result::invalid_handle);
  require(grid_x > 0 && grid_y > 0 && grid_z > 0 && block_x > 0 && block_y > 0 && block_z > 0);
  require(grid_x <= largest_grid_x && grid_y <= largest_grid_yz && grid_z <= largest_grid_yz);
  require(block_z <= largest_block_z && std::uint64_t{block_x} * block_y * block_z <= largest_block);
  require(shared_bytes <= largest_shared_bytes);
  auto const& kernel = *state->kernel;
  require(parameters == nullptr || extra == nullptr);
  require(parameters != nullptr || extra != nullptr || kernel.parameter_count == 0);
  auto launch = std::make_shared<Launch>();
  launch->run = kernel.run;
  launch->grid = {grid_x, grid_y, grid_z};
  launch->block = {block_x, block_y, block_z};
  launch->values = extra != nullptr ? values_from_buffer(kernel, extra) : values_by_address(kernel, parameters);
  Command command;
  command.name = "cuLaunchKernel";
  command.cost = Cost::kernel;
  command.module = state->module;
  for (auto const& value : launch->values) add_uses(command, value, context->device);
  command.work = [launch] {
    auto values = launch->values;  // a kernel may write its parameters, and a graph runs it again
    std::vector<void*> addresses;
    for (auto& value : values) addresses.push_back(value.data());
    launch->run(launch->grid.data(), launch->block.data(), addresses.data());
  };
  static_cast<void>(submit(target, std::move(command)));
  return Result::success;
}

}  // namespace calls

}  // namespace unimem::standin
