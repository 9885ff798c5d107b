#include "manager/file_device.hpp"

#include <unimem/core/error.hpp>

#include "core/fork.hpp"
#include "device/host_queue.hpp"
#include "manager/file_memory.hpp"

#include <cstddef>
#include <span>

namespace unimem::detail {
namespace {

[[noreturn]] void refuse(char const* what) {
  throw UnsupportedOperation(what, "files", "they are written and read, and nothing else");
}

/// Copies between files and the host's memory, one after the other: a disk is no faster for several.
class FileQueue final : public HostQueue {
 public:
  Event upload(DeviceMemory to, void const* from, std::size_t bytes, CopyTerms const& terms) override {
    return submit(terms.needs, [file = FileMemory::of(to), at = to.offset, from, bytes] {
      file->put(at, {static_cast<std::byte const*>(from), bytes});
    });
  }
  Event download(void* to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) override {
    return submit(terms.needs, [file = FileMemory::of(from), at = from.offset, to, bytes] {
      file->get(at, {static_cast<std::byte*>(to), bytes});
    });
  }
  Event copy(DeviceMemory, DeviceMemory, std::size_t, CopyTerms const&) override { refuse("copying within files"); }
  Event fill(DeviceMemory, std::span<const std::byte>) override { refuse("filling files"); }
  Event run(std::shared_ptr<Program const>, Range, std::span<const KernelArgument>, std::span<const Event>) override {
    refuse("running kernels");
  }
};

}  // namespace

FileDevice& FileDevice::instance() {
  static constinit PerProcess<FileDevice> instance;
  return instance.get();
}

FileDevice::FileDevice() : Device(Backend::cpu, "file") {}

DeviceMemory FileDevice::allocate(std::size_t, Location) {
  refuse("allocating");
}

std::shared_ptr<Program const> FileDevice::compile(ProgramSource const&) {
  refuse("compiling");
}

std::unique_ptr<QueueBackend> FileDevice::make_queue() {
  return std::make_unique<FileQueue>();
}

}  // namespace unimem::detail
