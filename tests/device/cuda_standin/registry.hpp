#pragma once

#include "device/cuda_standin/calls.hpp"

#include <cstdint>
#include <map>
#include <memory>

namespace unimem::standin {

/// A number that no other object ever had as its handle and that no address is: who follows one crashes, and an old one
/// is known as old.
[[nodiscard]] inline std::uintptr_t fresh_handle() {
  static std::uintptr_t last = 0x5a00'0000'0000'0000;
  return last += 16;
}

/// The living objects of one kind by their handles. Under the machine's lock.
template <class Handle, class State>
class Registry {
 public:
  Handle add(std::shared_ptr<State> state) {
    auto const handle = reinterpret_cast<Handle>(fresh_handle());
    states_.emplace(handle, std::move(state));
    return handle;
  }

  /// The object, or a refusal: the real driver would crash or say `otherwise`.
  [[nodiscard]] std::shared_ptr<State> at(Handle handle, Result otherwise = Result::invalid_handle) const {
    auto const found = states_.find(handle);
    if (found == states_.end()) refuse(otherwise);
    return found->second;
  }

  void erase(Handle handle) { states_.erase(handle); }
  [[nodiscard]] bool contains(Handle handle) const { return states_.contains(handle); }
  [[nodiscard]] std::size_t size() const { return states_.size(); }

  [[nodiscard]] auto begin() const { return states_.begin(); }
  [[nodiscard]] auto end() const { return states_.end(); }

  template <class Predicate>
  std::size_t erase_if(Predicate predicate) {
    return std::erase_if(states_, [&](auto const& entry) { return predicate(*entry.second); });
  }

 private:
  std::map<Handle, std::shared_ptr<State>> states_;
};

}  // namespace unimem::standin
