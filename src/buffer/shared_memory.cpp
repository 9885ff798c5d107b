#include "buffer/shared_memory.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "device/host_memory.hpp"
#include "process/steps.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <new>
#include <span>
#include <utility>

namespace unimem::detail {
namespace {

/// How long a claim is waited for before its process is looked at: whether it is still there.
constexpr std::chrono::milliseconds look_after{50};

UniqueFd copy_of(int descriptor, std::string const& name) {
  UniqueFd copy{::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)};
  if (!copy) throw IoError(name, errno, "its memory cannot be handed to another process");
  return copy;
}

/// There is no file without pages that could be mapped.
std::size_t segment_bytes(std::size_t bytes) {
  return std::max(bytes, std::size_t{1});
}

std::optional<SharedMemory::Identity> identity_of(int contents, int book) noexcept {
  struct ::stat first{}, second{};
  if (::fstat(contents, &first) != 0 || ::fstat(book, &second) != 0) return std::nullopt;
  return SharedMemory::Identity{first.st_dev, first.st_ino, second.st_ino};
}

std::span<std::byte> bytes_of(Segment const& segment) {
  return {segment.data(), segment.size()};
}

}  // namespace

SharedMemory::StandIn::StandIn(Allocation of, std::shared_ptr<void const> kept)
    : block(std::move(of)), pools(std::move(kept)) {
  give_back_pages(block.data(), block.size());
  count_elsewhere(block.size());
}

SharedMemory::StandIn::~StandIn() {
  if (!block) return;
  count_elsewhere_no_more(block.size());
  block.release();
}

std::shared_ptr<SharedMemory> SharedMemory::make(std::string const& name, std::size_t bytes, StandIn stand_in) {
  auto contents = Segment::make(name, segment_bytes(bytes));
  auto book_memory = Segment::make(name + ", who wrote what", SharedRanges::bytes());
  auto book = SharedRanges::make(bytes_of(book_memory), bytes, name);
  return std::shared_ptr<SharedMemory>(
      new SharedMemory(name, bytes, std::move(contents), std::move(book_memory), std::move(book), std::move(stand_in)));
}

std::shared_ptr<SharedMemory> SharedMemory::attach(std::string const& name, std::vector<UniqueFd> descriptors,
                                                   std::size_t bytes, std::string const& from) {
  if (descriptors.size() != 2) {
    throw IoError(name, EPROTO, fmt::format("{} handed over {} descriptors instead of 2", from, descriptors.size()));
  }
  auto contents = Segment::adopt(std::move(descriptors[0]), segment_bytes(bytes), from);
  auto book_memory = Segment::adopt(std::move(descriptors[1]), SharedRanges::bytes(), from);
  at_step(Step::open_attached);
  auto book = SharedRanges::attach(bytes_of(book_memory), bytes, name);
  return std::shared_ptr<SharedMemory>(
      new SharedMemory(name, bytes, std::move(contents), std::move(book_memory), std::move(book), {}));
}

std::optional<SharedMemory::Identity> SharedMemory::identity_of(std::span<UniqueFd const> descriptors) noexcept {
  if (descriptors.size() != 2) return std::nullopt;
  return detail::identity_of(descriptors[0].get(), descriptors[1].get());
}

SharedMemory::SharedMemory(std::string name, std::size_t bytes, Segment contents, Segment book_memory,
                           SharedRanges book, StandIn stand_in)
    : name_(std::move(name)),
      bytes_(bytes),
      stand_in_(std::move(stand_in)),
      contents_(std::move(contents)),
      book_(SharedBook::join(std::move(book_memory), std::move(book), name_)),
      identity_(detail::identity_of(contents_.descriptor(), book_->descriptor()).value_or(Identity{})),
      seen_(book_->ranges().version()) {}  // whatever was written before is there

