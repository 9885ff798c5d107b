#pragma once

#include <unimem/buffer/buffer_slice.hpp>
#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/detail/dtype.hpp>
#include <unimem/buffer/options.hpp>
#include <unimem/buffer/shape.hpp>
#include <unimem/buffer/view.hpp>
#include <unimem/core/size.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace unimem {

class BufferPool;

namespace detail {
[[nodiscard]] UNIMEM_API std::string describe(std::string_view element, Shape const& shape, BufferCore const& core);
/// Throws unless `count` elements are all that `core` holds.
UNIMEM_API void check_covers(std::size_t count, std::size_t element_bytes, BufferCore const* core);
/// Fills in what the elements are where the buffer has a name: files know it by that.
UNIMEM_API void note_elements(BufferOptions& options, std::string_view dtype, std::size_t element_bytes,
                              std::span<const std::size_t> shape);
template <class T>
[[nodiscard]] BufferOptions&& with_elements(BufferOptions&& options, Shape const& shape) {
  if (!options.name.empty()) note_elements(options, dtype_of<T>(), sizeof(T), shape.extents());
  return std::move(options);
}
}  // namespace detail

/// One logical array of `T` that lives on the host, on devices, or on both, and is copied only when an access needs a
/// side that is out of date.
///
/// Move-only; using a moved-from buffer throws InvalidArgument, asking what it has gives nothing. Concurrent const use
/// is safe, and so is a read on one thread while another asks for the state; writers need the caller's lock, as with a
/// standard container. Destroying, moving or reassigning a buffer while work uses it is fine: its memory returns when
/// the work has ended. In a forked child the host side goes on working as long as it is current; device work throws
/// UnsupportedOperation. (Behaviour after the UnifiedBuffer reference.)
template <class T>
class UnifiedBuffer : public detail::ElementAccess<T, UnifiedBuffer<T>> {
  static_assert(std::is_trivially_copyable_v<T>, "elements travel as bytes");

 public:
  using value_type = T;

  /// `shape` elements, not allocated yet. Throws InvalidArgument for negative extents or more bytes than 64 bits hold.
  /// `site`: where the buffer is made, which stands for its name in usage reports if it has none.
  explicit UnifiedBuffer(Shape shape, BufferOptions options = {},
                         std::source_location const& site = std::source_location::current())
      : shape_(std::move(shape)),
        count_(shape_.count()),
        core_(BufferCore::make(checked_multiply(count_, sizeof(T), "count"),
                               detail::with_elements<T>(std::move(options), shape_), site)) {}

  /// The same for extents in braces: `({n})` is one dimension of `n`, and nothing else.
  template <std::integral N>
  // NOLINTNEXTLINE(google-explicit-constructor): numbers alone are no buffer, in braces neither
  explicit UnifiedBuffer(std::initializer_list<N> extents, BufferOptions options = {},
                         std::source_location const& site = std::source_location::current())
      : UnifiedBuffer(Shape(extents), std::move(options), site) {}

  /// Over a core that exists already; `shape` must need exactly its bytes. All handles over one core are one buffer; if
  /// another resizes it below this one's size, every access through this one throws InvalidArgument naming both. Throws
  /// InvalidArgument for no core and for more bytes than 64 bits hold, SizeMismatch for other bytes than the core's.
  UnifiedBuffer(Shape shape, std::shared_ptr<BufferCore> core)
      : shape_(std::move(shape)), count_(shape_.count()), core_(std::move(core)) {
    detail::check_covers(count_, sizeof(T), core_.get());
  }

  UnifiedBuffer(UnifiedBuffer&& other) noexcept
      : shape_(std::exchange(other.shape_, Shape(0))),
        count_(std::exchange(other.count_, 0)),
        core_(std::move(other.core_)) {}
  UnifiedBuffer& operator=(UnifiedBuffer&& other) noexcept {
    shape_ = std::exchange(other.shape_, Shape(0));
    count_ = std::exchange(other.count_, 0);
    core_ = std::move(other.core_);
    return *this;
  }
  ~UnifiedBuffer() = default;

