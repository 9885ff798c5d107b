#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/stream/element_type.hpp>
#include <unimem/stream/stream_file.hpp>

#include "kernel/known_answer.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace unimem::detail {

/// One stream's run of a kernel: launches it on chunks, and puts the chunks' results together.
///
/// `launch` is called from one thread and `combine` from another, each in file order; they share nothing that changes.
class ChunkRun {
 public:
  ChunkRun() = default;
  ChunkRun(ChunkRun const&) = delete;
  ChunkRun& operator=(ChunkRun const&) = delete;
  virtual ~ChunkRun() = default;

  /// Bytes of device memory the results of a chunk of `bytes` take, besides the chunk; 0 when they overwrite it.
  [[nodiscard]] virtual std::size_t result_bytes(std::size_t bytes) const noexcept = 0;

  /// Bytes of device memory that stay from chunk to chunk.
  [[nodiscard]] virtual std::size_t kept_bytes() const noexcept { return 0; }

  /// Submits the work on the first `bytes` bytes of `chunk`. Results go to the first `result_bytes(bytes)` bytes of
  /// `results`, or, when there are none, back into the chunk.
  virtual Event launch(Queue& queue, UnifiedBuffer<std::byte>& chunk, UnifiedBuffer<std::byte>& results,
                       std::size_t bytes) = 0;

  /// Takes in the results of the next chunk, which had `bytes` bytes. Not called for mapping kernels.
  virtual void combine(std::span<const std::byte> results, std::size_t bytes) = 0;

  /// What the kernel must compute, in runs of at most `room` bytes of device memory each, before it is given a file;
  /// nothing for a kernel of the user's own.
  [[nodiscard]] virtual std::optional<KnownAnswer> known_answer(std::size_t /*room*/) const { return std::nullopt; }

  /// The result. `elements`: how many there were in all.
  [[nodiscard]] virtual decltype(StreamResult::result) finish(std::uint64_t elements) const = 0;
};

/// What a StreamKernel does, for any element and device. Immutable.
class ChunkWork {
 public:
  ChunkWork() = default;
  ChunkWork(ChunkWork const&) = delete;
  ChunkWork& operator=(ChunkWork const&) = delete;
  virtual ~ChunkWork() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual bool maps() const noexcept = 0;
  /// Equal for two runs that compute the same: the name, and the arguments and source that it was made with. The host
  /// form of a user's kernel is known by its name alone.
  [[nodiscard]] virtual std::string identity() const { return std::string(name()); }

  /// Begins a stream. The kernel is built here, so that one that does not build fails before anything is read.
  /// `keep_input`: the results may not overwrite the chunk (it is a mapped file).
  [[nodiscard]] virtual std::unique_ptr<ChunkRun> start(Device& device, ElementType element, bool keep_input) const = 0;
};

/// An element without loss.
template <class T>
[[nodiscard]] ElementValue widest(T value) {
  if constexpr (std::floating_point<T>)
    return static_cast<double>(value);
  else if constexpr (std::signed_integral<T>)
    return std::int64_t{value};
  else
    return std::uint64_t{value};
}

/// Calls `f(std::type_identity<T>{})` with the C++ type of an element.
template <class F>
decltype(auto) with_element_type(ElementType element, F&& f) {
  switch (element) {
    case ElementType::u8:
      return std::forward<F>(f)(std::type_identity<std::uint8_t>{});
    case ElementType::i8:
      return std::forward<F>(f)(std::type_identity<std::int8_t>{});
    case ElementType::u16:
      return std::forward<F>(f)(std::type_identity<std::uint16_t>{});
    case ElementType::i16:
      return std::forward<F>(f)(std::type_identity<std::int16_t>{});
    case ElementType::u32:
      return std::forward<F>(f)(std::type_identity<std::uint32_t>{});
    case ElementType::i32:
      return std::forward<F>(f)(std::type_identity<std::int32_t>{});
    case ElementType::u64:
      return std::forward<F>(f)(std::type_identity<std::uint64_t>{});
    case ElementType::i64:
      return std::forward<F>(f)(std::type_identity<std::int64_t>{});
    case ElementType::f32:
      return std::forward<F>(f)(std::type_identity<float>{});
    case ElementType::f64:
      break;
  }
  return std::forward<F>(f)(std::type_identity<double>{});
}

}  // namespace unimem::detail
