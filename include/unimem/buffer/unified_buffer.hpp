#pragma once

#include <unimem/buffer/buffer_core.hpp>
#include <unimem/buffer/options.hpp>
#include <unimem/buffer/shape.hpp>
#include <unimem/core/size.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace unimem {

namespace detail {
[[nodiscard]] UNIMEM_API ByteRange checked_range(std::size_t offset, std::size_t count, std::size_t size,
                                                 std::size_t element_bytes);
[[noreturn]] UNIMEM_API void throw_size_mismatch(char const* what, std::size_t expected, std::size_t actual);
[[nodiscard]] UNIMEM_API std::string describe(std::string_view element, Shape const& shape, BufferCore const& core);
}  // namespace detail

/// One logical array of `T` that lives on the host, on devices, or on both, and is copied only when somebody looks at a
/// side that is out of date. Offsets and counts are in elements, and are checked; a count of `all` means "to the end".
///
/// Move-only; a moved-from buffer may only be destroyed or assigned to. Concurrent const use is safe, and so is a read
/// on one thread while another asks for the state; writers need the caller's lock, as with a standard container.
/// Destroying a buffer while work uses it is fine: its memory returns when the work has ended.
///
/// Every access may throw OutOfMemory, DeviceError, DataLost, and the error of earlier asynchronous work on this
/// buffer; the data is then as it was. With `strict`, BufferNotAllocated before `allocate()`. (Behaviour after the
/// UnifiedBuffer reference.)
template <class T>
class UnifiedBuffer {
  static_assert(std::is_trivially_copyable_v<T>, "elements travel as bytes");

 public:
  using value_type = T;

  /// `shape` elements, not allocated yet. Throws InvalidArgument for negative extents or more bytes than 64 bits hold.
  explicit UnifiedBuffer(Shape shape, BufferOptions options = {})
      : shape_(std::move(shape)),
        count_(shape_.count()),
        core_(std::make_shared<BufferCore>(checked_multiply(count_, sizeof(T), "count"), std::move(options))) {}

  /// Over a core that exists already; `shape` must need exactly its bytes.
  UnifiedBuffer(Shape shape, std::shared_ptr<BufferCore> core)
      : shape_(std::move(shape)), count_(shape_.count()), core_(std::move(core)) {}

  UnifiedBuffer(UnifiedBuffer&&) noexcept = default;
  UnifiedBuffer& operator=(UnifiedBuffer&&) noexcept = default;
  ~UnifiedBuffer() = default;

