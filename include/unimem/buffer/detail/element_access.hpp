#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/map_mode.hpp>
#include <unimem/buffer/mapping.hpp>
#include <unimem/buffer/shape.hpp>

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

namespace unimem {

template <class T>
class BufferSlice;
template <class T, std::size_t Rank>
class BufferView;

namespace detail {

[[nodiscard]] UNIMEM_API ByteRange checked_range(std::size_t offset, std::size_t count, std::size_t size,
                                                 std::size_t element_bytes);
UNIMEM_API void check_element(std::size_t index, std::size_t size);
[[noreturn]] UNIMEM_API void throw_size_mismatch(char const* what, std::size_t expected, std::size_t actual);

/// What a whole buffer and a slice of one have in common: access to elements by the host and by devices. `Self` says
/// which bytes of which core its elements are, `core_and_base()`, and how many, `size()`.
///
/// Offsets and counts are in elements of `T` from the first element of `Self`, and are checked (InvalidArgument); a
/// count of `all` means "to the end". Every access may throw OutOfMemory, DeviceError, DataLost, and the error of
/// earlier asynchronous work on the bytes it names; the data is then as it was. With `strict`, BufferNotAllocated
/// before `allocate()`.
///
/// The `…_async` forms return at once: their event is done when the data is there, and carries the error if it never
/// came. They may be dropped: a later access to the data waits for as much as needed. Host memory handed to them
/// must stay until the event is done. What has been submitted cannot be called back.
template <class T, class Self>
class ElementAccess {
 public:
  /// Read-write on the host: current when this returns, and (under Tracking::access) counted as written. The address
  /// stays valid until `free`, `reset`, `resize` or `release_host`.
  [[nodiscard]] std::span<T> host() & { return host(0, all); }
  [[nodiscard]] std::span<T> host(std::size_t offset, std::size_t count) & {
    auto const [core, range] = window(offset, count);
    return view<T>(core->host(range, Intent::read_write), range);
  }
  std::span<T> host() && = delete;  // name the slice or buffer first: auto part = b.slice(1, 2); part.host()
  std::span<T> host(std::size_t, std::size_t) && = delete;  // name the slice or buffer first: auto part = …

  /// Read-only on the host. A load when the host is current.
  [[nodiscard]] std::span<const T> host_view() const& {
    auto const [core, range] = self().core_and_base();
    return view<const T>(core->host(range, Intent::read), range);
  }
  [[nodiscard]] std::span<const T> host_view(std::size_t offset, std::size_t count) const& {
    auto const [core, range] = window(offset, count);
    return view<const T>(core->host(range, Intent::read), range);
  }
  std::span<const T> host_view() const&& = delete;  // name the slice or buffer first: auto part = b.slice(1, 2);
  std::span<const T> host_view(std::size_t, std::size_t) const&& = delete;  // name the slice or buffer first

  /// Write-only on the host: nothing is copied in; every element of the window must be written.
  [[nodiscard]] std::span<T> host_overwrite() & { return host_overwrite(0, all); }
  [[nodiscard]] std::span<T> host_overwrite(std::size_t offset, std::size_t count) & {
    auto const [core, range] = window(offset, count);
    return view<T>(core->host(range, Intent::write), range);
  }
  std::span<T> host_overwrite() && = delete;  // name the slice or buffer first: auto part = b.slice(1, 2);
  std::span<T> host_overwrite(std::size_t, std::size_t) && = delete;  // name the slice or buffer first

  /// One element. Throws InvalidArgument naming the index. The mutable form counts that element as written.
  [[nodiscard]] T& at(std::size_t index) & {
    check_element(index, self().size());
    return host(index, 1).front();
  }
  [[nodiscard]] T const& at(std::size_t index) const& {
    check_element(index, self().size());
    return host_view(index, 1).front();
  }

  /// Host access with an end: see `MapMode`. While the mapping lives the host side stays where it is.
  [[nodiscard]] Mapping<T> map(MapMode mode) { return map(mode, 0, all); }
  [[nodiscard]] Mapping<T> map(MapMode mode, std::size_t offset, std::size_t count) {
    auto const [core, range] = window(offset, count);
    return Mapping<T>(self().shared_core(), range, mode);
  }

  /// Read-write on a device: a lease. Without a queue the data is there when this returns; with one it is there in the
  /// queue's order. Counted as written at once; reading back waits for the device, unless `mark_device_dirty` named an
  /// event.
  [[nodiscard]] DeviceSpan<T> device() & { return device(default_device()); }
  [[nodiscard]] DeviceSpan<T> device(Device& on) & { return leased<T>(on, nullptr, Intent::read_write); }
  [[nodiscard]] DeviceSpan<T> device(Queue& queue) & { return leased<T>(queue.device(), &queue, Intent::read_write); }

  /// Read-only on a device.
  [[nodiscard]] DeviceSpan<const T> device_view() const { return device_view(default_device()); }
  [[nodiscard]] DeviceSpan<const T> device_view(Device& on) const { return leased<const T>(on, nullptr, Intent::read); }
  [[nodiscard]] DeviceSpan<const T> device_view(Queue& queue) const {
    return leased<const T>(queue.device(), &queue, Intent::read);
  }