SharedMemory::~SharedMemory() {
  if (made_.inherited()) return;
  SharedBooks::of_this_process().remove(*book_);
  for (auto const& [key, number] : offers_) Peers::of_this_process().withdraw(key, number);
  try {
    end_what_is_due();  // or what was written would be lost
    book_->leave();
  } catch (std::exception const& error) {
    // Others find out that the process has ended, and not before.
    log(LogLevel::warning, fmt::format("{}: other processes are not told that this one is done with it:", name_));
    log(LogLevel::warning, error.what());
  }
}

std::vector<UniqueFd> SharedMemory::descriptors() const {
  std::vector<UniqueFd> copies;
  copies.push_back(copy_of(contents_.descriptor(), name_));
  copies.push_back(copy_of(book_->descriptor(), name_));
  return copies;
}

void SharedMemory::offer(Peers::Key key, std::string bytes) {
  auto copies = descriptors();
  book_->add_key(key);
  std::scoped_lock const lock(offers_mutex_);
  offers_.emplace_back(key, 0);
  offers_.back().second = Peers::of_this_process().offer(key, std::move(copies), std::move(bytes));
  at_step(Step::publish_offered);
}

auto SharedMemory::begin(ByteRange range, Access access) -> std::optional<Claim> {
  auto& book = book_->ranges();
  auto const self = book_->self();
  return access == Access::writes ? book.begin_write(self, range) : book.begin_read(self, range);
}

void SharedMemory::end(ByteRange range, Access access, Outcome outcome) {
  auto& book = book_->ranges();
  auto const self = book_->self();
  access == Access::writes ? book.end_write(self, range, outcome) : book.end_read(self, range);
}

void SharedMemory::end_later(ByteRange range, Access access, Outcome outcome) {
  std::scoped_lock const lock(due_mutex_);
  due_.push_back({range, access, outcome});
  has_due_.store(true, std::memory_order_relaxed);  // who comes behind this one sees it; what is due is under the lock
}

void SharedMemory::end_what_is_due() {
  if (!has_due_.load(std::memory_order_relaxed)) return;
  std::scoped_lock const lock(due_mutex_);
  while (!due_.empty()) {
    auto const& one = due_.back();
    end(one.range, one.access, one.outcome);
    due_.pop_back();
  }
  has_due_.store(false, std::memory_order_relaxed);
}

void SharedMemory::wait_for_change(std::uint32_t seen) const noexcept {
  book_->ranges().wait_for_change(seen, look_after);
}

void SharedMemory::wait_for(Claim const& claim, std::uint32_t seen) {
  auto& book = book_->ranges();
  book.wait_for_change(seen, look_after);
  // Others that change something all the time are no reason never to look.
  auto const now = std::chrono::steady_clock::now().time_since_epoch();
  auto const looked = looked_.load(std::memory_order_relaxed);
  if (book.change_count() != seen && now - looked < look_after) return;
  looked_.store(now, std::memory_order_relaxed);
  for (auto const& one : book.participants()) {
    if (one.holder == claim.holder && SharedRanges::is_alive(one.process)) return;
  }
  static_cast<void>(book.forget_dead());
}

void SharedMemory::have_noted(Changes const& found) noexcept {
  seen_ = found.version;
  loses_ = found.loses;
}

SharedTurn::~SharedTurn() {
  if (!has_begun_ || made_.inherited()) return;
  try {
    memory_->end(range_, access_, outcome_);
  } catch (std::exception const& error) {
    end_later(error);
  }
}

void SharedTurn::end_later(std::exception const& error) noexcept {
  try {
    memory_->end_later(range_, access_, outcome_);
    log(LogLevel::error,
        fmt::format("{}: other processes are not told that bytes [{}, {}) are free before this one uses it again:",
                    memory_->name(), range_.begin, range_.end));
    log(LogLevel::error, error.what());
  } catch (std::bad_alloc const&) {
    log(LogLevel::error, "without memory, others are not told that bytes of a shared buffer are free");
  }
}

}  // namespace unimem::detail
