#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/device_lease.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/detail/value_type.hpp>
#include <unimem/device/program.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unimem::python {

/// What Python says of one argument of a launch.
struct Argument {
  std::shared_ptr<BufferCore> core;  ///< null for a scalar
  ByteRange range;
  Intent intent = Intent::read;
  std::vector<std::size_t> shape;  ///< of the array that a Python function is given
  PyObject* object = nullptr;      ///< its dtype, or the scalar itself: owned by the caller
  ValueType value{};               ///< of a buffer's elements
  bool is_plain_number = false;    ///< a scalar that is Python's own int or float, without a width
  std::string bytes;               ///< of a scalar
  char type = 'V';                 ///< of a scalar: as in the struct module
};

/// One call of a Python function over NumPy arrays, on a queue of a device that runs code of the host's.
///
/// The arrays are over the memory that the work was given, which has another owner when the work has ended. A function
/// that keeps one fails, and the array keeps its memory by a lease. An operation that takes the memory from a buffer
/// says so before (`let_go_of`): a call that runs has leases from then on, and one that has not begun works on copies,
/// which are arrays' own. So does one whose memory was evicted before it began; when it has, it holds that
/// (`WorkHold`).
class PythonCall {
 public:
  /// With the interpreter's lock.
  PythonCall(std::string name, nanobind::handle function, std::vector<Argument> arguments);
  PythonCall(PythonCall const&) = delete;
  PythonCall& operator=(PythonCall const&) = delete;
  /// On any thread, with or without having been called; without the interpreter's lock.
  ~PythonCall();

  /// Under UNIMEM_CHECK=2 the memory of the work is the check's and ends with it, before it may run: the function works
  /// on copies, which operands that share memory share as well, and which are put back whole, also those of what is
  /// read, so that the check sees what was written there.
  void run_checked() noexcept { checked_ = true; }

  /// One for each argument, before it may run.
  void set_lease_options(std::vector<LeaseOption> options);

  /// On a thread of the library's, or one that waits: without the interpreter's lock.
  void run(std::span<const HostArgument> memory);

  /// The buffer is about to let go of memory that calls under way may be using, to no owner or to another.
  /// Thread-safe, waits for nothing.
  static void let_go_of(BufferCore const& core);

  [[nodiscard]] static bool any_under_way();
  /// Returns when no call is under way. Without the interpreter's lock.
  static void wait_for_all();
  /// In a forked child, which has none of its parent's threads.
  static void forget_those_of_the_parent();

 private:
  class UnderWay;
  /// What is done about the memory of an argument.
  struct Hold {
    LeaseOption option;
    DeviceLease lent;    ///< taken when the buffer let go of it
    bool apart = false;  ///< the function works on a copy
  };

  /// From here on memory that a buffer lets go of is lent to this call, and what could be evicted is held by what this
  /// returns.
  [[nodiscard]] std::vector<WorkHold> begin_to_run();
  /// A copy of work memory, and where it belongs.
  struct Copy {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    nanobind::object array;
  };
  [[nodiscard]] std::vector<Copy> copies_of(std::span<const HostArgument> memory) const;
  [[nodiscard]] nanobind::object array_on(Argument const& argument, std::span<const Copy> copies, void* memory) const;
  [[nodiscard]] nanobind::object array_over(Argument const& argument, Hold const& hold, void* memory) const;
  /// What the function wrote to copies goes to where the work was to write it.
  void write_back(nanobind::list const& values, std::span<const HostArgument> memory) const;
  void keep_what_is_kept(nanobind::list const& values, std::string& failure);
  void end() noexcept;

  /// Never destroyed, since calls may end until the process does; a forked child begins with another.
  static UnderWay* under_way;

  UnderWay* among_;
  std::string name_;
  PyObject* function_;
  std::vector<Argument> arguments_;
  std::vector<Hold> holds_;  ///< guarded by `among_` until the call has ended
  bool running_ = false;     ///< likewise
  bool checked_ = false;
};

}  // namespace unimem::python
