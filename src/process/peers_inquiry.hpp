#pragma once

#include <unimem/core/error.hpp>

#include "process/peers_protocol.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

// Asks several processes at the same time.

namespace unimem::detail::peers {

/// What is asked, and what becomes of the answers. All of it is called on the thread that asks.
class Inquiry {
 public:
  Inquiry() = default;
  Inquiry(Inquiry const&) = delete;
  Inquiry& operator=(Inquiry const&) = delete;
  virtual ~Inquiry() = default;

  /// Nothing has been answered.
  virtual void begin() = 0;
  [[nodiscard]] virtual Request first() const = 0;
  /// `name` answers. Returns what else it is asked; nothing: that was all. Throws IoError for what is no answer to it.
  [[nodiscard]] virtual std::optional<Request> take(std::string const& name, std::uint32_t pid, Message message) = 0;
  /// It does not answer, or not as it should.
  virtual void fail(std::string const& name, IoError const& error) = 0;
  /// No process has to be asked any more.
  [[nodiscard]] virtual bool is_done() const = 0;
};

/// Asks all of this user's processes that listen now, but for those that are gone when they are asked; gives each
/// `Peers::patience`. `go_on`: asked ten times a second, if there is one; what it throws ends it. Throws IoError where
/// this process may open no more descriptors.
void ask_all(Inquiry& inquiry, std::function<void()> const& go_on);

}  // namespace unimem::detail::peers
