#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/event.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unimem::detail {

/// For UNIMEM_CHECK=2: reports accesses to host bytes of one buffer that are newer on a device, through addresses that
/// an earlier host access gave.
///
/// The pages of such bytes are made inaccessible (`mprotect`) between operations. The first access to one raises
/// SIGSEGV; the handler reports it to the log with the buffer, the byte and the place, opens all of the buffer's pages
/// and lets the access go on: it finds what it would have found without the check. So each operation that leaves bytes
/// stale brings one report at most. Every other SIGSEGV goes to the handler that was there before; while the program
/// has put its own in place of this one, nothing is made inaccessible.
///
/// It cannot see an access to a page that also holds current bytes, nor one by a system call, which fails with EFAULT.
/// *Instead of* userfaultfd, which tells of writes alone, or needs privileges for what system calls touch.
///
/// Thread-safe: one lock for all buffers, held for a look at a map and a system call. The handler takes it, which is
/// sound because no memory of a buffer is touched under it.
class StaleViews {
 public:
  /// `name`: what reports call the buffer.
  explicit StaleViews(std::string name) : name_(std::move(name)) {}
  StaleViews(StaleViews const&) = delete;
  StaleViews& operator=(StaleViews const&) = delete;
  ~StaleViews() = default;  // what was attached has been detached

  /// The buffer's host memory from now on: whole pages of private memory that are its alone, of which `bytes` are used.
  void attach(void* base, std::size_t bytes);
  /// That memory is about to go: opens it. Does nothing if other memory has taken its place.
  void detach(void* base) noexcept;

  /// An operation begins, which may touch any of it.
  void open() noexcept;
  /// An operation has ended and left `stale`. Closes whole pages of it once the events in `behind`, which are of work
  /// that still reads there, are done: now, or at the next `close_if_done`.
  void close(ByteRanges const& stale, std::vector<Event> behind);
  void close_if_done() noexcept;

  /// For the handler: whether the address is of closed pages, which are open now, or have just been opened by another
  /// thread. `report` says what is to be reported.
  struct Found {
    bool ours = false;
    bool report = false;
    std::string name;
    std::size_t byte = 0;
    ByteRange stale;
  };
  [[nodiscard]] static Found open_at(std::uintptr_t address);

 private:
  void open_locked() noexcept;
  void close_if_done_locked() noexcept;
  void detach_locked() noexcept;

  std::string name_;
  std::uintptr_t base_ = 0;
  std::size_t bytes_ = 0;
  ByteRanges closed_, wanted_;  ///< whole pages, but for the end of the buffer
  std::vector<Event> behind_;
};

}  // namespace unimem::detail
