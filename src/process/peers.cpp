#include "process/peers.hpp"

#include <unimem/core/error.hpp>

#include "core/fork.hpp"
#include "core/start_thread.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <fstream>
#include <new>
#include <random>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace unimem::detail {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::array<char, 8> language{'u', 'n', 'i', 'm', 'e', 'm', 'P', '1'};

struct Request {
  std::array<char, 8> magic = language;
  Peers::Key key{};
};
struct Answer {
  std::array<char, 8> magic = language;
  std::uint32_t found = 0;
  std::uint32_t descriptors = 0;
};

/// What all such sockets of a user's processes are called; the first byte of such an address is zero.
std::string prefix_of(::uid_t user) {
  return fmt::format("unimem-1-{}-", user);
}

struct Address {
  ::sockaddr_un where{};
  ::socklen_t length = 0;
};
Address address_of(std::string_view name) {
  Address made;
  made.where.sun_family = AF_UNIX;
  auto const count = std::min(name.size(), sizeof made.where.sun_path - 1);
  std::memcpy(made.where.sun_path + 1, name.data(), count);
  made.length = static_cast<::socklen_t>(offsetof(::sockaddr_un, sun_path) + 1 + count);
  return made;
}

/// Who is at the other end, by the system's word; nothing: another user.
std::optional<std::uint32_t> peer_of(int connection) {
  ::ucred peer{};
  ::socklen_t size = sizeof peer;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  if (peer.uid != ::geteuid()) return std::nullopt;
  return static_cast<std::uint32_t>(peer.pid);
}

/// Closed in forked children, where no thread answers: else the name would stay as long as one lives.
std::atomic<int> listening{-1};
Fork::Hook const close_in_children{[]() noexcept {
  auto const inherited = listening.exchange(-1);
  if (inherited >= 0) ::close(inherited);
}};

/// One message with descriptors. Returns whether it went.
bool send_message(int connection, std::span<::iovec> parts, std::span<const UniqueFd> descriptors) {
  ::msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  alignas(::cmsghdr) std::array<std::byte, CMSG_SPACE(Peers::most_descriptors * sizeof(int))> control{};
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    auto* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::array<int, Peers::most_descriptors> numbers{};
    std::ranges::transform(descriptors, numbers.begin(), &UniqueFd::get);
    std::memcpy(CMSG_DATA(header), numbers.data(), descriptors.size() * sizeof(int));
  }
  return ::sendmsg(connection, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

}  // namespace

