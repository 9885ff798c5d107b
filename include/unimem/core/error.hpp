#pragma once

#include <unimem/core/export.hpp>

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

/// What every error of the library can be caught as. It is an interface, so that `OutOfMemory` can also be a
/// `std::bad_alloc` and all others a `std::runtime_error`: a handler written for either keeps working.
///
/// Every error carries its data as fields; the message is made from them and names the offending value and the limit.
class UNIMEM_API Error {
 public:
  Error() = default;
  Error(Error const&) = default;
  Error& operator=(Error const&) = default;
  virtual ~Error();

  /// The message: one line unless a build log, a list of holders or stacks follow it. Never null.
  [[nodiscard]] virtual char const* what() const noexcept = 0;
};

namespace detail {
/// The common shape of all errors that are not about memory.
class UNIMEM_API RuntimeError : public std::runtime_error, public Error {
 public:
  using std::runtime_error::runtime_error;
  ~RuntimeError() override;
  [[nodiscard]] char const* what() const noexcept override { return std::runtime_error::what(); }
};
}  // namespace detail

/// An argument is outside what the call accepts. Nothing was changed.
class UNIMEM_API InvalidArgument : public detail::RuntimeError {
 public:
  /// `value` as the caller wrote it, `requirement` as in "must be …" (e.g. "a power of two").
  InvalidArgument(std::string argument, std::string value, std::string requirement);
  ~InvalidArgument() override;

  std::string argument;     ///< the parameter's name
  std::string value;        ///< what was passed, as text
  std::string requirement;  ///< what would have been accepted

 protected:
  /// `details` follow the message.
  InvalidArgument(std::string argument, std::string value, std::string requirement, std::string_view details);
};

/// What was given back to a pool has been given back to it before. Nothing was changed. Where the pool captures stacks
/// (`StackOptions`) the message goes on with the stacks of taking it and of giving it back first.
class UNIMEM_API ReleasedTwice : public InvalidArgument {
 public:
  ReleasedTwice(std::string argument, std::string value, std::string requirement,
                std::vector<std::uintptr_t> acquired_by = {}, std::vector<std::uintptr_t> released_by = {});
  ~ReleasedTwice() override;

  /// The calls of the code that had taken it, the innermost first, for `describe_address`; empty: not captured.
  std::vector<std::uintptr_t> acquired_by;
  std::vector<std::uintptr_t> released_by;  ///< likewise of the code that gave it back first
};

namespace detail {
/// Throws the InvalidArgument of a handle that stands for nothing; `what` as in "queue".
[[noreturn]] UNIMEM_API void throw_empty_handle(char const* what);
}  // namespace detail

/// A copy was given another number of elements than it asked for, or memory another number of bytes than elements of
/// some type take. Nothing was changed and nothing allocated.
class UNIMEM_API SizeMismatch : public detail::RuntimeError {
 public:
  /// `unit`: of both numbers, as the message says it.
  SizeMismatch(std::string what_differs, std::size_t expected, std::size_t actual, std::string_view unit = "elements");
  ~SizeMismatch() override;

  std::size_t expected;  ///< elements, or what the message says
  std::size_t actual;    ///< elements, or what the message says
};

/// The operation needs storage, and the buffer has none anywhere (or is strict and was not allocated).
class UNIMEM_API BufferNotAllocated : public detail::RuntimeError {
 public:
  BufferNotAllocated(std::string buffer, std::string operation);
  ~BufferNotAllocated() override;

  std::string buffer;     ///< "buffer 'name'", or "buffer #7", its id, when it has none
  std::string operation;  ///< the call that needed storage
};

/// Two unsynchronized writes overlap on two sides, and neither covers all of the other side's.
class UNIMEM_API CoherenceConflict : public detail::RuntimeError {
 public:
  /// One of the two writes: `[begin, end)` in bytes, and the side it happened on ("host" or a device id).
  struct Write {
    std::string place;
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  CoherenceConflict(std::string buffer, Write earlier, Write later);
  ~CoherenceConflict() override;

