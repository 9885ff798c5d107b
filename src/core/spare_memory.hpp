#pragma once

#include "core/sanitizers.hpp"

#include <cstddef>
#include <cstdint>
#include <new>

namespace unimem::detail {

/// Memory for single objects of `T`, of which a thread keeps what it has given back last for its next objects: for
/// objects that come and go with every buffer, and are too many and too large for the system's allocator to be quick.
///
/// A thread keeps sixteen at most, and gives them to the system when it ends. Under AddressSanitizer, which is to see
/// threads that come too late, and ThreadSanitizer, for which a lock is its address, none are kept.
template <class T>
class SpareMemory {
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__ && sizeof(T) >= sizeof(void*));

 public:
  /// Throws std::bad_alloc.
  [[nodiscard]] static void* take() {
    auto& kept = of_this_thread;
    if (kept.first == nullptr) return ::operator new(sizeof(T));
    return kept.take();
  }
  static void give(void* block) noexcept {
    auto& kept = of_this_thread;
    if (kept.count == kept.room && !made_room()) return ::operator delete(block);
    kept.first = new (block) Block{kept.first};
    ++kept.count;
  }

 private:
  static constexpr std::uint8_t most = is_sanitized ? 0 : 16;
  struct Block {
    Block* next;
  };
  /// Small: a library that is loaded late has little room for what is each thread's own.
  struct Kept {
    Block* first;
    std::uint8_t count;
    std::uint8_t room;
    bool begun;

    [[nodiscard]] void* take() noexcept {
      auto* const block = first;
      first = block->next;
      --count;
      return block;
    }
  };
  /// A variable beside, so that the other has no destructor and may be used to the very end of its thread.
  struct End {
    ~End() {
      auto& kept = of_this_thread;
      kept.room = 0;
      while (kept.first != nullptr) ::operator delete(kept.take());
    }
  };

  /// The first time in each thread.
  [[nodiscard]] static bool made_room() noexcept {
    auto& kept = of_this_thread;
    if (kept.begun || most == 0) return false;
    kept.begun = true;
    static thread_local End const end;
    kept.room = most;
    return true;
  }

  static inline constinit thread_local Kept of_this_thread{};
};

/// The same for the standard library, one object at a time.
template <class T>
struct SpareAllocator {
  using value_type = T;

  SpareAllocator() = default;
  template <class U>
  SpareAllocator(SpareAllocator<U> const& /*other*/) noexcept {}  // NOLINT(google-explicit-constructor): as they do

  [[nodiscard]] T* allocate(std::size_t count) {
    if (count != 1) throw std::bad_array_new_length();
    return static_cast<T*>(SpareMemory<T>::take());
  }
  void deallocate(T* memory, std::size_t /*one*/) noexcept { SpareMemory<T>::give(memory); }

  template <class U>
  friend bool operator==(SpareAllocator, SpareAllocator<U>) noexcept {
    return true;
  }
};

}  // namespace unimem::detail
