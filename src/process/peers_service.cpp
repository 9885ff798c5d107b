#include "process/peers_service.hpp"

#include <unimem/core/error.hpp>

#include "core/fork.hpp"
#include "core/start_thread.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <random>
#include <span>
#include <stop_token>
#include <utility>

namespace unimem::detail {
namespace {

using std::chrono::milliseconds;

/// Closed in forked children, where no thread answers: else the name would stay as long as one lives.
std::atomic<int> listening{-1};
Fork::Hook const close_in_children{[]() noexcept {
  auto const inherited = listening.exchange(-1);
  if (inherited >= 0) ::close(inherited);
}};

}  // namespace

Peers::Service::Service(Peers& peers) : peers_(peers) {
  name_ = fmt::format("{}{}-{:016x}", peers::prefix_of(::geteuid()), ::getpid(),
                      (std::uint64_t{std::random_device{}()} << 32U) | std::random_device{}());
  constexpr auto cannot = "other processes cannot ask this one for what it shares";
  UniqueFd made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  auto const address = peers::address_of(name_);
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

Peers::Service::~Service() {
  thread_.request_stop();
  ::eventfd_write(wake_.get(), 1);
  thread_ = {};  // it waits for no other
  listening.store(-1);
}

void Peers::Service::answer(std::stop_token const& stop) noexcept {
  std::vector<Client> clients;
  while (!stop.stop_requested()) try {
      std::vector<::pollfd> watched{{wake_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
      if (clients.size() >= most_clients) watched[1].events = 0;
      for (auto const& client : clients) watched.push_back({client.connection.get(), POLLIN, 0});
      ::poll(watched.data(), watched.size(), clients.empty() ? -1 : 100);
      auto const now = Clock::now();
      auto const known = watched.size() - 2;
      std::vector<Client> left;
      left.reserve(clients.size());
      for (std::size_t i = 0; i < clients.size(); ++i) {
        bool const asks = i < known && watched[i + 2].revents != 0;
        bool const stays = asks ? answer_one(clients[i].connection.get()) : now < clients[i].until;
        if (stays) left.push_back(std::move(clients[i]));
      }
      clients = std::move(left);
      if (watched[1].revents != 0) accept_some(clients, now);
    } catch (std::bad_alloc const&) {  // a client waits until there is some, or gives up
      std::this_thread::sleep_for(milliseconds(10));
    }
}

void Peers::Service::accept_some(std::vector<Client>& clients, Clock::time_point now) {
  clients.reserve(most_clients);
  while (clients.size() < most_clients) {
    UniqueFd connection{::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (!connection) {
      // No descriptor is left: it is asked again, and not at once.
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) std::this_thread::sleep_for(milliseconds(10));
      return;
    }
    if (peers::peer_of(connection.get())) clients.push_back({std::move(connection), now + patience});
  }
}

bool Peers::Service::answer_one(int connection) {
  peers::Request request;
  std::array<std::byte, sizeof request + 1> bytes{};
  auto const got = ::recv(connection, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  if (got == sizeof request) std::memcpy(&request, bytes.data(), sizeof request);
  if (got == sizeof request && request.magic == peers::language) {
    if (request.kind == peers::Request::fetch) return fetch_for(connection, request.key);
    if (request.kind == peers::Request::list) return list_for(connection, std::nullopt);
    if (request.kind == peers::Request::list_after) return list_for(connection, request.key);
  }
  // By its letters, another version of the library sees that this one speaks otherwise.
  peers::Answer const answer{.kind = peers::Answer::not_understood};
  static_cast<void>(peers::send(connection, answer, {}, {}));
  return false;
}

bool Peers::Service::fetch_for(int connection, Key key) {
  peers::Answer answer;
  auto const offer = peers_.find(key);
  if (!offer) return peers::send(connection, answer, {}, {}) == 0;
  answer.found = 1;
  answer.descriptors = static_cast<std::uint32_t>(offer->descriptors.size());
  auto const failed = peers::send(connection, answer, offer->bytes, offer->descriptors);
  if (failed == 0) {
    if (offer->times == Times::once) peers_.withdraw(key);
    return true;
  }
  // Too many descriptors are under way between this user's processes, say.
  answer = {.kind = peers::Answer::cannot, .found = static_cast<std::uint32_t>(failed)};
  static_cast<void>(peers::send(connection, answer, {}, {}));
  return false;
}

bool Peers::Service::list_for(int connection, std::optional<Key> after) {
  auto const page = peers_.page(after);
  peers::Answer const answer{
      .kind = peers::Answer::listed, .found = page.entries, .more = page.more ? std::uint32_t{1} : 0};
  return peers::send(connection, answer, page.bytes, {}) == 0;
}

}  // namespace unimem::detail