  /// A deep copy of the current contents, with the same options.
  [[nodiscard]] UnifiedBuffer clone() const {
    UnifiedBuffer result(shape_, core_->options());
    if (core_->state() != BufferState::uninitialized) copy_bytes(*core_, *result.core_, sizeof(T));
    return result;
  }

  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return core_->size_bytes(); }
  [[nodiscard]] std::span<const std::size_t> shape() const noexcept { return shape_.extents(); }
  [[nodiscard]] std::string_view name() const noexcept { return core_->name(); }

  /// One atomic load.
  [[nodiscard]] BufferState state() const noexcept { return core_->state(); }
  [[nodiscard]] bool is_pinned() const noexcept { return core_->is_pinned(); }
  [[nodiscard]] bool is_allocated() const { return core_->is_allocated(); }
  [[nodiscard]] bool valid_on_host() const { return core_->valid_on_host(); }
  [[nodiscard]] bool valid_on(Device& device) const { return core_->valid_on(device); }
  [[nodiscard]] BufferStatistics statistics() const noexcept { return core_->statistics(); }

  /// "UnifiedBuffer(shape=(4, 5), element=4 bytes, state=host_dirty)", for people.
  [[nodiscard]] std::string to_string() const { return detail::describe(std::to_string(sizeof(T)), shape_, *core_); }

  /// Read-write on the host: current when this returns, and (under Tracking::access) counted as written.
  [[nodiscard]] std::span<T> host() & { return host(0, all); }
  [[nodiscard]] std::span<T> host(std::size_t offset, std::size_t count) & {
    auto const range = window(offset, count);
    return view<T>(core_->host(range, Intent::read_write), range);
  }
  std::span<T> host() && = delete;
  std::span<T> host(std::size_t, std::size_t) && = delete;

  /// Read-only on the host. A load when the host is current.
  [[nodiscard]] std::span<const T> host_view() const& {
    return view<const T>(core_->host({0, core_->size_bytes()}, Intent::read), {0, core_->size_bytes()});
  }
  [[nodiscard]] std::span<const T> host_view(std::size_t offset, std::size_t count) const& {
    auto const range = window(offset, count);
    return view<const T>(core_->host(range, Intent::read), range);
  }
  std::span<const T> host_view() const&& = delete;

  /// Write-only on the host: nothing is copied in; every element of the window must be written.
  [[nodiscard]] std::span<T> host_overwrite() & { return host_overwrite(0, all); }
  [[nodiscard]] std::span<T> host_overwrite(std::size_t offset, std::size_t count) & {
    auto const range = window(offset, count);
    return view<T>(core_->host(range, Intent::write), range);
  }
  std::span<T> host_overwrite() && = delete;

  /// One element. Throws InvalidArgument naming the index. The mutable form counts that element as written.
  [[nodiscard]] T& at(std::size_t index) & { return host(index, 1).front(); }
  [[nodiscard]] T const& at(std::size_t index) const& { return host_view(index, 1).front(); }

  /// Read-write on a device: a lease. Without a queue the data is there when this returns; with one it is there in the
  /// queue's order. Counted as written at once; reading back waits for the device, unless `mark_device_dirty` named an
  /// event.
  [[nodiscard]] DeviceSpan<T> device() & { return device(core_->default_device()); }
  [[nodiscard]] DeviceSpan<T> device(Device& on) & { return leased<T>(on, nullptr, Intent::read_write); }
  [[nodiscard]] DeviceSpan<T> device(Queue& queue) & { return leased<T>(queue.device(), &queue, Intent::read_write); }

  /// Read-only on a device.
  [[nodiscard]] DeviceSpan<const T> device_view() const& { return device_view(core_->default_device()); }
  [[nodiscard]] DeviceSpan<const T> device_view(Device& on) const& {
    return leased<const T>(on, nullptr, Intent::read);
  }
  [[nodiscard]] DeviceSpan<const T> device_view(Queue& queue) const& {
    return leased<const T>(queue.device(), &queue, Intent::read);
  }

  /// Write-only on a device: nothing is copied in.
  [[nodiscard]] DeviceSpan<T> device_overwrite() & { return device_overwrite(core_->default_device()); }
  [[nodiscard]] DeviceSpan<T> device_overwrite(Device& on) & { return leased<T>(on, nullptr, Intent::write); }
  [[nodiscard]] DeviceSpan<T> device_overwrite(Queue& queue) & {
    return leased<T>(queue.device(), &queue, Intent::write);
  }

  /// Bring a side up to date. BufferNotAllocated on a buffer without storage.
  void sync_to_device() { core_->sync_to_device(core_->default_device()); }
  void sync_to_device(Device& on) { core_->sync_to_device(on); }
  void sync_to_host() { core_->sync_to_host(); }
  void synchronize() { core_->synchronize(); }

  /// Starts bringing the buffer to a device and returns at once.
  Event prefetch() const { return prefetch(core_->default_device()); }
  Event prefetch(Device& on) const { return core_->prefetch(on, nullptr); }
  Event prefetch(Queue& queue) const { return core_->prefetch(queue.device(), &queue); }

  /// Declares writes the library could not see. Throws CoherenceConflict when they overlap unsynchronized writes of the
  /// other side without covering all of them. BufferNotAllocated on a buffer without storage.
  void mark_host_dirty(std::size_t offset = 0, std::size_t count = all) {
    core_->mark_host_dirty(window(offset, count));
  }
  /// For a device, `event` says when the work that wrote ends; without one the next read-back waits for the whole
  /// device.
  void mark_device_dirty(std::size_t offset = 0, std::size_t count = all, Event event = {}) {
    core_->mark_device_dirty(nullptr, window(offset, count), event);
  }
  void mark_device_dirty(Device& on, std::size_t offset = 0, std::size_t count = all, Event event = {}) {
    core_->mark_device_dirty(&on, window(offset, count), event);
  }

  /// Sets every element, on the side where the data is current.
  UnifiedBuffer& fill(T const& value) { return fill(value, 0, all); }
  UnifiedBuffer& fill(T const& value, std::size_t offset, std::size_t count) {
    core_->fill(window(offset, count), std::as_bytes(std::span{&value, 1}));
    return *this;
  }

  /// Replaces the contents on the host. Throws SizeMismatch, before anything happens, unless there are exactly `size()`
  /// elements.
  void copy_from(std::span<const T> data) {
    if (data.size() != count_) detail::throw_size_mismatch("copy_from", count_, data.size());
    core_->write(0, std::as_bytes(data));
  }
  /// Replaces the elements from `offset` on; SizeMismatch if they do not fit.
  void copy_from(std::span<const T> data, std::size_t offset) {
    if (offset > count_ || data.size() > count_ - offset) {
      detail::throw_size_mismatch("copy_from", offset > count_ ? 0 : count_ - offset, data.size());
    }
    core_->write(offset * sizeof(T), std::as_bytes(data));
  }

  /// Copies the current contents out. Throws SizeMismatch unless there is room for exactly `size()` elements.
  void copy_to(std::span<T> data) const {
    if (data.size() != count_) detail::throw_size_mismatch("copy_to", count_, data.size());
    core_->read(0, std::as_writable_bytes(data));
  }
  /// Copies `data.size()` elements from `offset` on; SizeMismatch if there are not that many.
  void copy_to(std::span<T> data, std::size_t offset) const {
    if (offset > count_ || data.size() > count_ - offset) {
      detail::throw_size_mismatch("copy_to", offset > count_ ? 0 : count_ - offset, data.size());
    }
    core_->read(offset * sizeof(T), std::as_writable_bytes(data));
  }
  [[nodiscard]] std::vector<T> to_vector() const {
    std::vector<T> result(count_);
    core_->read(0, std::as_writable_bytes(std::span{result}));
    return result;
  }

  /// Storage now instead of at the first access.
  UnifiedBuffer& allocate(bool on_host = true, bool on_device = true) {
    core_->allocate(on_host, on_device);
    return *this;
  }
  /// Gives all storage back, with the data in it. Memory in use by pending work or leases returns when they end.
  /// Idempotent.
  UnifiedBuffer& free() {
    core_->free();
    return *this;
  }

  /// Gives a device copy back, after saving to the host what only it holds. Throws InvalidArgument while it is leased.
  void release_device() { core_->release_device(nullptr); }
  void release_device(Device& on) { core_->release_device(&on); }
  /// Gives the host copy back, after saving to the default device what only it holds. Host pointers handed out become
  /// invalid.
  void release_host() { core_->release_host(); }
  /// Forgets the data without saving it; the storage stays.
  void discard() { core_->discard(); }

  /// The untyped core, for code that handles buffers of any type.
  [[nodiscard]] BufferCore& core() const noexcept { return *core_; }

 private:
  [[nodiscard]] ByteRange window(std::size_t offset, std::size_t count) const {
    return detail::checked_range(offset, count, count_, sizeof(T));
  }
  template <class U>
  static std::span<U> view(void* base, ByteRange range) {
    return {reinterpret_cast<U*>(static_cast<std::byte*>(base) + range.begin), range.size() / sizeof(U)};
  }
  template <class U>
  DeviceSpan<U> leased(Device& on, Queue* queue, Intent intent) const {
    return DeviceSpan<U>(core_->lease(on, queue, {0, core_->size_bytes()}, intent));
  }

  Shape shape_;
  std::size_t count_;
  std::shared_ptr<BufferCore> core_;
};

