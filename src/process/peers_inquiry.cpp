#include "process/peers_inquiry.hpp"

#include "core/unique_fd.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <unordered_set>
#include <utility>
#include <vector>

namespace unimem::detail::peers {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How many are asked at the same time; beyond, one after another has answered.
constexpr std::size_t at_once = 32;
/// How soon a process that takes no connections now is tried again: the system does not tell when it does.
constexpr milliseconds again{5};

[[nodiscard]] bool is_out_of_descriptors(IoError const& error) {
  return error.code == EMFILE || error.code == ENFILE;
}

/// The sockets of this user's processes that are there now.
std::vector<std::string> names_in_use() {
  auto const prefix = " @" + prefix_of(::geteuid());
  std::unordered_set<std::string> found;
  constexpr auto list = "/proc/net/unix";
  std::ifstream sockets(list);
  if (!sockets) throw IoError(list, errno, "cannot look for other processes");
  for (std::string line; std::getline(sockets, line);) {
    auto const at = line.find(prefix);
    if (at != std::string::npos) found.insert(line.substr(at + 2));  // once for each connection, too
  }
  return {found.begin(), found.end()};
}

/// One process, while it is asked.
class Asked {
 public:
  explicit Asked(std::string name) : name_(std::move(name)) {}

  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  [[nodiscard]] int descriptor() const noexcept { return connection_.get(); }
  [[nodiscard]] Clock::time_point until() const noexcept { return until_; }
  /// It is asked, and has not answered.
  [[nodiscard]] bool is_awaited() const noexcept { return awaited_; }

  bool has_answered = false;  ///< and has not been heard

  /// Asks, as soon as it takes connections. False: it is not there, or another user's. Throws IoError.
  bool begin(Request const& request) {
    if (!connection_) {
      connection_ = UniqueFd{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
      if (!connection_) throw IoError('@' + name_, errno, "cannot ask the process behind it");
    }
    auto const address = address_of(name_);
    while (::connect(connection_.get(), reinterpret_cast<::sockaddr const*>(&address.where), address.length) != 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return false;
      if (Clock::now() >= until_) refuse(name_, ETIMEDOUT, "takes no connections: it was stopped, perhaps");
      return true;
    }
    auto const pid = peer_of(connection_.get());
    if (!pid) return false;  // by a name that is made to look like ours
    pid_ = *pid;
    return ask(request);
  }

  /// Has it answer, if it does by now. False: it has, or is not there any more. Throws IoError.
  bool hear(Inquiry& inquiry) {
    if (!has_answered) {
      if (Clock::now() >= until_) refuse(name_, ETIMEDOUT, "does not answer");
      return true;
    }
    auto message = receive(connection_.get(), name_);
    if (!message) return false;
    auto const next = inquiry.take(name_, pid_, std::move(*message));
    if (next && Clock::now() >= until_) refuse(name_, ETIMEDOUT, "does not come to an end");
    return next && ask(*next);
  }

 private:
  bool ask(Request const& request) {
    awaited_ = ::send(connection_.get(), &request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
    return awaited_;
  }

  std::string name_;
  UniqueFd connection_;
  Clock::time_point until_ = Clock::now() + Peers::patience;
  std::uint32_t pid_ = 0;
  bool awaited_ = false;
};

/// Those that are asked now.
class Round {
 public:
  Round(Inquiry& inquiry, std::function<void()> const& go_on) : inquiry_(inquiry), go_on_(go_on) {}

  void ask(std::vector<std::string> const& names, std::size_t most) {
    inquiry_.begin();
    auto name = names.begin();
    while (!inquiry_.is_done() && (name != names.end() || !asked_.empty())) {
      for (; name != names.end() && asked_.size() < most; ++name) asked_.emplace_back(*name);
      each([&](Asked& one) { return one.is_awaited() || one.begin(inquiry_.first()); });
      await();
      each([&](Asked& one) { return !one.is_awaited() || one.hear(inquiry_); });
    }
  }

 private:
  /// Those that `what` has no more to do with are left.
  template <class What>
  void each(What const& what) {
    std::erase_if(asked_, [&](Asked& one) {
      if (inquiry_.is_done()) return false;
      try {
        return !what(one);
      } catch (IoError const& error) {
        if (is_out_of_descriptors(error)) throw;
        inquiry_.fail(one.name(), error);
        return true;
      }
    });
  }

  /// Until one answers, or may be tried again, or has had its time; a tenth of a second at most.
  void await() {
    std::vector<::pollfd> watched;
    auto until = Clock::now() + milliseconds(100);
    for (auto const& one : asked_) {
      watched.push_back({one.is_awaited() ? one.descriptor() : -1, POLLIN, 0});
      until = std::min(until, one.is_awaited() ? one.until() : Clock::now() + again);
    }
    if (watched.empty()) return;
    auto const left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    ::poll(watched.data(), watched.size(), static_cast<int>(std::max<long>(left, 0)));
    for (std::size_t i = 0; i < watched.size(); ++i) asked_[i].has_answered = watched[i].revents != 0;
    if (!go_on_ || Clock::now() < asks_next_) return;
    asks_next_ = Clock::now() + milliseconds(100);
    go_on_();
  }

  Inquiry& inquiry_;
  std::function<void()> const& go_on_;
  std::vector<Asked> asked_;
  Clock::time_point asks_next_ = Clock::now();
};

}  // namespace

void ask_all(Inquiry& inquiry, std::function<void()> const& go_on) {
  auto const names = names_in_use();
  try {
    Round(inquiry, go_on).ask(names, at_once);
  } catch (IoError const& error) {
    if (!is_out_of_descriptors(error)) throw;
    // Those that were asked at the same time took them, perhaps.
    Round(inquiry, go_on).ask(names, 1);
  }
}

}  // namespace unimem::detail::peers
