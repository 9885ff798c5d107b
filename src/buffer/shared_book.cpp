#include "buffer/shared_book.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>

namespace unimem::detail {

std::shared_ptr<SharedBook> SharedBook::join(Segment memory, SharedRanges ranges, std::string const& name) {
  // A forked child calls it, too, for what it takes part in itself.
  [[maybe_unused]] static bool const registered = std::atexit(&SharedBooks::tell_of_the_end) == 0;
  std::shared_ptr<SharedBook> const made(new SharedBook(std::move(memory), std::move(ranges), name));
  auto& all = SharedBooks::of_this_process();
  all.add(made);
  try {
    made->join(name);  // the last that may fail: who has joined has to leave
  } catch (...) {
    all.remove(*made);
    throw;
  }
  return made;
}

SharedBook::SharedBook(Segment memory, SharedRanges ranges, std::string const& name)
    : memory_(std::move(memory)), ranges_(std::move(ranges)) {
  struct ::stat status{};
  if (::fstat(memory_.descriptor(), &status) != 0) throw IoError(name, errno, "its memory cannot be looked at");
  identity_ = status.st_ino;
  deaths_before_ = ranges_.deaths(UINT64_MAX).count;
}

void SharedBook::join(std::string const& name) {
  auto joined = ranges_.join(SharedRanges::this_process());
  if (!joined && !ranges_.forget_dead().empty()) joined = ranges_.join(SharedRanges::this_process());
  if (!joined) {
    throw UnsupportedOperation("sharing with one process more", name,
                               fmt::format("{} hold it already, which is the most", SharedRanges::most_holders));
  }
  self_ = *joined;
}

void SharedBook::add_key(Peers::Key key) {
  std::scoped_lock const lock(mutex_);
  keys_.push_back(key);
}

std::vector<Peers::Key> SharedBook::keys() const {
  std::scoped_lock const lock(mutex_);
  return keys_;
}

void SharedBook::leave() {
  ranges_.leave(self_);
}

SharedBooks& SharedBooks::of_this_process() {
  static constinit PerProcess<SharedBooks> books;
  return books.get();
}

void SharedBooks::add(std::shared_ptr<SharedBook> book) {
  std::scoped_lock const lock(mutex_);
  books_.push_back(std::move(book));
}

void SharedBooks::remove(SharedBook const& book) noexcept {
  std::shared_ptr<SharedBook> gone;  // unmapped without the lock
  std::scoped_lock const lock(mutex_);
  auto const found = std::ranges::find(books_, &book, &std::shared_ptr<SharedBook>::get);
  if (found == books_.end()) return;
  gone = std::move(*found);
  books_.erase(found);
}

std::vector<std::shared_ptr<SharedBook>> SharedBooks::all() const {
  std::scoped_lock const lock(mutex_);
  return books_;
}

void SharedBooks::tell_of_the_end() noexcept {
  try {
    // A process that was stopped with a book's lock does not hold up this one's end.
    constexpr std::chrono::milliseconds patience{200};
    for (auto const& book : of_this_process().all()) book->ranges().note_end(book->self(), patience);
  } catch (std::exception const& error) {
    log(LogLevel::warning, "other processes are not told that this one ends in good order:");
    log(LogLevel::warning, error.what());
  }
}

}  // namespace unimem::detail
