#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/device_lease.hpp>
#include <unimem/buffer/shape.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/detail/value_type.hpp>
#include <unimem/share/buffer_registry.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace unimem::python {

/// Elements of a buffer as Python sees them: the untyped core, which of its bytes, and the shape and dtype they are
/// seen with. All of a buffer or a part of it.
///
/// Fields are read and written with the interpreter's lock held. A thread that releases it takes a share in the core
/// first
/// (`live`), since another thread may hand the buffer back to its pool meanwhile.
class Window {
 public:
  /// `dtype`: a numpy.dtype whose items are plain bytes; checked in Python.
  Window(std::shared_ptr<BufferCore> core, std::size_t offset, std::vector<std::size_t> shape, nanobind::object dtype,
         bool whole);
  Window(Window const&) = delete;
  Window& operator=(Window const&) = delete;
  ~Window();

  [[nodiscard]] std::vector<std::size_t> const& shape() const noexcept { return shape_; }
  [[nodiscard]] nanobind::object const& dtype() const noexcept { return dtype_; }
  [[nodiscard]] std::size_t item_bytes() const noexcept { return item_bytes_; }
  /// What an item is to a kernel; `u1` is Python's name for bytes of any meaning.
  [[nodiscard]] ValueType value_type() const noexcept;
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return count_ * item_bytes_; }
  [[nodiscard]] ByteRange range() const noexcept { return {offset_, offset_ + bytes()}; }

  /// A share in the core. Throws InvalidArgument for a buffer that was given back to its pool, or whose core became too
  /// small.
  [[nodiscard]] std::shared_ptr<BufferCore> live() const;
  [[nodiscard]] BufferCore const* core() const noexcept { return core_.get(); }

  /// Elements `[offset, offset + count)` as bytes of the core; `count` may be `all`. Throws InvalidArgument.
  [[nodiscard]] ByteRange part(std::size_t offset, std::size_t count) const;

  /// The array over the host side, current. Of a whole buffer one and the same as long as the memory is the same; a
  /// part keeps none, so that it holds nothing but the buffer's contents.
  [[nodiscard]] nanobind::object host();
  /// The same over a lease that has been taken already, of a device whose memory is the host's.
  [[nodiscard]] nanobind::object host_leased(std::shared_ptr<BufferCore> core, DeviceLease lease);
  /// Lets go of that array, for what needs the memory to have no holder.
  void drop_host() noexcept {
    // Out of sight before it goes: giving memory back lets other threads in.
    nanobind::object const gone = std::move(host_);
  }

  /// The array over the device's memory that `array` is, from now on held by this object: for callers that are told the
  /// address and keep nothing but this. Until `drop_exported`.
  void keep_exported(nanobind::object array) noexcept {
    nanobind::object const gone = std::exchange(exported_, std::move(array));
  }
  void drop_exported() noexcept { keep_exported({}); }

  /// Of a whole buffer: changes the number of elements, in one dimension.
  void resize(std::size_t count);
  /// For a pool: the core leaves, or another one comes.
  [[nodiscard]] std::shared_ptr<BufferCore>& core_to_give_back() noexcept { return core_; }
  void take(std::shared_ptr<BufferCore> core) noexcept { core_ = std::move(core); }

 private:
  std::shared_ptr<BufferCore> core_;  ///< null while the buffer is its pool's
  std::size_t offset_;
  std::vector<std::size_t> shape_;
  std::size_t count_ = 0;
  std::size_t item_bytes_ = 0;
  bool whole_;
  nanobind::object dtype_;
  nanobind::object host_;
  std::byte* host_begin_ = nullptr;
  nanobind::object exported_;
};

/// Throws InvalidArgument if `object` is a window whose `__init__` has not called that of its base class. By the name
/// of its class, which can be asked for without the window.
void require_initialized(nanobind::handle object);

/// How a registry and a pool name a dtype: as C++ does where it has such a type, so that both languages may share
/// buffers.
[[nodiscard]] detail::SharedElement element_of(nanobind::handle dtype);
/// The numpy.dtype of such elements; None where a type of C++ has none.
[[nodiscard]] nanobind::object dtype_of(detail::SharedElement const& element);

}  // namespace unimem::python

/// Windows as arguments, `self` first of all: of one that was not initialized nanobind would say that it is none.
template <>
struct nanobind::detail::type_caster<unimem::python::Window> : type_caster_base<unimem::python::Window> {
  bool from_python(handle source, std::uint8_t flags, cleanup_list* cleanup) {
    bool const is_made_now = (flags & static_cast<std::uint8_t>(cast_flags::construct)) != 0;
    if (!is_made_now) unimem::python::require_initialized(source);
    return type_caster_base<unimem::python::Window>::from_python(source, flags, cleanup);
  }
};

namespace unimem::python {

/// The window that `object` is. Throws as `require_initialized` does, and if it is none.
[[nodiscard]] inline Window& window_of(nanobind::handle object) {
  return nanobind::cast<Window&>(object);
}

}  // namespace unimem::python
