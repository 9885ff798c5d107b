#pragma once

#include "core/unique_fd.hpp"

#include <atomic>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace unimem::detail {

/// What processes of one user on one machine hand to one another by a number: descriptors, and some bytes that say what
/// they are. Over Unix sockets without names in the file system, so that nothing is left when a process ends; the
/// system says who is at the other end, and another user's processes get and are believed nothing.
///
/// A process that offers something has a thread of its own that answers; it runs no code of a user's, waits for no lock
/// for long, and for no peer at all.
///
/// Thread-safe. A forked child offers nothing of its parent's, and what the parent offers stays the parent's.
class Peers {
 public:
  struct Key {
    std::uint64_t registry = 0;
    std::uint64_t number = 0;
    friend auto operator<=>(Key const&, Key const&) = default;
  };
  /// As it goes over the socket: at most these.
  static constexpr std::size_t most_descriptors = 4, most_bytes = std::size_t{32} << 10;

  static Peers& of_this_process();

  Peers();
  Peers(Peers const&) = delete;
  Peers& operator=(Peers const&) = delete;
  ~Peers();

  /// Of an offer: of those by one key each has another.
  using Number = std::uint64_t;
  /// How often something is given.
  enum class Times : bool { any, once };
  /// Whoever asks for `key` from now on gets these, in place of what was offered by it before. `memory`: what they
  /// keep, for `waiting`. Throws InvalidArgument for more than goes over the socket, IoError if the process cannot be
  /// asked by others.
  Number offer(Key key, std::vector<UniqueFd> descriptors, std::string bytes, Times times = Times::any,
               std::size_t memory = 0);
  /// False: it was not offered, or has been given.
  bool withdraw(Key key) noexcept;  // NOLINT(modernize-use-nodiscard)
  /// Unless another offer has taken its place.
  void withdraw(Key key, Number number) noexcept;
  [[nodiscard]] bool offers(Key key);
  /// What is given once and has not been.
  struct Waiting {
    std::size_t count = 0;
    std::size_t memory = 0;  ///< bytes
  };
  [[nodiscard]] Waiting waiting();

  /// Has the process at the other end of `socket` (SOCK_SEQPACKET), which calls `take_over`, offer in this one's place
  /// what is given once and has not been. At each moment one of them offers it, for a moment both. Returns how much
  /// that was. Throws IoError where the other does not answer within `longest`, or cannot have them: then this one goes
  /// on offering all.
  std::size_t hand_over(int socket, std::chrono::milliseconds longest);
  /// Offers what the process at the other end of `socket` hands over, from when it has all. Returns when the other has
  /// withdrawn it, or has ended. Throws IoError, and offers nothing, where the other ends before, or is silent for
  /// `longest`, or this process may open no more descriptors.
  void take_over(int socket, std::chrono::milliseconds longest);

  /// What another process offered, or this one.
  struct Parcel {
    std::uint32_t pid = 0;  ///< whose
    std::vector<UniqueFd> descriptors;
    std::string bytes;
  };
  /// How long one peer is given to answer.
  static constexpr std::chrono::milliseconds patience{2'000};
  /// Asks all of this user's processes that offer anything, at the same time; the first that has it. Nothing: none of
  /// them offers it. `go_on`: asked ten times a second meanwhile; what it throws ends it. Throws IoError where this
  /// process may open no more descriptors, and, if no process has it, where one did not answer, or not in this
  /// language.
  [[nodiscard]] static std::optional<Parcel> fetch(Key key, std::function<void()> const& go_on = {});

  /// What a process offers, without its descriptors.
  struct Offered {
    Key key;
    std::uint32_t pid = 0;
    std::string bytes;
  };
  /// All that this user's processes offer, this one's too: of each in the order of keys. Asks them as `fetch` does.
  /// `unanswered`, if there is one: those that did not answer, or not in this language, each with what is wrong; what
  /// they told before that is in the list; of one, 64 MiB at most are heard. Throws IoError where this process may open
  /// no more descriptors.
  [[nodiscard]] static std::vector<Offered> list(std::function<void()> const& go_on = {},
                                                 std::vector<std::string>* unanswered = nullptr);
  /// What is offered of which a list wants the descriptors, too. What is given once is taken from others by that.
  class Visitor {
   public:
    Visitor() = default;
    Visitor(Visitor const&) = delete;
    Visitor& operator=(Visitor const&) = delete;
    virtual ~Visitor() = default;
    /// Asked just before its process is; several may offer it.
    [[nodiscard]] virtual bool wants(Offered const& one) = 0;
    /// Not called for what has been withdrawn meanwhile. What it throws ends the list, but for an IoError, which is
    /// told of that process.
    virtual void take(Offered const& one, std::vector<UniqueFd> descriptors) = 0;
  };
  /// The same, with descriptors: of all of them together each process has `patience` to send, too.
  [[nodiscard]] static std::vector<Offered> list(Visitor& visitor, std::function<void()> const& go_on,
                                                 std::vector<std::string>* unanswered);

 private:
  struct Offer {
    std::vector<UniqueFd> descriptors;
    std::string bytes;
    Times times = Times::any;
    std::size_t memory = 0;
    Number number = 0;
  };
  class Service;
  [[nodiscard]] std::shared_ptr<Offer const> find(Key key);
  using Offers = std::map<Key, std::shared_ptr<Offer const>>;
  /// From one moment on.
  void offer(Offers all);
  void count_in(Offer const& one) noexcept;
  void count_out(Offer const& one) noexcept;
  bool withdraw(Key key, std::optional<Number> number) noexcept;
  /// As many entries as go over the socket at once, as bytes.
  struct Page {
    std::string bytes;
    std::uint32_t entries = 0;
    bool more = false;
  };
  [[nodiscard]] Page page(std::optional<Key> after);

  std::mutex mutex_;
  Offers offers_;
  Waiting waiting_;
  std::atomic<Number> last_ = 0;
  std::unique_ptr<Service> service_;
};

}  // namespace unimem::detail
