#include <unimem/core/error.hpp>

#include "process/peers.hpp"
#include "process/peers_protocol.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// What one process offers goes to another that offers it in its place. Message by message, each of which is answered,
// so that no more descriptors are under way than the system lets be:
//
//   fetched, found 1: an entry to offer, with its descriptors     → fetched
//   listed: that was all; from here on the other offers it        → fetched
//   fetched, found 0: an entry that has been given meanwhile      → fetched
//   the end

namespace unimem::detail {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto name = "handing over what was sent";

/// The end of a socketpair, at which the other says one thing after another.
class Line {
 public:
  Line(int socket, milliseconds longest) noexcept : socket_(socket), longest_(longest) {}

  void say(peers::Answer const& answer, std::string_view bytes = {}, std::span<const UniqueFd> descriptors = {}) const {
    if (auto const failed = peers::send(socket_, answer, bytes, descriptors); failed != 0) {
      throw IoError(name, failed, "the other process cannot be told");
    }
  }
  /// Nothing: the other has ended.
  [[nodiscard]] std::optional<peers::Message> hear() const {
    auto const until = Clock::now() + longest_;
    for (;;) {
      ::pollfd watched{socket_, POLLIN, 0};
      auto const left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
      auto const ready = ::poll(&watched, 1, static_cast<int>(std::max<long>(left, 0)));
      if (ready > 0) return peers::receive(socket_, name);
      if (ready < 0 && errno != EINTR) throw IoError(name, errno, "the other process cannot be heard");
      if (ready == 0) throw IoError(name, ETIMEDOUT, "the other process does not answer");
    }
  }
  /// The same, and its answer.
  void ask(peers::Answer const& answer, std::string_view bytes = {}, std::span<const UniqueFd> descriptors = {}) const {
    say(answer, bytes, descriptors);
    if (!hear()) throw IoError(name, ECONNRESET, "the other process has ended");
  }

 private:
  int socket_;
  milliseconds longest_;
};

/// How an entry begins; its bytes follow.
struct Given {
  Peers::Key key{};
  std::uint64_t memory = 0;
};
static_assert(sizeof(Given) + Peers::most_bytes <= peers::most_payload);

std::string as_bytes(Given const& given) {
  return {reinterpret_cast<char const*>(&given), sizeof given};
}

Given given_of(peers::Message const& message) {
  Given given;
  if (message.bytes.size() < sizeof given) peers::refuse(name, EPROTO, "hands over what is none");
  std::memcpy(&given, message.bytes.data(), sizeof given);
  return given;
}

}  // namespace

std::size_t Peers::hand_over(int socket, milliseconds longest) {
  Line const line(socket, longest);
  std::vector<std::pair<Key, std::shared_ptr<Offer const>>> all;
  {
    std::scoped_lock const lock(mutex_);
    std::ranges::copy_if(offers_, std::back_inserter(all),
                         [](auto const& one) { return one.second->times == Times::once; });
  }
  for (auto const& [key, offer] : all) {
    line.ask({.found = 1, .descriptors = static_cast<std::uint32_t>(offer->descriptors.size())},
             as_bytes({key, offer->memory}) + offer->bytes, offer->descriptors);
  }
  line.ask({.kind = peers::Answer::listed});
  // From here on all is the other's, whatever becomes of it.
  auto const count = all.size();
  std::erase_if(all, [&](auto const& one) { return withdraw(one.first); });
  try {
    for (auto const& [key, given] : all) line.ask({.found = 0}, as_bytes({key, 0}));
  } catch (IoError const&) {
    return count;  // it offers these to nobody until it ends
  }
  return count;
}

void Peers::take_over(int socket, milliseconds longest) {
  Line const line(socket, longest);
  Offers all;
  for (;;) {
    auto message = line.hear();
    if (!message) throw IoError(name, ECONNRESET, "the other process has ended");
    if (message->head.kind == peers::Answer::listed) break;
    if (message->head.found != 1) peers::refuse(name, EPROTO, "hands over what is none");
    auto const given = given_of(*message);
    all.insert_or_assign(given.key, std::make_shared<Offer const>(
                                        Offer{std::move(message->descriptors), message->bytes.substr(sizeof given),
                                              Times::once, static_cast<std::size_t>(given.memory)}));
    line.say({});
  }
  // All at one moment: who asks this process before asks the other later, which then has it still.
  offer(std::move(all));
  try {
    line.say({});
    while (auto const message = line.hear()) {
      static_cast<void>(withdraw(given_of(*message).key));
      line.say({});
    }
  } catch (IoError const&) {
    return;  // it has ended in the middle of that, or is stopped: what it had offered is offered here
  }
}

}  // namespace unimem::detail
