#include "file/failing_calls.hpp"

#ifdef UNIMEM_URING
#include <liburing.h>
#endif
#include <sys/mman.h>
#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>

namespace {

using unimem::testing::Call;

std::atomic<std::size_t> left{0};
std::array<std::atomic<std::size_t>, unimem::testing::calls.size()> failed{};

/// Whether this call fails, with `code`.
bool fails(Call call, int code) noexcept {
  auto now = left.load();
  while (now != 0 && !left.compare_exchange_weak(now, now - 1)) {
  }
  if (now != 1) return false;
  ++failed[static_cast<std::size_t>(call)];
  errno = code;
  return true;
}

std::atomic<std::size_t> reads{0}, first{0}, end{0}, most_bytes{0};
std::atomic<int> read_error{0};

/// Whether this read is one of those that `fail_reads` told of.
bool read_fails() noexcept {
  auto const number = ++reads;
  if (number < first || number >= end) return false;
  ++failed[static_cast<std::size_t>(Call::read)];
  errno = read_error;
  return true;
}

std::atomic<long> answer{0};
std::atomic<std::size_t> answers{0};

std::atomic<int> submission_answer{0};
std::atomic<std::size_t> submissions_taken{0}, submission_answers{0};

/// What `bytes` from a read are said to be, if anything else.
long answered(long bytes) noexcept {
  auto now = answers.load();
  while (now != 0 && !answers.compare_exchange_weak(now, now - 1)) {
  }
  return now == 0 ? bytes : std::min(bytes, answer.load());
}

}  // namespace

void unimem::testing::fail_reads(std::size_t n, std::size_t count, int error, std::size_t most) noexcept {
  reads = 0;
  first = n;
  end = n + count;
  read_error = error;
  most_bytes = most;
}

void unimem::testing::answer_submissions(int with, std::size_t taken, std::size_t times) noexcept {
  submission_answer = with;
  submissions_taken = taken;
  submission_answers = times;
}

void unimem::testing::answer_reads(long with, std::size_t times) noexcept {
  answer = with;
  answers = times;
}

void unimem::testing::fail_call(std::size_t n) noexcept {
  left = n;
}

bool unimem::testing::call_is_to_fail() noexcept {
  return left != 0;
}

std::size_t unimem::testing::refused(Call call) noexcept {
  return failed[static_cast<std::size_t>(call)];
}

// What the linker calls in place of the system's functions, and what it calls those.
// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,cert-dcl50-cpp)
extern "C" {
int __real_open(char const* path, int flags, ...);
::ssize_t __real_pread(int file, void* to, std::size_t bytes, ::off_t offset);
::ssize_t __real_pwrite(int file, void const* from, std::size_t bytes, ::off_t offset);
int __real_fdatasync(int file);
void* __real_mmap(void* at, std::size_t bytes, int access, int flags, int file, ::off_t offset);

int __wrap_open(char const* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  auto const mode = va_arg(more, ::mode_t);  // whatever lies there, where there is none: then nobody looks at it
  va_end(more);
  return fails(Call::open, EMFILE) ? -1 : __real_open(path, flags, mode);
}
::ssize_t __wrap_pread(int file, void* to, std::size_t bytes, ::off_t offset) {
  if (fails(Call::read, EIO) || read_fails()) return -1;
  auto const most = most_bytes.load();
  auto const read = answered(__real_pread(file, to, most == 0 ? bytes : std::min(bytes, most), offset));
  if (read >= 0) return read;
  if (read != -1) errno = static_cast<int>(-read);
  return -1;
}
#ifdef UNIMEM_URING
int __real_io_uring_submit_and_wait(::io_uring* ring, unsigned fewest);

int __wrap_io_uring_submit_and_wait(::io_uring* ring, unsigned) {
  if (submissions_taken != 0) {
    --submissions_taken;
  } else if (submission_answers != 0) {
    --submission_answers;
    return submission_answer;
  }
  // All that are under way, so that none is taken before it was looked at.
  auto const first = *ring->cq.khead, count = ring->sq.sqe_tail - first;
  auto const submitted = __real_io_uring_submit_and_wait(ring, count);
  for (unsigned i = 0; submitted >= 0 && i < count; ++i) {
    auto& result = ring->cq.cqes[(first + i) & *ring->cq.kring_mask].res;
    result = fails(Call::read, EIO) ? -EIO : read_fails() ? -read_error : static_cast<int>(answered(result));
  }
  return submitted;
}
#endif
::ssize_t __wrap_pwrite(int file, void const* from, std::size_t bytes, ::off_t offset) {
  return fails(Call::write, ENOSPC) ? -1 : __real_pwrite(file, from, bytes, offset);
}
int __wrap_fdatasync(int file) {
  return fails(Call::sync, EIO) ? -1 : __real_fdatasync(file);
}
void* __wrap_mmap(void* at, std::size_t bytes, int access, int flags, int file, ::off_t offset) {
  return fails(Call::map, ENOMEM) ? MAP_FAILED : __real_mmap(at, bytes, access, flags, file, offset);
}
}
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,cert-dcl50-cpp)
