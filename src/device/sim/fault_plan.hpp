#pragma once

#include <unimem/device/sim.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>

namespace unimem::detail {

/// What a simulated device can be asked to do wrong.
enum class SimCommand : std::uint8_t { upload, download, copy, fill, run };

/// How a command is to end.
enum class SimVerdict : std::uint8_t { succeed, fail, lost };

/// "The n-th fails", of the calls that begin.
///
/// Calls are numbered when they are made and not when their turn comes: with several queues the order of turns differs
/// from run to run, the order of calls is the test's own. A call that never begins is one that was not made: whose turn
/// comes later counts for it.
class NthCall {
 public:
  /// `n`: counting from 1; 0 for never.
  explicit NthCall(std::uint64_t n) : failing_(n), fired_(n == 0) {}

  [[nodiscard]] std::uint64_t made() noexcept { return ++made_; }
  /// Whether call `number`, whose turn has come, is to fail.
  [[nodiscard]] bool begins(std::uint64_t number);
  /// Call `number` never begins.
  void skipped(std::uint64_t number) noexcept;

 private:
  std::uint64_t made_ = 0;
  std::uint64_t failing_;          ///< as things stand, the number of the call that fails
  bool fired_;                     ///< it has
  std::set<std::uint64_t> begun_;  ///< higher numbers whose turn has come before
};

/// The script of what goes wrong, and how far it has got. Thread-safe.
class FaultScript {
 public:
  explicit FaultScript(SimOptions const& options);

  [[nodiscard]] bool lost() const noexcept;

  /// The verdict on the next allocation.
  [[nodiscard]] SimVerdict next_allocation();

  /// A command, from when it is submitted until it is carried out or let go.
  class Call {
   public:
    Call(std::shared_ptr<FaultScript> script, SimCommand command);
    Call(Call const&) = delete;
    Call& operator=(Call const&) = delete;
    /// If the verdict was not asked for, the command never began.
    ~Call();

    /// Its turn has come.
    [[nodiscard]] SimVerdict verdict();

   private:
    std::shared_ptr<FaultScript> script_;
    SimCommand command_;
    std::uint64_t number_ = 0;  ///< among its kind
    std::uint64_t total_ = 0;   ///< among all
    bool lost_ = false;         ///< when it was submitted the device was gone
    bool begun_ = false;
  };

 private:
  [[nodiscard]] NthCall* of_kind(SimCommand command) noexcept;

  mutable std::mutex mutex_;
  std::uint64_t const lose_after_;
  std::uint64_t commands_ = 0;
  bool lost_ = false;
  NthCall allocations_, uploads_, downloads_, runs_, calls_;
};

/// The script that a device follows now.
///
/// Thread-safe.
class FaultPlan {
 public:
  using Call = std::shared_ptr<FaultScript::Call>;

  explicit FaultPlan(SimOptions const& options) : script_(std::make_shared<FaultScript>(options)) {}

  /// Starts another script, counting from 1 again; what has been submitted ends by the old one. A lost device is found
  /// again unless the new script loses it too.
  void replace(SimOptions const& options);

  /// Whether the script has come to where the device is lost: when the command that loses it is submitted.
  [[nodiscard]] bool lost() const noexcept { return script()->lost(); }

  [[nodiscard]] SimVerdict next_allocation() { return script()->next_allocation(); }

  /// The next command of a queue.
  [[nodiscard]] Call next(SimCommand command) { return std::make_shared<FaultScript::Call>(script(), command); }

 private:
  [[nodiscard]] std::shared_ptr<FaultScript> script() const noexcept {
    std::lock_guard const lock{mutex_};
    return script_;
  }

  mutable std::mutex mutex_;
  std::shared_ptr<FaultScript> script_;
};

}  // namespace unimem::detail
