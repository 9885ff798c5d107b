#pragma once

#include <unimem/share/peer_death.hpp>

#include "buffer/shared_book.hpp"
#include "core/fork.hpp"
#include "core/unique_fd.hpp"
#include "device/worker_threads.hpp"
#include "process/shared_ranges.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace unimem::detail {

/// Finds out which processes die that hold memory which this one holds, too.
///
/// What is told of a death is what the books say, where whoever finds the process gone writes it down: so all survivors
/// are told the same, of processes that came and went between two looks as well. That somebody looks in time is what a
/// descriptor of each process (pidfd) is for. For one thread.
class PeerWatch {
 public:
  /// Deaths that are known before are not told.
  PeerWatch();

  /// Waits for a death, or for `wake`, for 100 ms at most.
  void wait(int wake);
  /// What has been found since the last look. Books that cannot be read now are looked at the next time.
  [[nodiscard]] std::vector<PeerDeath> look();

 private:
  struct Process {
    std::uint32_t pid;
    std::uint64_t started;
    friend auto operator<=>(Process const&, Process const&) = default;
  };
  struct Book {
    std::uint64_t deaths = 0;  ///< that have been told
    std::set<Process> held_by{};
    std::uint32_t changes = 0;
    bool looked = false;  ///< who holds it, when its count of changes was that
  };
  /// The same book, as often as this process takes part in it.
  using Same = std::vector<std::shared_ptr<SharedBook>>;
  using Books = std::map<std::uint64_t, Same>;
  using Deaths = std::map<Process, PeerDeath>;

  [[nodiscard]] static Books books_of_this_process();
  [[nodiscard]] static bool is_alive(Process process);
  template <class Look>
  void with(Same const& same, Look const& look);
  void look_at(SharedRanges& book, Book& known);
  void watch_participants();
  void collect(Books const& books, Deaths& deaths);

  std::uint32_t const self_ = static_cast<std::uint32_t>(::getpid());
  std::map<std::uint64_t, Book> books_;
  /// Of those that take part; one without a descriptor is looked at every time.
  std::map<Process, UniqueFd> processes_;
  bool died_ = false;  ///< one that took part
};

/// Who wants to know. The thread that finds out is there while somebody does. Callbacks are called on it, one after
/// the other, with no lock held.
///
/// Thread-safe.
class PeerDeaths final : public BackgroundWorker, public std::enable_shared_from_this<PeerDeaths> {
 public:
  [[nodiscard]] static std::shared_ptr<PeerDeaths> of_this_process();
  virtual ~PeerDeaths() = default;

  /// Its number. Throws InvalidArgument for no callback, IoError where no more descriptors may be open, DeviceError
  /// where there is no thread.
  [[nodiscard]] std::uint64_t subscribe(PeerDeathCallback callback);
  void cancel(std::uint64_t id) noexcept;

  void shut_down() noexcept override;
  void await_quiet(std::chrono::steady_clock::time_point until) noexcept override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// A thread, and what it looks at.
  struct Run {
    UniqueFd wake;
    PeerWatch watch{};
    std::uint64_t called = 0;                ///< whose callback runs; 0: none
    std::atomic<std::thread::id> calling{};  ///< the thread, meanwhile
    bool over = false;
  };

  [[nodiscard]] std::shared_ptr<Run> make_run();
  void work(Run& run) noexcept;
  /// Those up to number `last`.
  void tell(Lock& lock, Run& run, PeerDeath const& death, std::uint64_t last) noexcept;
  [[nodiscard]] bool is_called_here() const noexcept;

  MadeHere const made_{};
  std::mutex mutex_;
  std::condition_variable ended_;
  std::map<std::uint64_t, std::shared_ptr<PeerDeathCallback const>> subscribers_;
  std::uint64_t last_ = 0;
  std::shared_ptr<Run> run_;                ///< that of the subscribers; null: there are none
  std::vector<std::shared_ptr<Run>> runs_;  ///< those that have not ended, too
  std::once_flag enlist_once_;
  bool enlisted_ = false;  ///< once that has been tried
  bool shutting_down_ = false;
};

}  // namespace unimem::detail