  /// Write-only on a device: nothing is copied in.
  [[nodiscard]] DeviceSpan<T> device_overwrite() & { return device_overwrite(default_device()); }
  [[nodiscard]] DeviceSpan<T> device_overwrite(Device& on) & { return leased<T>(on, nullptr, Intent::write); }
  [[nodiscard]] DeviceSpan<T> device_overwrite(Queue& queue) & {
    return leased<T>(queue.device(), &queue, Intent::write);
  }

  /// Bring a side up to date. BufferNotAllocated on a buffer without storage.
  void sync_to_device() { sync_to_device(default_device()); }
  void sync_to_device(Device& on) {
    auto const [core, range] = self().core_and_base();
    core->sync_to_device(on, range);
  }
  void sync_to_host() {
    auto const [core, range] = self().core_and_base();
    core->sync_to_host(range);
  }
  void synchronize() {
    auto const [core, range] = self().core_and_base();
    core->synchronize(range);
  }
  Event sync_to_device_async() { return sync_to_device_async(default_device()); }
  Event sync_to_device_async(Device& on) {
    auto const [core, range] = self().core_and_base();
    return core->sync_to_device_async(on, range);
  }
  Event sync_to_host_async() {
    auto const [core, range] = self().core_and_base();
    return core->sync_to_host_async(range);
  }
  Event synchronize_async() {
    auto const [core, range] = self().core_and_base();
    return core->synchronize_async(range);
  }

  /// Starts bringing the elements to a device and returns at once. Like `sync_to_device_async`, and works on a buffer
  /// that has no storage yet.
  Event prefetch() const { return prefetch(default_device()); }
  Event prefetch(Device& on) const {
    auto const [core, range] = self().core_and_base();
    return core->prefetch(on, nullptr, range);
  }
  Event prefetch(Queue& queue) const {
    auto const [core, range] = self().core_and_base();
    return core->prefetch(queue.device(), &queue, range);
  }

  /// A hint on how the elements will be used, for drivers that move memory by themselves (`Location::unified`). It is
  /// taken by every buffer on every device, changes no result and moves nothing; a device that has no use for it does
  /// nothing. `place` is the device it speaks of, the host being device("cpu"); the default device if none is named.
  /// `read_mostly` speaks of no place. Elements have one preferred location at most: the one named last.
  ///
  /// It holds, also for storage that comes later, until it is taken back or the buffer is reset, and a `resize` keeps
  /// for the whole buffer what held for the whole; clones start without. What holds: `advice()`. Throws InvalidArgument
  /// for an enumerator that does not exist.
  Self& advise(Advice advice) { return advise(advice, nullptr, true); }
  Self& advise(Advice advice, Device& place) { return advise(advice, &place, true); }
  /// Takes it back, as far as it was given.
  Self& unadvise(Advice advice) { return advise(advice, nullptr, false); }
  Self& unadvise(Advice advice, Device& place) { return advise(advice, &place, false); }

  /// Declares writes the library could not see. Throws CoherenceConflict when they overlap unsynchronized writes of the
  /// other side without covering all of them. BufferNotAllocated on a buffer without storage.
  void mark_host_dirty(std::size_t offset = 0, std::size_t count = all) {
    auto const [core, range] = window(offset, count);
    core->mark_host_dirty(range);
  }
  /// For a device, `event` says when the work that wrote ends; without one the next read-back waits for the whole
  /// device.
  void mark_device_dirty(std::size_t offset = 0, std::size_t count = all, Event event = {}) {
    auto const [core, range] = window(offset, count);
    core->mark_device_dirty(nullptr, range, event);
  }
  void mark_device_dirty(Device& on, std::size_t offset = 0, std::size_t count = all, Event event = {}) {
    auto const [core, range] = window(offset, count);
    core->mark_device_dirty(&on, range, event);
  }

  /// Sets every element, on the side where the data is current.
  Self& fill(T const& value) { return fill(value, 0, all); }
  Self& fill(T const& value, std::size_t offset, std::size_t count) {
    auto const [core, range] = window(offset, count);
    core->fill(range, std::as_bytes(std::span{&value, 1}));
    return self();
  }
  Event fill_async(T const& value, std::size_t offset = 0, std::size_t count = all) {
    auto const [core, range] = window(offset, count);
    return core->fill_async(range, std::as_bytes(std::span{&value, 1}));
  }

