#pragma once

#include <unimem/buffer/buffer_slice.hpp>
#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/shape.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/core/export.hpp>
#include <unimem/core/name.hpp>
#include <unimem/share/buffer_id.hpp>
#include <unimem/share/buffer_ref.hpp>
#include <unimem/share/element_tag.hpp>
#include <unimem/share/peer_death.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace unimem {

/// How a buffer is published.
struct SharedOptions {
  /// What others may find it by, besides its id; one registry has each name once. Empty: by its id alone.
  std::string name{};
  /// For the other processes of this user on this machine as well.
  bool cross_process = false;
};

/// One published buffer, as `BufferRegistry::list` tells of it.
struct SharedBuffer {
  BufferId id;
  std::string name;     ///< it was published under; empty if under none
  std::string buffer;   ///< the buffer's own name
  std::string element;  ///< the element type, for people
  ElementTag tag = ElementTag::any;
  std::size_t element_bytes = 0;
  Shape shape;  ///< as `open` would give it now
  std::size_t bytes = 0;
  std::uint64_t opened = 0;  ///< how often it was opened or resolved by this id
  /// How many buffers, slices and mappings hold the memory now, beside this entry; other ids of the same buffer count.
  std::size_t holders = 0;
};

/// What a registry has done. Invariant: `published - released` is how many buffers are published now.
struct RegistryStatistics {
  std::uint64_t published = 0;
  std::uint64_t released = 0;
  std::uint64_t opened = 0;   ///< by `open` and `resolve`
  std::uint64_t refused = 0;  ///< ids, names, types and windows that were
};

namespace detail {

/// An element type as registries know it.
struct SharedElement {
  Name name;  ///< by whatever name its user knows it
  std::size_t bytes = 0;
  ElementTag tag = ElementTag::any;
  /// What the compiler knows it by, since types of two anonymous namespaces may have one name. Null for callers without
  /// a type of their own: then the name alone decides.
  std::type_info const* type = nullptr;
};

template <class T>
[[nodiscard]] SharedElement shared_element() {
  static Name const name{typeid(T).name()};
  return {name, sizeof(T), element_tag<T>(), &typeid(T)};
}

/// A buffer without its type: what it is made from again.
struct SharedCore {
  std::shared_ptr<BufferCore> core;
  Shape shape;
};

/// A window of one.
struct SharedWindow {
  std::shared_ptr<BufferCore> core;
  ByteRange range;
};

}  // namespace detail

/// Buffers by id: what one part of a program publishes, another opens, knowing the id alone. Opening copies nothing:
/// all handles are the same buffer, with one memory, one coherence and one set of counts. (After the buffer registry of
/// the UnifiedBuffer guide.)
///
///     auto const id = registry().publish(frame);                     auto frame = registry().open<float>(id);
///     queue.send(BufferRef{id, 1000, 24});                           auto part = queue.receive()->resolve<float>();
///
/// An id has a share in the buffer from `publish` to `release`, and every opened handle one of its own, so that neither
/// end nor order matters: the published buffer object may be moved or destroyed, the id released, and what was opened
/// goes on. What one handle does to the buffer is done to all: after `free`, `reset` or `discard` none has data. A
/// `resize` is a write like any other, with no other thread in a call; handles opened before that no longer fit throw
/// InvalidArgument at every access, those that fit keep their size, and one opened later sees it as it is then.
/// A buffer of a BufferPool that is released to it while published is not lent again. Memory that was wrapped on loan
/// must stay until the last handle is gone; a manager, until its published buffers are.
///
/// What was published with `cross_process` any process of the same user on this machine opens by its id, as long as one
/// holds it, whoever that is. It is one buffer in each process: its host memory is the same pages, of which each sees
/// what the others have written once their map, write lease or work has ended, and its devices' copies go stale by the
/// ranges that were written elsewhere. One process waits for another's access to the same bytes, unless both read; of a
/// process that is killed while it writes, those bytes are DataLost until they are written (docs/sharing.md).
///
/// Ids that were released, never given, or are another registry's are NotFound, with the reason as far as it is known.
/// In a forked child every registry is empty and gives ids of its own.
///
/// Thread-safe; nothing is destroyed and no user code runs under its lock. To be destroyed when no thread is in a call;
/// opened handles stay valid.
class UNIMEM_API BufferRegistry {
 public:
  BufferRegistry();
  BufferRegistry(BufferRegistry const&) = delete;
  BufferRegistry& operator=(BufferRegistry const&) = delete;
  ~BufferRegistry();