/// The thread that answers, and what it listens on.
class Peers::Service {
 public:
  explicit Service(Peers& peers) : peers_(peers) {
    name_ = fmt::format("{}{}-{:016x}", prefix_of(::geteuid()), ::getpid(),
                        (std::uint64_t{std::random_device{}()} << 32U) | std::random_device{}());
    constexpr auto cannot = "other processes cannot ask this one for what it shares";
    UniqueFd made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    auto const address = address_of(name_);
    if (!made || ::bind(made.get(), reinterpret_cast<::sockaddr const*>(&address.where), address.length) != 0 ||
        ::listen(made.get(), 128) != 0) {
      throw IoError('@' + name_, errno, cannot);
    }
    wake_ = UniqueFd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!wake_) throw IoError('@' + name_, errno, cannot);
    listening.store(made.get());
    socket_ = std::move(made);
    thread_ = start_thread<std::jthread>("answers processes", [this](std::stop_token const& stop) { answer(stop); });
  }
  Service(Service const&) = delete;
  Service& operator=(Service const&) = delete;
  ~Service() {
    thread_.request_stop();
    ::eventfd_write(wake_.get(), 1);
    thread_ = {};  // it waits for nobody
    listening.store(-1);
  }

 private:
  struct Client {
    UniqueFd connection;
    Clock::time_point until;  ///< it has answered by then, or is let go of
  };
  static constexpr std::size_t most_clients = 256;

  void answer(std::stop_token const& stop) noexcept {
    std::vector<Client> clients;
    while (!stop.stop_requested()) try {
        std::vector<::pollfd> watched{{wake_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
        if (clients.size() >= most_clients) watched[1].events = 0;
        for (auto const& client : clients) watched.push_back({client.connection.get(), POLLIN, 0});
        ::poll(watched.data(), watched.size(), clients.empty() ? -1 : 100);
        auto const now = Clock::now();
        auto const known = watched.size() - 2;
        std::vector<Client> left;
        for (std::size_t i = 0; i < clients.size(); ++i) {
          bool const asks = i < known && watched[i + 2].revents != 0;
          bool const stays = asks ? answer_one(clients[i].connection.get()) : now < clients[i].until;
          if (stays) left.push_back(std::move(clients[i]));
        }
        clients = std::move(left);
        if (watched[1].revents != 0) accept_one(clients, now);
      } catch (std::bad_alloc const&) {  // whoever asks waits until there is some, or gives up
        std::this_thread::sleep_for(milliseconds(10));
      }
  }

  void accept_one(std::vector<Client>& clients, Clock::time_point now) {
    UniqueFd connection{::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (!connection) {
      // No descriptor is left: it is asked again, and not at once.
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) std::this_thread::sleep_for(milliseconds(10));
      return;
    }
    if (peer_of(connection.get())) clients.push_back({std::move(connection), now + patience});
  }

  /// Whether it may ask again.
  bool answer_one(int connection) {
    Request request;
    std::array<std::byte, sizeof request + 1> bytes{};
    auto const got = ::recv(connection, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got != sizeof request) return false;
    std::memcpy(&request, bytes.data(), sizeof request);
    if (request.magic != language) return false;
    auto const offer = peers_.find(request.key);
    Answer answer;
    std::array<::iovec, 2> parts{{{&answer, sizeof answer}, {}}};
    if (offer) {
      answer.found = 1;
      answer.descriptors = static_cast<std::uint32_t>(offer->descriptors.size());
      parts[1] = {const_cast<char*>(offer->bytes.data()), offer->bytes.size()};  // it is read
    }
    bool const went = send_message(connection, parts,
                                   offer ? std::span<const UniqueFd>(offer->descriptors) : std::span<const UniqueFd>{});
    if (went && offer && offer->times == Times::once) peers_.withdraw(request.key);
    return went;
  }

  Peers& peers_;
  std::string name_;
  UniqueFd socket_, wake_;
  std::jthread thread_;
};

Peers& Peers::of_this_process() {
  static constinit PerProcess<Peers> instance;
  return instance.get();
}

Peers::Peers() = default;
Peers::~Peers() {
  service_.reset();
}

void Peers::offer(Key key, std::vector<UniqueFd> descriptors, std::string bytes, Times times) {
  if (descriptors.size() > most_descriptors) {
    throw InvalidArgument("descriptors", fmt::format("{}", descriptors.size()),
                          fmt::format("at most {}", most_descriptors));
  }
  if (bytes.size() > most_bytes) {
    throw InvalidArgument("bytes", fmt::format("{}", bytes.size()), fmt::format("at most {}", most_bytes));
  }
  auto made = std::make_shared<Offer const>(Offer{std::move(descriptors), std::move(bytes), times});
  std::scoped_lock const lock(mutex_);
  if (!service_) service_ = std::make_unique<Service>(*this);
  offers_.insert_or_assign(key, std::move(made));
}

void Peers::withdraw(Key key) noexcept {
  std::shared_ptr<Offer const> gone;  // closes descriptors, without the lock
  std::scoped_lock const lock(mutex_);
  auto const found = offers_.find(key);
  if (found == offers_.end()) return;
  gone = std::move(found->second);
  offers_.erase(found);
}

std::size_t Peers::waiting() {
  std::scoped_lock const lock(mutex_);
  return static_cast<std::size_t>(
      std::ranges::count_if(offers_, [](auto const& one) { return one.second->times == Times::once; }));
}

std::shared_ptr<Peers::Offer const> Peers::find(Key key) {
  std::scoped_lock const lock(mutex_);
  auto const found = offers_.find(key);
  return found == offers_.end() ? nullptr : found->second;
}

namespace {

/// The sockets of this user's processes that are there now.
std::vector<std::string> names_in_use() {
  auto const prefix = '@' + prefix_of(::geteuid());
  std::vector<std::string> found;
  constexpr auto list = "/proc/net/unix";
  std::ifstream sockets(list);
  if (!sockets) throw IoError(list, errno, "cannot look for other processes");
  for (std::string line; std::getline(sockets, line);) {
    auto const at = line.find(prefix);
    if (at == std::string::npos || at == 0 || line[at - 1] != ' ') continue;
    auto name = line.substr(at + 1);
    if (std::ranges::find(found, name) == found.end())
      found.push_back(std::move(name));  // one for each connection, too
  }
  return found;
}

/// One process, while it is asked.
class Inquiry {
 public:
  Inquiry(std::string const& name, std::function<void()> const& go_on) : name_(name), go_on_(go_on) {}

  /// Nothing: it has not got it, or is gone by now. Throws IoError if it does not answer as it should.
  std::optional<Peers::Parcel> ask(Peers::Key key) {
    if (!connect()) return std::nullopt;
    auto const pid = peer_of(connection_.get());
    if (!pid) return std::nullopt;  // another user's, by a name that is made to look like ours
    Request const request{language, key};
    if (::send(connection_.get(), &request, sizeof request, MSG_NOSIGNAL) < 0) return std::nullopt;
    if (!await(POLLIN)) refuse(ETIMEDOUT, "does not answer");
    auto parcel = receive();
    if (parcel) parcel->pid = *pid;
    return parcel;
  }

 private:
  [[noreturn]] void refuse(int code, std::string_view what) const {
    throw IoError('@' + name_, code, fmt::format("the process behind it {}", what));
  }

  bool connect() {
    connection_ = UniqueFd{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!connection_) throw IoError('@' + name_, errno, "cannot ask the process behind it");
    auto const address = address_of(name_);
    while (::connect(connection_.get(), reinterpret_cast<::sockaddr const*>(&address.where), address.length) != 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return false;  // it has ended
      if (Clock::now() >= until_) refuse(ETIMEDOUT, "takes no connections: it was stopped, perhaps");
      if (go_on_) go_on_();
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  bool await(short what) {
    for (;;) {
      ::pollfd watched{connection_.get(), what, 0};
      auto const left = std::chrono::duration_cast<milliseconds>(until_ - Clock::now());
      if (left.count() <= 0) return false;
      auto const found = ::poll(&watched, 1, static_cast<int>(std::min(left, milliseconds(100)).count()));
      if (go_on_) go_on_();
      if (found > 0) return true;
    }
  }

  std::optional<Peers::Parcel> receive() {
    Answer answer;
    std::string bytes(Peers::most_bytes + 1, '\0');
    std::array<::iovec, 2> parts{{{&answer, sizeof answer}, {bytes.data(), bytes.size()}}};
    // Room for more than there may be: what is sent too much is closed.
    alignas(::cmsghdr) std::array<std::byte, CMSG_SPACE(2 * Peers::most_descriptors * sizeof(int))> control{};
    ::msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    auto const got = ::recvmsg(connection_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return std::nullopt;  // it has ended
    if (got < 0) refuse(errno, "cannot be heard");
    Peers::Parcel parcel;
    for (auto* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= header->cmsg_len; at += sizeof(int)) {
        int number = -1;
        std::memcpy(&number, CMSG_DATA(header) + at, sizeof number);
        parcel.descriptors.emplace_back(number);
      }
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) refuse(EMFILE, "sent more descriptors than this one may open");
    bool const whole = static_cast<std::size_t>(got) >= sizeof answer && answer.magic == language &&
                       answer.found <= 1 && (message.msg_flags & MSG_TRUNC) == 0;
    if (!whole) refuse(EPROTO, "answers in another language than this version of the library's");
    if (answer.found == 0) return std::nullopt;
    if (answer.descriptors != parcel.descriptors.size()) refuse(EPROTO, "sent other descriptors than it says");
    bytes.resize(static_cast<std::size_t>(got) - sizeof answer);
    parcel.bytes = std::move(bytes);
    return parcel;
  }

  std::string const& name_;
  std::function<void()> const& go_on_;
  Clock::time_point until_ = Clock::now() + Peers::patience;
  UniqueFd connection_;
};

}  // namespace

std::optional<Peers::Parcel> Peers::fetch(Key key, std::function<void()> const& go_on) {
  std::exception_ptr odd;
  for (auto const& name : names_in_use()) {
    try {
      if (auto parcel = Inquiry(name, go_on).ask(key)) return parcel;
    } catch (IoError const& error) {
      if (error.code == EMFILE || error.code == ENFILE) throw;
      odd = std::current_exception();  // another one may have it
    }
  }
  if (odd) std::rethrow_exception(odd);
  return std::nullopt;
}

}  // namespace unimem::detail