/// Copies all elements along the nearest path. Throws SizeMismatch unless both have the same number of elements.
template <class T>
void copy(UnifiedBuffer<T> const& from, UnifiedBuffer<T>& to) {
  copy_bytes(from.core(), to.core(), sizeof(T));
}

namespace detail {
[[nodiscard]] UNIMEM_API BufferOptions buffer_options(MemoryManager& manager, AllocationOptions const& options);
[[nodiscard]] UNIMEM_API std::shared_ptr<BufferCore> wrap_host_memory(MemoryManager& manager, void* pointer,
                                                                      std::size_t bytes, std::size_t alignment,
                                                                      Location location, Ownership ownership);
}  // namespace detail

template <class T>
UnifiedBuffer<T> MemoryManager::allocate(std::size_t count, AllocationOptions const& options) {
  UnifiedBuffer<T> buffer(Shape(count), detail::buffer_options(*this, options));
  bool const on_device = options.location == Location::device;
  buffer.allocate(!on_device, on_device);
  return buffer;
}

template <class T>
UnifiedBuffer<T> MemoryManager::allocate(std::span<const T> data, AllocationOptions const& options) {
  UnifiedBuffer<T> buffer(Shape(data.size()), detail::buffer_options(*this, options));
  buffer.copy_from(data);
  if (options.location == Location::device) buffer.sync_to_device();
  return buffer;
}

template <class T>
UnifiedBuffer<T> MemoryManager::wrap(T* pointer, std::size_t count, Location location, Ownership ownership) {
  return UnifiedBuffer<T>(
      Shape(count), detail::wrap_host_memory(*this, pointer, checked_multiply(count, sizeof(T), "count"), alignof(T),
                                             location, std::move(ownership)));
}

}  // namespace unimem
