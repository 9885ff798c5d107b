#pragma once

#include <unimem/manager/detail/resident.hpp>

#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace unimem::detail {

/// The residents of a manager that have a name by which a program means them, whether they have memory or not.
///
/// Thread-safe.
class NamedResidents {
 public:
  void add(Resident& resident);
  /// No `all` that begins later has it.
  void remove(Resident& resident) noexcept;
  /// All there are now but for those that are ending, in no order, each held as long as its pointer.
  [[nodiscard]] std::vector<std::shared_ptr<Resident>> all() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_set<Resident*> residents_;
};

}  // namespace unimem::detail
