#include <unimem/share/buffer_id.hpp>

#include <fmt/format.h>

namespace unimem {

std::string to_string(BufferId id) {
  return id ? fmt::format("{:016x}-{}", id.registry, id.number) : "none";
}

}  // namespace unimem