  /// A deep copy of the current contents, with the same options.
  [[nodiscard]] UnifiedBuffer clone() const { return clone_async().first; }
  /// The same, with the event of the copy's end, as `copy_async` has it. The clone may be used at once.
  [[nodiscard]] std::pair<UnifiedBuffer, Event> clone_async() const {
    auto const [from, whole] = core_and_base();
    UnifiedBuffer result(shape_, from->options(), std::source_location{});
    if (from->options().strict) result.allocate(true, false);
    if (from->state() == BufferState::uninitialized) return {std::move(result), Event{}};
    auto const copied = copy_bytes({from, whole}, {result.core_.get(), whole}, sizeof(T));
    return {std::move(result), copied};
  }

  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return count_ * sizeof(T); }
  [[nodiscard]] std::span<const std::size_t> shape() const noexcept { return shape_.extents(); }
  [[nodiscard]] std::size_t rank() const noexcept { return shape_.rank(); }
  /// The length of one dimension: `extent(0)` is the first, what `len` says in Python. Throws InvalidArgument for one
  /// the buffer has not, as any is of a scalar.
  [[nodiscard]] std::size_t extent(std::size_t dimension) const { return shape_.extent(dimension); }
  [[nodiscard]] std::string_view name() const noexcept { return core_ ? core_->name() : std::string_view{}; }

  /// One atomic load.
  [[nodiscard]] BufferState state() const noexcept { return core_ ? core_->state() : BufferState::uninitialized; }
  /// How writes by the host are noticed; see `Tracking`.
  [[nodiscard]] Tracking tracking() const { return core().tracking(); }
  [[nodiscard]] bool is_pinned() const noexcept { return core_ && core_->is_pinned(); }
  /// Where it is at home: the location it was given, but `host` where locked memory was refused. Whether there is
  /// memory, and where the bytes are current, is another question.
  [[nodiscard]] Location location() const { return core().location(); }
  /// How `MemoryManager::allocate` came to that, what was asked for and why it is so (`why()`); nothing for buffers
  /// that were made otherwise.
  [[nodiscard]] std::optional<PlacementDecision> placement() const {
    auto const& decision = core().options().decision;
    return decision ? std::optional(*decision) : std::nullopt;
  }
  [[nodiscard]] bool is_allocated() const { return core_ && core_->is_allocated(); }
  [[nodiscard]] bool valid_on_host() const { return core_ && core_->valid_on_host(); }
  [[nodiscard]] bool valid_on(Device& device) const { return core_ && core_->valid_on(device); }
  [[nodiscard]] BufferStatistics statistics() const noexcept {
    return core_ ? core_->statistics() : BufferStatistics{};
  }
  /// What moved between which places, link by link.
  [[nodiscard]] std::vector<LinkStatistics> migrations() const { return core().links(); }

  /// The advice that holds.
  [[nodiscard]] std::vector<AdvisedRange> advice() const { return core().advice(); }

  /// "UnifiedBuffer(shape=(4, 5), element=4 bytes, state=host_dirty)", for people.
  [[nodiscard]] std::string to_string() const { return detail::describe(std::to_string(sizeof(T)), shape_, core()); }

  /// Storage now instead of at the first access.
  UnifiedBuffer& allocate(bool on_host = true, bool on_device = true) {
    core().allocate(on_host, on_device);
    return *this;
  }
  /// Gives all storage back, with the data in it. Memory in use by pending work, leases or mappings returns when they
  /// end. Idempotent; the buffer may be used again, empty of data.
  UnifiedBuffer& free() {
    core().free();
    return *this;
  }
  /// As it was made: no storage, no data, no advice, statistics at zero.
  UnifiedBuffer& reset() {
    core().reset();
    return *this;
  }
  /// Changes the number of elements, in one dimension, keeping as many as fit of the current data, on the side where
  /// they are current; what is new is undefined. Views, and slices that no longer fit, become invalid. Waits for the
  /// buffer's work. Throws InvalidArgument while a side is leased or mapped, UnsupportedOperation for wrapped memory;
  /// the buffer is then as it was.
  UnifiedBuffer& resize(std::size_t count) {
    Shape shape(count);  // before: once the core has another size, nothing may fail
    core().resize(checked_multiply(count, sizeof(T), "count"));
    shape_ = std::move(shape);
    count_ = count;
    return *this;
  }

  /// Hints for when the device fills up: that the buffer is about to be used there, so that its copy is among the last
  /// to be given back; or that it will not be for long, so that it is among the first. Each holds until the buffer is
  /// used on the device again. They move nothing, and need no copy to be there; prefetching says `will_use` by itself.
  UnifiedBuffer& will_use() { return will_use(core().default_device()); }
  UnifiedBuffer& will_use(Device& on) {
    core().hint_next_use(on, true);
    return *this;
  }
  UnifiedBuffer& wont_use() { return wont_use(core().default_device()); }
  UnifiedBuffer& wont_use(Device& on) {
    core().hint_next_use(on, false);
    return *this;
  }
  /// Of buffers that could give device memory back, those of lower priority do first, whatever is known of their use.
  [[nodiscard]] int priority() const { return core().priority(); }
  UnifiedBuffer& set_priority(int priority) {
    core().set_priority(priority);
    return *this;
  }

  /// Gives a device copy back, after saving to the host what only it holds. Throws InvalidArgument while it is leased.
  void release_device() { core().release_device(nullptr); }
  void release_device(Device& on) { core().release_device(&on); }
  /// Gives the host copy back, after saving to the default device what only it holds. Host pointers handed out become
  /// invalid. Throws InvalidArgument while it is mapped.
  void release_host() { core().release_host(); }
  /// Of a buffer that was made from a file (`from_file`) to be read and written: writes to the file what is newer than
  /// there, and returns when the file system has said that it has all of it. What is read-only or copy-on-write writes
  /// nothing. Throws UnsupportedOperation for other buffers, and IoError; the buffer has all of it still then.
  void flush() { core().flush(); }
  /// Forgets the data without saving it; the storage stays. What was made from a file has the file's again.
  void discard() { core().discard(); }

  /// The untyped core, for code that handles buffers of any type.
  [[nodiscard]] BufferCore& core() const {
    if (!core_) detail::throw_empty_handle("buffer");
    return *core_;
  }
  /// Which bytes of the core are its elements: all. Throws InvalidArgument, naming both sizes, if another handle has
  /// resized the buffer below this one's.
  [[nodiscard]] ByteRange range() const { return core_and_base().range; }
  /// The core with a share in it, which keeps it alive: what further handles are made of. Null for a moved-from buffer.
  [[nodiscard]] std::shared_ptr<BufferCore> const& shared_core() const noexcept { return core_; }

 private:
  template <class, class>
  friend class detail::ElementAccess;
  friend class BufferPool;
  using Window = typename detail::ElementAccess<T, UnifiedBuffer<T>>::Window;

  [[nodiscard]] Window core_and_base() const {
    auto& there = core();
    ByteRange const whole{0, count_ * sizeof(T)};
    // Another handle of the same buffer may have resized it.
    if (whole.end > there.size_bytes()) detail::throw_outgrown("buffer", whole, there.size_bytes());
    return {&there, whole};
  }

  Shape shape_;
  std::size_t count_;
  std::shared_ptr<BufferCore> core_;
};