  std::string buffer;  ///< "buffer 'name'", or "buffer #7", its id, when it has none
  Write earlier;       ///< written and not yet synchronized
  Write later;         ///< the write that was refused
};

/// Memory could not be had: a limit of ours was reached, or the driver said so. Sizes in bytes.
class UNIMEM_API OutOfMemory : public std::bad_alloc, public Error {
 public:
  /// One of the largest holders of live memory, by the name given at allocation ("" for unnamed).
  struct Holder {
    std::string name;
    std::size_t bytes = 0;
    std::size_t count = 0;
  };
  /// Everything known at the moment of failure.
  struct Facts {
    std::string where;               ///< device id and location, e.g. "sim:0 device"
    std::size_t requested = 0;       ///< what the call asked for
    std::size_t limit = 0;           ///< the budget that was reached, or the device's size
    std::size_t live = 0;            ///< handed out and in use
    std::size_t cached = 0;          ///< held by pools and not in use
    std::size_t leased = 0;          ///< part of `live` that user leases pin, or other processes share
    std::size_t largest_free = 0;    ///< largest block that could have been had without growing
    double fragmentation = 0;        ///< 1 − largest_free / total free
    std::size_t device_free = 0;     ///< what the device itself still reports as free
    std::size_t held_elsewhere = 0;  ///< where the driver refused: what others than this pool have of the device
    std::vector<Holder> holders;     ///< largest first
    std::string reason;              ///< why: "limit reached", or the driver's own words
  };
  explicit OutOfMemory(Facts facts);
  ~OutOfMemory() override;

  [[nodiscard]] char const* what() const noexcept override { return message_.c_str(); }
  [[nodiscard]] Facts const& facts() const noexcept { return facts_; }
  [[nodiscard]] std::size_t requested() const noexcept { return facts_.requested; }
  [[nodiscard]] std::size_t limit() const noexcept { return facts_.limit; }
  [[nodiscard]] std::size_t live() const noexcept { return facts_.live; }

 private:
  Facts facts_;
  std::string message_;
};

/// Bytes that were valid only on a device that failed or was lost. They never read as garbage: this is raised instead.
class UNIMEM_API DataLost : public detail::RuntimeError {
 public:
  DataLost(std::string buffer, std::size_t begin, std::size_t end, std::string cause);
  ~DataLost() override;

  std::string buffer;  ///< "buffer 'name'", or "buffer #7", its id, when it has none
  std::size_t begin;   ///< first lost byte of the range asked for
  std::size_t end;     ///< one past the last
  std::string cause;
};

/// A driver call failed.
class UNIMEM_API DeviceError : public detail::RuntimeError {
 public:
  DeviceError(std::string backend, std::string call, std::int64_t code, std::string code_name);
  ~DeviceError() override;

  std::string backend;    ///< "opencl", "cuda", "sim", …
  std::string call;       ///< the driver function
  std::int64_t code;      ///< the driver's number
  std::string code_name;  ///< the driver's name for it, as documentation spells it
};

/// A kernel cannot be built or run where it was asked to.
class UNIMEM_API KernelError : public detail::RuntimeError {
 public:
  /// `build_log` is the compiler's output, empty when the kernel never reached a compiler.
  KernelError(std::string name, std::string reason, std::string build_log = {});
  ~KernelError() override;

  std::string name;
  std::string reason;
  std::string build_log;
};

/// A file could not be opened, read, written or understood.
class UNIMEM_API IoError : public detail::RuntimeError {
 public:
  /// `code` is an errno value; 0 when the system was content and the file's contents were not.
  IoError(std::string path, int code, std::string doing);
  ~IoError() override;

  std::string path;
  int code;
};

/// The platform or backend cannot do this at all.
class UNIMEM_API UnsupportedOperation : public detail::RuntimeError {
 public:
  UnsupportedOperation(std::string operation, std::string where, std::string reason);
  ~UnsupportedOperation() override;

  std::string operation;
  std::string where;
  std::string reason;
};

/// A name or id that nothing answers to. The message lists what there is, and why what was asked for is not, where that
/// is known.
class UNIMEM_API NotFound : public detail::RuntimeError {
 public:
  NotFound(std::string kind, std::string name, std::vector<std::string> available, std::string reason = {});
  ~NotFound() override;

  std::string kind;  ///< "device", "kernel", …
  std::string name;
  std::vector<std::string> available;
  std::string reason;  ///< "opencl is unavailable: no platform", or empty
};

}  // namespace unimem