  /// Gives the buffer an id. Publishing it again gives it another one, released for itself. Throws InvalidArgument for
  /// a buffer that was moved from, and for a name that is taken. Nothing was published then.
  ///
  /// With `cross_process` its host memory becomes one that other processes map, by one copy, unless it was made so
  /// (`BufferOptions::shared`); addresses that `host_view` has given are no more its memory's. Throws besides
  /// UnsupportedOperation for a buffer over a file, over memory that was wrapped or is a device's, and while it is
  /// leased, mapped or captured, or where an address was given to be written through; OutOfMemory; IoError where other
  /// processes cannot ask this one; InvalidArgument for names of more than 32 KiB.
  template <class T>
  [[nodiscard]] BufferId publish(UnifiedBuffer<T> const& buffer, SharedOptions const& options = {}) {
    return publish_core({buffer.shared_core(), Shape(std::vector(buffer.shape().begin(), buffer.shape().end()))},
                        detail::shared_element<T>(), options);
  }

  /// The buffer of this id, as a further handle. It has the shape it was published with, or one dimension if it was
  /// resized since. Throws NotFound, and InvalidArgument naming both types unless it was published as one of `T`;
  /// SizeMismatch if it is resized at this very moment.
  template <class T>
  [[nodiscard]] UnifiedBuffer<T> open(BufferId id) {
    auto found = open_core(id, detail::shared_element<T>());
    return UnifiedBuffer<T>(std::move(found.shape), std::move(found.core));
  }

  /// The elements that `ref` names: a slice, which keeps the buffer alive by itself. Throws NotFound; InvalidArgument
  /// for elements outside the buffer as it is now, whatever the numbers, and unless its elements are what `ref` says
  /// and `T` is. As bytes, without a `T`, elements of any type are given.
  template <class T = std::byte>
  [[nodiscard]] BufferSlice<T> resolve(BufferRef const& ref) {
    auto const element = detail::shared_element<T>();
    auto found = resolve_core(ref, std::is_same_v<T, std::byte> ? nullptr : &element);
    return BufferSlice<T>(std::move(found.core), found.range);
  }

  /// A reference to `count` elements of a published buffer from `offset` on, checked now, with its element tag and its
  /// count said. Throws NotFound and InvalidArgument.
  [[nodiscard]] BufferRef refer(BufferId id, std::size_t offset = 0, std::size_t count = all);

  /// Ends what `publish` began: the id is NotFound from now on. Opened handles stay. Throws NotFound, also for an id
  /// released before.
  void release(BufferId id);

  /// The id of what was published under a name; NotFound, also once it was released.
  [[nodiscard]] BufferId find(std::string_view name);
  [[nodiscard]] bool contains(BufferId id) const;

  /// Calls `callback` for every process that dies from now on and held a buffer which this one holds, too, as long as
  /// the subscription lives: killed, crashed, ended by `_exit`, or in the middle of a write. Of one that is done with
  /// the buffer before, or ends by `exit` or behind its `main`, nothing is told. Of all that this process shares,
  /// whichever registry published it, and of what was sent without an id.
  ///
  /// Callbacks run on a thread of the library's, one after the other, mostly at once, within about a tenth of a second
  /// where a process died just after it had opened the buffer; by then what the dead one was writing is lost. They may
  /// call anything of the library. What they throw is logged. Throws InvalidArgument for no callback, IoError where no
  /// more descriptors may be open, DeviceError where there is no thread. None is called any more when the process is
  /// ending.
  [[nodiscard]] PeerDeathSubscription on_peer_death(PeerDeathCallback callback);

  [[nodiscard]] std::size_t size() const;
  /// What is published now, in the order in which it was. A buffer that is being resized is told with one size or the
  /// other.
  [[nodiscard]] std::vector<SharedBuffer> list() const;
  [[nodiscard]] RegistryStatistics statistics() const;

  /// Throws std::logic_error unless its parts agree with one another. A walk; for tests.
  void validate() const;

  // For callers without a type of their own, such as other languages.

  [[nodiscard]] BufferId publish_core(detail::SharedCore buffer, detail::SharedElement element,
                                      SharedOptions const& options);
  [[nodiscard]] detail::SharedCore open_core(BufferId id, detail::SharedElement const& element);
  /// What a published buffer's elements are. NotFound.
  [[nodiscard]] detail::SharedElement element_of(BufferId id);
  /// `element` null: any.
  [[nodiscard]] detail::SharedWindow resolve_core(BufferRef const& ref, detail::SharedElement const* element);

 private:
  struct State;
  /// What stands for this process, made anew in a forked child.
  [[nodiscard]] State& state() const;

  mutable std::atomic<State*> state_;
};

/// The registry of the process. Lives as long as it.
[[nodiscard]] UNIMEM_API BufferRegistry& registry();

template <class T>
BufferSlice<T> BufferRef::resolve() const {
  return registry().resolve<T>(*this);
}

}  // namespace unimem
