#include "device/cuda_standin/machine.hpp"
#include "device/cuda_standin/streams.hpp"

#include <cstring>

// Copies and fills. A copy to or from pageable memory does its host side before the call returns, as the real driver
// does it; with pinned memory both sides are touched when the stream comes to it.

namespace unimem::standin {
namespace {

Address address(void const* pointer) {
  return reinterpret_cast<Address>(pointer);
}

std::byte* bytes_at(Address at) {
  return reinterpret_cast<std::byte*>(at);
}

/// One side of a copy: rows of some bytes, `pitch` apart, in host or device memory.
struct Side {
  Address begin = 0;
  std::size_t pitch = 0;
  int device = -1;  ///< -1: host memory
};

struct Shape {
  std::size_t width = 0;
  std::size_t height = 1;
};

std::size_t extent(Side const& side, Shape shape) {
  return (shape.height - 1) * side.pitch + shape.width;
}

void copy_rows(Side const& to, Side const& from, Shape shape) {
  for (std::size_t row = 0; row < shape.height; ++row)
    std::memmove(bytes_at(to.begin + row * to.pitch), bytes_at(from.begin + row * from.pitch), shape.width);
}

void add_use(Command& command, Side const& side, Shape shape, bool write) {
  for (std::size_t row = 0; row < shape.height; ++row) {
    command.uses.push_back({side.begin + row * side.pitch, shape.width, side.device, write});
    if (side.pitch == shape.width) {  // one piece
      command.uses.back().bytes = extent(side, shape);
      return;
    }
  }
}

bool overlap(Side const& one, Side const& other, Shape shape) {
  return one.begin < other.begin + extent(other, shape) && other.begin < one.begin + extent(one, shape);
}

/// A copy of any kind, from its check to where its call may return.
Result copy(Lock& lock, char const* name, Side to, Side from, Shape shape, Stream stream) {
  auto const target = stream_for_work(stream, name);
  if (shape.width == 0 || shape.height == 0) return Result::success;
  require(to.begin != 0 && from.begin != 0);
  auto const& memory = machine().memory;
  auto const pageable_source =
      from.device < 0 && memory.host_side(from.begin, extent(from, shape)) == HostSide::pageable;
  auto const pageable_target = to.device < 0 && memory.host_side(to.begin, extent(to, shape)) == HostSide::pageable;
  if (shape.height == 1 && overlap(to, from, shape)) violation(std::string{name} + " between bytes that overlap");
  Command command;
  command.name = name;
  command.cost = Cost::copy;
  if (!pageable_target) add_use(command, to, shape, true);
  if (!pageable_source) add_use(command, from, shape, false);
  if (pageable_source && target->capture == nullptr) {
    auto staged = std::make_shared<std::vector<std::byte>>(shape.width * shape.height);
    Side const staging{address(staged->data()), shape.width, -1};
    copy_rows(staging, from, shape);
    command.work = [staged, staging, to, shape] { copy_rows(to, staging, shape); };
  } else {
    command.work = [to, from, shape] { copy_rows(to, from, shape); };
  }
  auto const completion = submit(target, std::move(command));
  if (completion == nullptr || !pageable_target) return Result::success;
  return await(lock, *target->context, completion);
}

Side on_host(void const* pointer) {
  return {address(pointer), 0, -1};
}

Side on_device(DevicePointer pointer, int device) {
  return {pointer, 0, device};
}

/// The device from whose point of view a stream's work sees memory.
int device_of(Stream stream) {
  return stream_of(stream)->context->device;
}

/// What a 2D copy calls unified is what the pointer is.
Side side_of_2d(MemoryType type, void const* host, DevicePointer pointer, std::size_t pitch, std::size_t x,
                std::size_t y, int device) {
  require(type == MemoryType::host || type == MemoryType::device || type == MemoryType::unified);
  auto const known = machine().memory.around(pointer);
  auto const is_host =
      type == MemoryType::host || (type == MemoryType::unified && (known == nullptr || known->is_host()));
  auto const base = type == MemoryType::host ? address(host) : Address{pointer};
  require(base != 0);
  return {base + y * pitch + x, pitch, is_host ? -1 : device};
}

template <class Value>
Result fill(char const* name, DevicePointer to, Value value, std::size_t count, Stream stream) {
  auto const target = stream_for_work(stream, name);
  if (count == 0) return Result::success;
  require(to != 0 && to % sizeof(Value) == 0);
  Command command;
  command.name = name;
  command.cost = Cost::copy;
  command.uses = {{to, count * sizeof(Value), target->context->device, true}};
  command.work = [to, value, count] {
    for (std::size_t at = 0; at < count; ++at) std::memcpy(bytes_at(to + at * sizeof(Value)), &value, sizeof(Value));
  };
  static_cast<void>(submit(target, std::move(command)));
  return Result::success;
}

}  // namespace

namespace calls {

Result cuMemcpyHtoDAsync(Lock& lock, DevicePointer to, void const* from, std::size_t bytes, Stream stream) {
  return copy(lock, "cuMemcpyHtoDAsync", on_device(to, device_of(stream)), on_host(from), {bytes}, stream);
}

Result cuMemcpyDtoHAsync(Lock& lock, void* to, DevicePointer from, std::size_t bytes, Stream stream) {
  return copy(lock, "cuMemcpyDtoHAsync", on_host(to), on_device(from, device_of(stream)), {bytes}, stream);
}

Result cuMemcpyDtoDAsync(Lock& lock, DevicePointer to, DevicePointer from, std::size_t bytes, Stream stream) {
  auto const device = device_of(stream);
  return copy(lock, "cuMemcpyDtoDAsync", on_device(to, device), on_device(from, device), {bytes}, stream);
}

Result cuMemcpyPeerAsync(Lock& lock, DevicePointer to, Context to_context, DevicePointer from, Context from_context,
                         std::size_t bytes, Stream stream) {
  auto const target = machine().contexts.at(to_context, Result::invalid_context);
  auto const source = machine().contexts.at(from_context, Result::invalid_context);
  for (auto const& context : {target, source}) require(context->error == Result::success, context->error);
  // Each side as its own device sees it: where there is no way between them, the driver goes through the host.
  return copy(lock, "cuMemcpyPeerAsync", on_device(to, target->device), on_device(from, source->device), {bytes},
              stream);
}

Result cuMemcpy2DAsync(Lock& lock, Copy2D const* what, Stream stream) {
  require(what != nullptr);
  auto const& c = *what;
  auto const device = device_of(stream);
  if (c.width_bytes == 0 || c.height == 0) return Result::success;
  auto const to_pitch = c.target_pitch == 0 ? c.target_x_bytes + c.width_bytes : c.target_pitch;
  auto const from_pitch = c.source_pitch == 0 ? c.source_x_bytes + c.width_bytes : c.source_pitch;
  require(to_pitch >= c.target_x_bytes + c.width_bytes && from_pitch >= c.source_x_bytes + c.width_bytes);
  auto const to =
      side_of_2d(c.target_type, c.target_host, c.target_device, to_pitch, c.target_x_bytes, c.target_y, device);
  auto const from =
      side_of_2d(c.source_type, c.source_host, c.source_device, from_pitch, c.source_x_bytes, c.source_y, device);
  // CUDA Driver API, cuMemcpy2D: within a device it "may fail for pitches not computed by cuMemAllocPitch", which are
  // multiples of this on all GPUs of today.
  constexpr std::size_t surely_works = 512;
  auto const within = to.device >= 0 && from.device >= 0;
  require(!within || (to_pitch % surely_works == 0 && from_pitch % surely_works == 0));
  return copy(lock, "cuMemcpy2DAsync", to, from, {c.width_bytes, c.height}, stream);
}

Result cuMemcpyBatchAsync(Lock& /*lock*/, DevicePointer* to, DevicePointer* from, std::size_t* bytes, std::size_t count,
                          BatchAttributes* attributes, std::size_t* attribute_begins, std::size_t attribute_count,
                          std::size_t* failed, Stream stream) {
  require(to != nullptr && from != nullptr && bytes != nullptr && count > 0);
  require(attributes != nullptr && attribute_begins != nullptr && attribute_count > 0 && attribute_count <= count);
  for (std::size_t i = 0; i < attribute_count; ++i) {
    require(i == 0 ? attribute_begins[0] == 0 : attribute_begins[i] > attribute_begins[i - 1]);
    require(attribute_begins[i] < count && attributes[i].source_order >= SourceOrder::in_stream &&
            attributes[i].source_order <= SourceOrder::any);
  }
  require(stream != nullptr && reinterpret_cast<std::uintptr_t>(stream) != legacy_stream);
  auto const target = stream_for_work(stream, "cuMemcpyBatchAsync");
  if (target->capture != nullptr) refuse(Result::stream_capture_unsupported);
  Command command;
  command.name = "cuMemcpyBatchAsync";
  command.cost = Cost::copy;
  auto const device = target->context->device;
  auto const add = [&](Address at, std::size_t size, bool write) {
    auto const known = machine().memory.around(at);
    bool const host = known == nullptr || known->is_host();
    if (host && machine().memory.host_side(at, size) == HostSide::pageable) {
      violation("cuMemcpyBatchAsync of pageable memory, which nobody says when it is read");
    }
    command.uses.push_back({at, size, host ? -1 : device, write});
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (to[i] == 0 || from[i] == 0 || bytes[i] == 0) {
      if (failed != nullptr) *failed = i;
      refuse(Result::invalid_value);
    }
    add(to[i], bytes[i], true);
    add(from[i], bytes[i], false);
  }
  // In the order that is least expected: a batch has none.
  command.work = [targets = std::vector(to, to + count), sources = std::vector(from, from + count),
                  sizes = std::vector(bytes, bytes + count)] {
    for (auto i = sizes.size(); i-- > 0;) std::memmove(bytes_at(targets[i]), bytes_at(sources[i]), sizes[i]);
  };
  static_cast<void>(submit(target, std::move(command)));
  return Result::success;
}

Result cuMemsetD8Async(Lock& /*lock*/, DevicePointer to, unsigned char value, std::size_t count, Stream stream) {
  return fill("cuMemsetD8Async", to, value, count, stream);
}

Result cuMemsetD16Async(Lock& /*lock*/, DevicePointer to, unsigned short value, std::size_t count, Stream stream) {
  return fill("cuMemsetD16Async", to, value, count, stream);
}

Result cuMemsetD32Async(Lock& /*lock*/, DevicePointer to, unsigned value, std::size_t count, Stream stream) {
  return fill("cuMemsetD32Async", to, value, count, stream);
}

}  // namespace calls

}  // namespace unimem::standin
