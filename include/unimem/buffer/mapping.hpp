#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/map_mode.hpp>

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <utility>

namespace unimem {

/// Host access to a window of a buffer, from `map` to `unmap`. While it lives the host side neither moves nor is given
/// back, also when the buffer is freed or destroyed. What a mode that writes has changed counts as written when it is
/// unmapped: then every device copy of the window is out of date. Device work on the window between `map` and `unmap`
/// sees what was there at `map`.
///
/// Move-only. Used by one thread at a time.
template <class T>
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::shared_ptr<BufferCore> core, ByteRange range, MapMode mode)
      : core_(std::move(core)), range_(range), mode_(mode), hold_(core_->map(range, mode)) {
    auto* const first = static_cast<T*>(hold_.address());
    elements_ = {first, range.size() / sizeof(T)};
  }
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    if (this == &other) return *this;
    unmap_quietly();
    core_ = std::move(other.core_);
    range_ = other.range_;
    mode_ = other.mode_;
    hold_ = std::move(other.hold_);
    elements_ = std::exchange(other.elements_, {});
    return *this;
  }
  /// Unmaps. What `unmap` would throw is raised by the next access to the buffer.
  ~Mapping() { unmap_quietly(); }

  [[nodiscard]] std::span<T> elements() const noexcept { return elements_; }
  [[nodiscard]] T* data() const noexcept { return elements_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  [[nodiscard]] T& operator[](std::size_t index) const noexcept { return elements_[index]; }
  [[nodiscard]] auto begin() const noexcept { return elements_.begin(); }
  [[nodiscard]] auto end() const noexcept { return elements_.end(); }

  /// Ends the access. Idempotent. Throws CoherenceConflict if a device wrote a part of the window meanwhile and
  /// something outside it too: the device's bytes then stand, and the host's count for the rest of the window. Where
  /// the window covers all that devices wrote, it wins and is counted, as a mark does. Needs no memory: where there is
  /// none to record what was written, the next access records it first, and throws std::bad_alloc if it cannot.
  void unmap() {
    if (!core_) return;
    try {
      if (mode_ != MapMode::read) core_->written_through_map(range_, hold_);
    } catch (...) {
      let_go();
      throw;
    }
    let_go();
  }

 private:
  void let_go() noexcept {
    elements_ = {};
    hold_ = {};
    core_ = nullptr;
  }
  void unmap_quietly() noexcept {
    auto const core = core_;
    try {
      unmap();
    } catch (...) {
      core->fail_later(std::current_exception());
    }
  }

  std::shared_ptr<BufferCore> core_;
  ByteRange range_;
  MapMode mode_ = MapMode::read;
  DeviceLease hold_;
  std::span<T> elements_;
};

}  // namespace unimem
