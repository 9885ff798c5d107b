#pragma once

#include "core/unique_fd.hpp"
#include "process/peers.hpp"

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// What goes over the sockets between processes: a request, and an answer with what it asks for.

namespace unimem::detail::peers {

inline constexpr std::array<char, 8> language{'u', 'n', 'i', 'm', 'e', 'm', 'P', '2'};

struct Request {
  enum Kind : std::uint32_t {
    fetch,       ///< what is offered by `key`
    list,        ///< all that is offered
    list_after,  ///< all with keys behind `key`
  };
  std::array<char, 8> magic = language;
  std::uint32_t kind = fetch;
  std::uint32_t unused = 0;
  Peers::Key key{};
};

/// Bytes follow: of what is fetched, or entries.
struct Answer {
  enum Kind : std::uint32_t {
    fetched,
    listed,
    not_understood,
    cannot,  ///< it has it, and cannot send it; `found` is an errno
  };
  std::array<char, 8> magic = language;
  std::uint32_t kind = fetched;
  std::uint32_t found = 0;
  std::uint32_t descriptors = 0;
  std::uint32_t more = 0;  ///< entries are left
};

/// Of a list, one; its bytes follow.
struct Entry {
  Peers::Key key{};
  std::uint64_t size = 0;
};

/// What follows an answer: one entry goes by itself at least.
inline constexpr std::size_t most_payload = Peers::most_bytes + sizeof(Entry);

/// What all such sockets of a user's processes are called; the first byte of such an address is zero.
[[nodiscard]] std::string prefix_of(::uid_t user);

struct Address {
  ::sockaddr_un where{};
  ::socklen_t length = 0;
};
[[nodiscard]] Address address_of(std::string_view name);

/// Who is at the other end, by the system's word; nothing: another user.
[[nodiscard]] std::optional<std::uint32_t> peer_of(int connection);

/// Waits for nothing. Returns 0, or why it did not go: an errno.
[[nodiscard]] int send(int connection, Answer const& answer, std::string_view bytes,
                       std::span<const UniqueFd> descriptors);

struct Message {
  Answer head;
  std::string bytes;
  std::vector<UniqueFd> descriptors;
};
/// Nothing: the other end has closed. `name`: whose it is. Throws IoError for what is no answer, and with EMFILE where
/// this process may open no more descriptors; those that came are closed then.
[[nodiscard]] std::optional<Message> receive(int connection, std::string const& name);

[[noreturn]] void refuse(std::string const& name, int code, std::string_view what);

}  // namespace unimem::detail::peers
