#include "process/peers_protocol.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace unimem::detail::peers {

std::string prefix_of(::uid_t user) {
  return fmt::format("unimem-1-{}-", user);
}

Address address_of(std::string_view name) {
  Address made;
  made.where.sun_family = AF_UNIX;
  auto const count = std::min(name.size(), sizeof made.where.sun_path - 1);
  std::memcpy(made.where.sun_path + 1, name.data(), count);
  made.length = static_cast<::socklen_t>(offsetof(::sockaddr_un, sun_path) + 1 + count);
  return made;
}

std::optional<std::uint32_t> peer_of(int connection) {
  ::ucred peer{};
  ::socklen_t size = sizeof peer;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  if (peer.uid != ::geteuid()) return std::nullopt;
  return static_cast<std::uint32_t>(peer.pid);
}

int send(int connection, Answer const& answer, std::string_view bytes, std::span<const UniqueFd> descriptors) {
  // What is sent is read only.
  std::array<::iovec, 2> parts{
      {{const_cast<Answer*>(&answer), sizeof answer}, {const_cast<char*>(bytes.data()), bytes.size()}}};
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
  return ::sendmsg(connection, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? 0 : errno;
}

std::optional<Message> receive(int connection, std::string const& name) {
  Message found;
  found.bytes.assign(most_payload + 1, '\0');
  std::array<::iovec, 2> parts{{{&found.head, sizeof found.head}, {found.bytes.data(), found.bytes.size()}}};
  // Room for more than there may be: what is sent too much is seen, and closed.
  constexpr auto room = 2 * Peers::most_descriptors;
  alignas(::cmsghdr) std::array<std::byte, CMSG_SPACE(room * sizeof(int))> control{};
  ::msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  auto const got = ::recvmsg(connection, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno == ECONNRESET)) return std::nullopt;
  if (got < 0) refuse(name, errno, "cannot be heard");
  found.descriptors.reserve(room);
  for (auto* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= header->cmsg_len; at += sizeof(int)) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + at, sizeof number);
      found.descriptors.emplace_back(number);
    }
  }
  if (found.descriptors.size() > Peers::most_descriptors) refuse(name, EPROTO, "sent more descriptors than it may");
  if ((message.msg_flags & MSG_CTRUNC) != 0) refuse(name, EMFILE, "sent more descriptors than this one may open");
  bool const whole = static_cast<std::size_t>(got) >= sizeof found.head && found.head.magic == language &&
                     (message.msg_flags & MSG_TRUNC) == 0 && found.head.kind != Answer::not_understood;
  if (!whole) refuse(name, EPROTO, "answers in another language than this version of the library's");
  if (found.head.kind == Answer::cannot) {
    // By a code that is none of this process's own.
    refuse(name, EREMOTEIO,
           fmt::format("has it, and cannot send it ({})", std::strerror(static_cast<int>(found.head.found))));
  }
  if (found.head.descriptors != found.descriptors.size()) refuse(name, EPROTO, "sent other descriptors than it says");
  found.bytes.resize(static_cast<std::size_t>(got) - sizeof found.head);
  if (found.bytes.size() > most_payload) refuse(name, EPROTO, "sent more bytes than it may");
  return found;
}

void refuse(std::string const& name, int code, std::string_view what) {
  throw IoError('@' + name, code, fmt::format("the process behind it {}", what));
}

}  // namespace unimem::detail::peers
