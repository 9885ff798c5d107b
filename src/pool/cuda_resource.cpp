#include <unimem/pool/cuda_resource.hpp>

#include <unimem/core/error.hpp>
#include <unimem/device/cuda.hpp>

#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace unimem::detail {

struct StreamOrderedBook::State {
  State(MemoryPool& pool, Device& streams_of, Name name) : book(pool, "CudaResource", name), device(streams_of) {}

  /// Shared, since a stream may be forgotten while another thread is about to use it.
  [[nodiscard]] std::shared_ptr<Queue> queue_of(void* stream) {
    {
      std::lock_guard const lock{mutex};
      if (auto const found = queues.find(stream); found != queues.end()) return found->second;
    }
    // The driver is asked without the lock. Of two threads that do, one has asked in vain.
    auto adopted = std::make_shared<Queue>(adopt_stream(device, stream));
    std::lock_guard const lock{mutex};
    return queues.try_emplace(stream, std::move(adopted)).first->second;
  }

  AddressBook book;
  Device& device;
  std::mutex mutex;
  std::unordered_map<void*, std::shared_ptr<Queue>> queues;
};

StreamOrderedBook::StreamOrderedBook(MemoryPool& pool, Device& streams_of, Name name)
    : state_(std::make_unique<State>(pool, streams_of, name)) {}

StreamOrderedBook::~StreamOrderedBook() = default;

void* StreamOrderedBook::acquire(std::size_t bytes, std::size_t alignment) {
  return state_->book.acquire(bytes, alignment, nullptr);
}

void* StreamOrderedBook::acquire(void* stream, std::size_t bytes, std::size_t alignment) {
  auto const queue = state_->queue_of(stream);
  return state_->book.acquire(bytes, alignment, queue.get());
}

void StreamOrderedBook::release(void* address, std::size_t bytes, std::size_t alignment) noexcept {
  state_->book.release(address, bytes, alignment);
}

void StreamOrderedBook::release(void* stream, void* address, std::size_t bytes, std::size_t alignment) noexcept {
  try {
    // The owner has put his work into the stream himself: its end is that of a command behind it.
    state_->book.release(address, bytes, alignment, state_->queue_of(stream)->mark());
  } catch (std::exception const& error) {
    // It is not known when the work ends, so the block may have no other owner.
    state_->book.refuse(address, bytes, alignment, error.what());
  }
}

void StreamOrderedBook::forget(void* stream) {
  std::shared_ptr<Queue> queue;  // ends, and waits, without the lock
  std::lock_guard const lock{state_->mutex};
  if (auto node = state_->queues.extract(stream)) queue = std::move(node.mapped());
}

AddressBook const& StreamOrderedBook::book() const noexcept {
  return state_->book;
}

void StreamOrderedBook::check_property(MemoryPool const& pool, std::type_info const& property) {
  // The tags are CCCL's, in a namespace that differs from version to version; their names are what they have in common.
  auto const names = [&](std::string_view tag) {
    return std::string_view{property.name()}.find(tag) != std::string_view::npos;
  };
  auto const& device = pool.device();
  auto const location = pool.location();
  bool const for_host = location != Location::device || device.reaches_host_memory();
  // Locked memory of the host is every GPU's, unified memory its own device's alone.
  bool const of_cuda = device.backend() == Backend::cuda;
  bool const for_device =
      of_cuda ? location != Location::host : location == Location::pinned && device.backend() == Backend::cpu;
  auto const where = [&] { return std::string(device.id()) + " " + std::string(to_string(location)); };
  if (names("host_accessible") && !for_host) {
    throw UnsupportedOperation("CudaResource", where(), "host_accessible is claimed of memory the host cannot reach");
  }
  if (names("device_accessible") && !for_device) {
    throw UnsupportedOperation("CudaResource", where(),
                               "device_accessible is claimed of memory no CUDA device reaches");
  }
}

}  // namespace unimem::detail
