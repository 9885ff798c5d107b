#pragma once

#include <array>
#include <cstddef>

namespace unimem::testing {

enum class Call { open, read, write, sync, map };
inline constexpr std::array calls{Call::open, Call::read, Call::write, Call::sync, Call::map};

/// Lets the n-th call to the system from now on fail that opens a file, reads, writes or syncs one or maps memory, on
/// whichever thread, and only that one; 0: none. Not where it is that the program is linked with `--wrap` for each. A
/// read is one that a thread waits for, or a request of io_uring's.
void fail_call(std::size_t n) noexcept;

/// Lets `count` reads from the n-th on fail with `error`, and the rest read no more than `most` bytes each (0: as many
/// as they are asked for). Nothing of that for `count` 0.
void fail_reads(std::size_t n, std::size_t count, int error, std::size_t most = 0) noexcept;

/// Whether the call that is to fail has not come yet.
[[nodiscard]] bool call_is_to_fail() noexcept;

/// What the next reads come to, of threads and of io_uring alike: a number of bytes, or an error's below 0; how often.
void answer_reads(long with, std::size_t times) noexcept;

/// What io_uring says, an error below 0, in place of taking requests, after `taken` times that it takes some; how
/// often.
void answer_submissions(int with, std::size_t taken, std::size_t times) noexcept;

/// How many have failed on purpose so far.
[[nodiscard]] std::size_t refused(Call call) noexcept;

}  // namespace unimem::testing
