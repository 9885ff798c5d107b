#pragma once

#include "core/unique_fd.hpp"
#include "process/peers.hpp"
#include "process/peers_protocol.hpp"

#include <chrono>
#include <cstddef>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace unimem::detail {

/// The thread that answers, and what it listens on.
class Peers::Service {
 public:
  explicit Service(Peers& peers);
  Service(Service const&) = delete;
  Service& operator=(Service const&) = delete;
  ~Service();

 private:
  using Clock = std::chrono::steady_clock;
  struct Client {
    UniqueFd connection;
    Clock::time_point until;  ///< it has asked by then, or is let go of
  };
  static constexpr std::size_t most_clients = 256;

  void answer(std::stop_token const& stop) noexcept;
  void accept_some(std::vector<Client>& clients, Clock::time_point now);
  /// Whether it may ask again.
  bool answer_one(int connection);
  bool fetch_for(int connection, Key key);
  bool list_for(int connection, std::optional<Key> after);

  Peers& peers_;
  std::string name_;
  UniqueFd socket_, wake_;
  std::jthread thread_;
};

}  // namespace unimem::detail
