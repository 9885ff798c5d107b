#pragma once

#include <unimem/core/export.hpp>

#include <string_view>

namespace unimem::detail {

/// How many forks lie between the process that loaded the library and this one.
[[nodiscard]] UNIMEM_API unsigned fork_depth() noexcept;
/// Throws the UnsupportedOperation of `what`, which a child cannot do with what its parent made.
[[noreturn]] UNIMEM_API void throw_inherited(std::string_view what);

/// An object that only the process that made it uses. A forked child has it as its parent's threads left it, which may
/// hold its lock or wait in it: there it is neither used nor destroyed. As thread-safe as the object.
template <class T>
class OneProcess {
 public:
  OneProcess() : object() {}
  OneProcess(OneProcess const&) = delete;
  OneProcess& operator=(OneProcess const&) = delete;
  ~OneProcess() {
    if (find() != nullptr) object.~T();
  }

  /// Throws UnsupportedOperation in a child. `what`: what is asked of it, as in "sending a message".
  [[nodiscard]] T& get(std::string_view what) {
    if (find() == nullptr) throw_inherited(what);
    return object;
  }
  /// Null in a child.
  [[nodiscard]] T* find() noexcept { return made_in_ == fork_depth() ? &object : nullptr; }
  [[nodiscard]] T const* find() const noexcept { return made_in_ == fork_depth() ? &object : nullptr; }

 private:
  union {
    T object;
  };
  unsigned made_in_ = fork_depth();
};

}  // namespace unimem::detail
