#include <unimem/core/error.hpp>

#include "process/peers.hpp"
#include "share/peer_deaths.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <span>
#include <utility>

namespace unimem::detail {
namespace {

/// A descriptor that can be read from when the process has ended; none where the system gives none.
UniqueFd open_process(std::uint32_t pid) {
  // The system call itself: the declaration in glibc 2.36 forgets that C++ exists.
  return UniqueFd{static_cast<int>(::syscall(SYS_pidfd_open, static_cast<::pid_t>(pid), 0))};
}

/// What of the memory this process has published or opened now.
void add_ids(std::vector<BufferId>& ids, std::span<std::shared_ptr<SharedBook> const> same) {
  for (auto const& book : same) {
    for (auto const key : book->keys()) {
      if (Peers::of_this_process().offers(key)) ids.push_back({key.registry, key.number});
    }
  }
}

}  // namespace

template <class Look>
void PeerWatch::with(Same const& same, Look const& look) {
  try {
    look(same.front()->ranges());
  } catch (IoError const&) {  // NOLINT(bugprone-empty-catch)
    // What cannot be read now is looked at the next time.
  }
}

PeerWatch::PeerWatch() {
  for (auto const& one : books_of_this_process()) {
    with(one.second,
         [&](SharedRanges const& book) { books_.emplace(one.first, Book{.deaths = book.deaths(UINT64_MAX).count}); });
  }
}

PeerWatch::Books PeerWatch::books_of_this_process() {
  Books books;
  for (auto& book : SharedBooks::of_this_process().all()) books[book->identity()].push_back(std::move(book));
  return books;
}

void PeerWatch::wait(int wake) {
  std::vector<::pollfd> watched{{wake, POLLIN, 0}};
  for (auto const& [process, descriptor] : processes_) watched.push_back({descriptor.get(), POLLIN, 0});
  ::poll(watched.data(), watched.size(), 100);
  died_ = died_ || std::any_of(watched.begin() + 1, watched.end(), [](auto const& one) { return one.revents != 0; });
}

std::vector<PeerDeath> PeerWatch::look() {
  auto const books = books_of_this_process();
  std::erase_if(books_, [&](auto const& one) { return !books.contains(one.first); });
  Deaths deaths;
  for (auto const& [identity, same] : books) {
    auto const known = books_.try_emplace(identity, Book{.deaths = same.front()->deaths_before()}).first;
    with(same, [&](SharedRanges& book) { look_at(book, known->second); });
  }
  watch_participants();
  if (!died_) collect(books, deaths);
  // Another process may have found one dead in a book that it holds, too, and not in others.
  if (died_ || !deaths.empty()) {
    died_ = false;
    for (auto const& [identity, same] : books) {
      with(same, [&](SharedRanges& book) { static_cast<void>(book.forget_dead()); });
    }
    collect(books, deaths);
  }
  std::vector<PeerDeath> found;
  for (auto& [process, death] : deaths) found.push_back(std::move(death));
  return found;
}

void PeerWatch::look_at(SharedRanges& book, Book& known) {
  auto const changes = book.change_count();
  if (known.looked && changes == known.changes) return;
  known.held_by.clear();
  for (auto const& one : book.participants()) {
    if (one.process.pid != self_) known.held_by.insert({one.process.pid, one.process.started});
  }
  known.changes = changes;
  known.looked = true;
}

void PeerWatch::watch_participants() {
  std::map<Process, UniqueFd> watched;
  for (auto const& [identity, known] : books_) {
    for (auto const& process : known.held_by) {
      auto const [at, is_new] = watched.try_emplace(process);
      if (!is_new) continue;
      if (auto const before = processes_.find(process); before != processes_.end())
        at->second = std::move(before->second);
      if (at->second) continue;
      at->second = open_process(process.pid);
      // By its descriptor alone, the one behind a number may be another by now.
      if (!is_alive(process)) died_ = true;
    }
  }
  processes_ = std::move(watched);
}

bool PeerWatch::is_alive(Process process) {
  try {
    return SharedRanges::is_alive({process.pid, process.started});
  } catch (IoError const&) {
    return true;  // it is asked again
  }
}

void PeerWatch::collect(Books const& books, Deaths& deaths) {
  for (auto const& one : books) {
    auto const& same = one.second;
    auto& known = books_.at(one.first);
    with(same, [&](SharedRanges const& book) {
      auto const found = book.deaths(known.deaths);
      known.deaths = found.count;
      for (auto const& [process, lost] : found.since) {
        auto& death = deaths[{process.pid, process.started}];
        death.pid = process.pid;
        death.lost_bytes += lost;
        add_ids(death.buffers, same);
      }
    });
  }
}

}  // namespace unimem::detail
