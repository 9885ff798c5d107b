#pragma once

#include <unimem/core/export.hpp>
#include <unimem/core/name.hpp>
#include <unimem/device/device.hpp>
#include <unimem/pool/detail/address_book.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <typeinfo>

namespace unimem {

namespace detail {

/// A stream as `cuda::stream_ref` shows it: `get()` is a `cudaStream_t`.
template <class Stream>
concept CudaStreamRef = requires(Stream const& stream) {
  { stream.get() } -> std::convertible_to<void*>;
};

/// What a CudaResource is without its properties: an address book whose blocks are handed on in the order of CUDA
/// streams. A stream is adopted when it is first named, and kept until it is forgotten.
class UNIMEM_API StreamOrderedBook {
 public:
  StreamOrderedBook(MemoryPool& pool, Device& streams_of, Name name);
  StreamOrderedBook(StreamOrderedBook const&) = delete;
  StreamOrderedBook& operator=(StreamOrderedBook const&) = delete;
  ~StreamOrderedBook();

  [[nodiscard]] void* acquire(std::size_t bytes, std::size_t alignment);
  [[nodiscard]] void* acquire(void* stream, std::size_t bytes, std::size_t alignment);
  void release(void* address, std::size_t bytes, std::size_t alignment) noexcept;
  void release(void* stream, void* address, std::size_t bytes, std::size_t alignment) noexcept;
  void forget(void* stream);

  [[nodiscard]] AddressBook const& book() const noexcept;

  /// Throws UnsupportedOperation if the property's name says what the pool's memory is not.
  static void check_property(MemoryPool const& pool, std::type_info const& property);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace detail

/// A pool as a memory resource of CUDA's C++ libraries: what `cuda::mr::resource` and `cuda::mr::async_resource` of
/// CCCL 2 ask for, and `cuda::mr::synchronous_resource` and `cuda::mr::resource` of CCCL 3. This header needs none of
/// CCCL's; `Properties` are its tags, which the resource then has:
///
///     unimem::CudaResource<cuda::mr::device_accessible> resource{manager.pool(gpu, Location::device)};
///
/// Without a stream, memory may be used at once, and must be out of use when it is given back. With one, it may be used
/// by the stream's work that is submitted from then on; when it comes back, by the work submitted before: a block last
/// used on the same stream is handed on without waiting, and another stream is made to wait on the device, never the
/// host. Alignments, errors, and what is given back by mistake are as with `PoolResource`.
///
/// Streams are of the pool's own device unless another is named, as must be for pinned memory, which is the cpu
/// device's. Before a stream is destroyed, `forget_stream` must be told: its handle may come back as another's.
///
/// A copy is the same resource, and equal to it. Thread-safe. The pool must outlive all copies; what is still in use
/// when the last one goes is given back with a warning.
template <class... Properties>
class CudaResource {
 public:
  /// Throws UnsupportedOperation if a property is not true of the pool's memory: `host_accessible` of memory that the
  /// host does not reach, `device_accessible` of memory that is pageable or of no CUDA device, as the unified memory of
  /// other devices is. Page-locked memory of the cpu device is every CUDA device's.
  explicit CudaResource(MemoryPool& pool, Name name = {}) : CudaResource(pool, pool.device(), name) {}
  CudaResource(MemoryPool& pool, Device& streams_of, Name name = {})
      : book_((detail::StreamOrderedBook::check_property(pool, typeid(Properties)), ...,
               std::make_shared<detail::StreamOrderedBook>(pool, streams_of, name))) {}

  /// Ready for every stream. Throws what `MemoryPool::acquire` throws.
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    return book_->acquire(bytes, alignment);
  }
  /// No work uses it any more.
  void deallocate_sync(void* address, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    book_->release(address, bytes, alignment);
  }

  /// Ready for the stream's work from now on. Throws UnsupportedOperation unless streams are of a CUDA device,
  /// InvalidArgument for a stream of another.
  template <detail::CudaStreamRef Stream>
  [[nodiscard]] void* allocate(Stream const& stream, std::size_t bytes, std::size_t alignment = default_alignment) {
    return book_->acquire(static_cast<void*>(stream.get()), bytes, alignment);
  }
  /// The stream's work so far may use it, and no other work.
  template <detail::CudaStreamRef Stream>
  void deallocate(Stream const& stream, void* address, std::size_t bytes,
                  std::size_t alignment = default_alignment) noexcept {
    book_->release(static_cast<void*>(stream.get()), address, bytes, alignment);
  }

  // The same by the names of CCCL 2.

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment = default_alignment) {
    return allocate_sync(bytes, alignment);
  }
  void deallocate(void* address, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    deallocate_sync(address, bytes, alignment);
  }
  template <detail::CudaStreamRef Stream>
  [[nodiscard]] void* allocate_async(std::size_t bytes, std::size_t alignment, Stream const& stream) {
    return allocate(stream, bytes, alignment);
  }
  template <detail::CudaStreamRef Stream>
  [[nodiscard]] void* allocate_async(std::size_t bytes, Stream const& stream) {
    return allocate(stream, bytes);
  }
  template <detail::CudaStreamRef Stream>
  void deallocate_async(void* address, std::size_t bytes, std::size_t alignment, Stream const& stream) noexcept {
    deallocate(stream, address, bytes, alignment);
  }
  template <detail::CudaStreamRef Stream>
  void deallocate_async(void* address, std::size_t bytes, Stream const& stream) noexcept {
    deallocate(stream, address, bytes);
  }

  /// Lets a stream go, after what the resource itself has put into it. Naming the stream again adopts it again.
  template <detail::CudaStreamRef Stream>
  void forget_stream(Stream const& stream) {
    book_->forget(static_cast<void*>(stream.get()));
  }

  [[nodiscard]] MemoryPool& pool() const noexcept { return book_->book().pool(); }
  [[nodiscard]] AddressStatistics statistics() const { return book_->book().statistics(); }

  friend bool operator==(CudaResource const&, CudaResource const&) = default;

  template <class Property>
    requires(std::same_as<Property, Properties> || ...)
  friend constexpr void get_property(CudaResource const& /*resource*/, Property /*tag*/) noexcept {}

 private:
  /// Every block has at least that.
  static constexpr std::size_t default_alignment = alignof(std::max_align_t);

  std::shared_ptr<detail::StreamOrderedBook> book_;
};

}  // namespace unimem
