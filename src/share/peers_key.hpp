#pragma once

#include <unimem/share/buffer_id.hpp>

#include "process/peers.hpp"

namespace unimem::detail {

/// By what other processes are asked for the buffer of an id.
[[nodiscard]] inline Peers::Key key_of(BufferId id) noexcept {
  return {id.registry, id.number};
}

}  // namespace unimem::detail