  /// Replaces the contents on the host. Throws SizeMismatch, before anything happens, unless there are exactly `size()`
  /// elements. These may be the buffer's own, by an address that a host view gave: where they overlap what they
  /// replace, the result is as if they had been copied aside first. So it is with `copy_to` and the `…_async` forms.
  void copy_from(std::span<const T> data) {
    auto const [core, range] = exactly("copy_from", data.size());
    core->write(range.begin, std::as_bytes(data));
  }
  /// Replaces the elements from `offset` on; SizeMismatch if they do not fit.
  void copy_from(std::span<const T> data, std::size_t offset) {
    auto const [core, range] = fitting("copy_from", offset, data.size());
    core->write(range.begin, std::as_bytes(data));
  }
  Event copy_from_async(std::span<const T> data) {
    auto const [core, range] = exactly("copy_from", data.size());
    return core->write_async(range.begin, std::as_bytes(data));
  }
  Event copy_from_async(std::span<const T> data, std::size_t offset) {
    auto const [core, range] = fitting("copy_from", offset, data.size());
    return core->write_async(range.begin, std::as_bytes(data));
  }

  /// Copies the current contents out. Throws SizeMismatch unless there is room for exactly `size()` elements.
  void copy_to(std::span<T> data) const {
    auto const [core, range] = exactly("copy_to", data.size());
    core->read(range.begin, std::as_writable_bytes(data));
  }
  /// Copies `data.size()` elements from `offset` on; SizeMismatch if there are not that many.
  void copy_to(std::span<T> data, std::size_t offset) const {
    auto const [core, range] = fitting("copy_to", offset, data.size());
    core->read(range.begin, std::as_writable_bytes(data));
  }
  Event copy_to_async(std::span<T> data) const {
    auto const [core, range] = exactly("copy_to", data.size());
    return core->read_async(range.begin, std::as_writable_bytes(data));
  }
  Event copy_to_async(std::span<T> data, std::size_t offset) const {
    auto const [core, range] = fitting("copy_to", offset, data.size());
    return core->read_async(range.begin, std::as_writable_bytes(data));
  }
  [[nodiscard]] std::vector<T> to_vector() const {
    auto const [core, range] = self().core_and_base();
    std::vector<T> result(self().size());
    core->read(range.begin, std::as_writable_bytes(std::span{result}));
    return result;
  }

  /// A window that shares the memory: what is written through one is seen through the other. It keeps the buffer's
  /// contents alive, also when the buffer object is gone.
  [[nodiscard]] BufferSlice<T> slice(std::size_t offset, std::size_t count = all) const {
    auto const [core, range] = window(offset, count);
    return BufferSlice<T>(self().shared_core(), range);
  }

  /// The same elements as a row-major array of two or three dimensions. Throws SizeMismatch unless the extents multiply
  /// to `size()`.
  [[nodiscard]] BufferView<T, 2> view_2d(std::size_t rows, std::size_t columns) const {
    return BufferView<T, 2>(slice(0), {rows, columns});
  }
  [[nodiscard]] BufferView<T, 3> view_3d(std::size_t planes, std::size_t rows, std::size_t columns) const {
    return BufferView<T, 3>(slice(0), {planes, rows, columns});
  }

  /// The same bytes as elements of another type. Throws SizeMismatch unless they are a whole number of them, and
  /// InvalidArgument if the first byte's offset in the buffer does not suit the type's alignment.
  template <class U>
  [[nodiscard]] BufferSlice<U> as() const {
    auto const [core, range] = self().core_and_base();
    return BufferSlice<U>(self().shared_core(), range);
  }

 protected:
  struct Window {
    BufferCore* core = nullptr;
    ByteRange range;
  };

 private:
  friend Self;
  ElementAccess() = default;

  [[nodiscard]] Self& self() noexcept { return static_cast<Self&>(*this); }
  [[nodiscard]] Self const& self() const noexcept { return static_cast<Self const&>(*this); }
  [[nodiscard]] Device& default_device() const { return self().core_and_base().core->default_device(); }

  Self& advise(Advice advice, Device* place, bool holds) {
    auto const [core, range] = self().core_and_base();
    core->advise(range, advice, place, holds);
    return self();
  }
  [[nodiscard]] Window window(std::size_t offset, std::size_t count) const {
    auto const [core, base] = self().core_and_base();
    auto const inner = checked_range(offset, count, self().size(), sizeof(T));
    return {core, {base.begin + inner.begin, base.begin + inner.end}};
  }
  [[nodiscard]] Window exactly(char const* what, std::size_t count) const {
    if (count != self().size()) throw_size_mismatch(what, self().size(), count);
    return window(0, all);
  }
  [[nodiscard]] Window fitting(char const* what, std::size_t offset, std::size_t count) const {
    auto const size = self().size();
    if (offset > size || count > size - offset) throw_size_mismatch(what, offset > size ? 0 : size - offset, count);
    return window(offset, count);
  }
  template <class U>
  static std::span<U> view(void* base, ByteRange range) {
    return {reinterpret_cast<U*>(static_cast<std::byte*>(base) + range.begin), range.size() / sizeof(U)};
  }
  template <class U>
  DeviceSpan<U> leased(Device& on, Queue* queue, Intent intent) const {
    auto const [core, range] = self().core_and_base();
    return DeviceSpan<U>(core->lease(on, queue, range, intent));
  }
};

}  // namespace detail
}  // namespace unimem
