#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace unimem::detail {

/// What a process tells of a buffer that it has sent, and that has not been received: how the memory is to be had, and
/// its bytes.
struct SentNote {
  enum class Kind : unsigned char {
    copy,       ///< host memory that is the receiver's own
    on_device,  ///< a copy in memory of a device
    shared,     ///< what the sender has
  };
  Kind kind = Kind::copy;
  std::size_t bytes = 0;
  std::string hardware_id{};  ///< of the device

  /// "copy 4096", "device 4096 cuda-1075…".
  [[nodiscard]] std::string encode() const;
  /// Nothing: it is none.
  [[nodiscard]] static std::optional<SentNote> decode(std::string_view text) noexcept;
};

}  // namespace unimem::detail
