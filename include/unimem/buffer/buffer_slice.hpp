#pragma once

#include <unimem/buffer/detail/element_access.hpp>
#include <unimem/core/error.hpp>

#include <cstddef>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

namespace unimem {

namespace detail {
/// Throws SizeMismatch or InvalidArgument unless `range` can be elements of that size and alignment.
UNIMEM_API void check_elements(ByteRange range, std::size_t element_bytes, std::size_t alignment);
/// `what` as in "slice": it was made of more bytes than its buffer has now.
[[noreturn]] UNIMEM_API void throw_outgrown(char const* what, ByteRange range, std::size_t bytes);
}  // namespace detail

/// A window of a buffer: elements of `T`, with everything a buffer can do to elements. It shares the buffer's memory
/// and its coherence, byte for byte, and keeps them alive; nothing is ever copied to make one. Slices of slices add
/// their offsets.
///
/// After the buffer was freed a slice of it may be used like the buffer itself. If the buffer was resized below the
/// slice's end, every access throws InvalidArgument naming both. Copies of a slice are further handles to the same
/// window. Thread-safety as of the buffer.
template <class T>
class BufferSlice : public detail::ElementAccess<T, BufferSlice<T>> {
  static_assert(std::is_trivially_copyable_v<T>, "elements travel as bytes");

 public:
  using value_type = T;

  /// Of nothing: may be assigned to.
  BufferSlice() = default;
  BufferSlice(std::shared_ptr<BufferCore> core, ByteRange range) : core_(std::move(core)), range_(range) {
    detail::check_elements(range_, sizeof(T), alignof(T));
  }

  BufferSlice(BufferSlice const&) = default;
  BufferSlice& operator=(BufferSlice const&) = default;
  /// What is moved from is a slice of nothing.
  BufferSlice(BufferSlice&& other) noexcept
      : core_(std::move(other.core_)), range_(std::exchange(other.range_, ByteRange{})) {}
  BufferSlice& operator=(BufferSlice&& other) noexcept {
    core_ = std::move(other.core_);
    range_ = std::exchange(other.range_, ByteRange{});
    return *this;
  }
  ~BufferSlice() = default;

  [[nodiscard]] std::size_t size() const noexcept { return range_.size() / sizeof(T); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return range_.size(); }
  [[nodiscard]] bool empty() const noexcept { return range_.empty(); }
  /// The first byte's offset in the buffer.
  [[nodiscard]] std::size_t offset_bytes() const noexcept { return range_.begin; }

  /// The state of the whole buffer.
  [[nodiscard]] BufferState state() const { return core_and_base().core->state(); }
  [[nodiscard]] std::string_view name() const { return core_and_base().core->name(); }
  [[nodiscard]] BufferStatistics statistics() const { return core_and_base().core->statistics(); }

  /// The untyped core and the bytes of it.
  [[nodiscard]] BufferCore& core() const { return *core_and_base().core; }
  [[nodiscard]] ByteRange range() const noexcept { return range_; }

 private:
  template <class, class>
  friend class detail::ElementAccess;
  using Window = typename detail::ElementAccess<T, BufferSlice<T>>::Window;

  [[nodiscard]] Window core_and_base() const {
    if (!core_) detail::throw_empty_handle("slice");
    if (range_.end > core_->size_bytes()) detail::throw_outgrown("slice", range_, core_->size_bytes());
    return {core_.get(), range_};
  }
  [[nodiscard]] std::shared_ptr<BufferCore> const& shared_core() const noexcept { return core_; }

  std::shared_ptr<BufferCore> core_;
  ByteRange range_;
};

}  // namespace unimem
