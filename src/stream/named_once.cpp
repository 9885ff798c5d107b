#include "stream/named_once.hpp"

#include <unimem/core/error.hpp>

#include "buffer/named_buffers.hpp"
#include "core/quoted.hpp"

#include <algorithm>
#include <string>

namespace unimem::detail {

std::vector<std::shared_ptr<BufferCore>> named_once(MemoryManager const& manager) {
  auto buffers = named_buffers(manager, NameUse::saving);
  auto const twice = std::ranges::adjacent_find(buffers, {}, [](auto const& core) { return core->name(); });
  if (twice != buffers.end()) {
    throw InvalidArgument("name", detail::quoted((*twice)->name()),
                          "of one live buffer alone: files know buffers by it");
  }
  return buffers;
}

}  // namespace unimem::detail