/// Copies all elements along the nearest path: on the host if the source is current there, else from the device that
/// has it to the target's device, directly where the two reach each other. Throws SizeMismatch unless both have the
/// same number of elements. `copy` does not wait for the devices: the next read waits. The windows of slices may
/// overlap.
template <class T>
void copy(UnifiedBuffer<T> const& from, UnifiedBuffer<T>& to) {
  static_cast<void>(copy_async(from, to));
}
template <class T>
void copy(BufferSlice<T> const& from, BufferSlice<T> const& to) {
  static_cast<void>(copy_async(from, to));
}

/// The same, with the event of its end.
template <class T>
Event copy_async(UnifiedBuffer<T> const& from, UnifiedBuffer<T>& to) {
  return copy_bytes({&from.core(), from.range()}, {&to.core(), to.range()}, sizeof(T));
}
template <class T>
Event copy_async(BufferSlice<T> const& from, BufferSlice<T> const& to) {
  return copy_bytes({&from.core(), from.range()}, {&to.core(), to.range()}, sizeof(T));
}

namespace detail {
[[nodiscard]] UNIMEM_API BufferOptions buffer_options(MemoryManager& manager, AllocationOptions const& options,
                                                      std::size_t bytes, Name site);
/// Takes memory where a buffer that was made with these options is at home.
UNIMEM_API void move_in(BufferCore& core);
[[nodiscard]] UNIMEM_API std::shared_ptr<BufferCore> wrap_host_memory(MemoryManager& manager, void* pointer,
                                                                      std::size_t bytes, std::size_t alignment,
                                                                      Location location, Ownership ownership);
}  // namespace detail

template <class T>
UnifiedBuffer<T> MemoryManager::allocate(std::size_t count, AllocationOptions const& options,
                                         std::source_location const& site) {
  auto const bytes = checked_multiply(count, sizeof(T), "count");
  UnifiedBuffer<T> buffer(Shape(count), detail::buffer_options(*this, options, bytes, Name::of(site)));
  detail::move_in(*buffer.shared_core());
  return buffer;
}

template <class T>
UnifiedBuffer<T> MemoryManager::allocate(std::span<const T> data, AllocationOptions const& options,
                                         std::source_location const& site) {
  UnifiedBuffer<T> buffer(Shape(data.size()),
                          detail::buffer_options(*this, options, data.size_bytes(), Name::of(site)));
  detail::move_in(*buffer.shared_core());
  buffer.copy_from(data);
  if (buffer.location() == Location::device) buffer.sync_to_device();
  return buffer;
}

template <class T>
UnifiedBuffer<T> MemoryManager::wrap(T* pointer, std::size_t count, Location location, Ownership ownership) {
  return UnifiedBuffer<T>(
      Shape(count), detail::wrap_host_memory(*this, pointer, checked_multiply(count, sizeof(T), "count"), alignof(T),
                                             location, std::move(ownership)));
}

}  // namespace unimem
