#include "buffer/named_buffers.hpp"

#include <unimem/manager/memory_manager.hpp>

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace unimem::detail {

std::vector<std::shared_ptr<BufferCore>> named_buffers(MemoryManager const& manager, NameUse use) {
  std::vector<std::shared_ptr<BufferCore>> buffers;
  for (auto const& resident : manager.named()) {
    auto core = std::dynamic_pointer_cast<BufferCore>(resident);
    if (core != nullptr && core->options().name_use >= use) buffers.push_back(std::move(core));
  }
  std::ranges::sort(buffers, {}, [](auto const& core) { return std::pair{core->name(), core->id()}; });
  return buffers;
}

std::vector<std::string> names_of(std::vector<std::shared_ptr<BufferCore>> const& buffers) {
  constexpr std::size_t most = 16;
  std::vector<std::string> names;
  for (auto const& core : buffers) {
    if (names.size() == most) break;
    names.emplace_back(core->name());
  }
  return names;
}

}  // namespace unimem::detail
