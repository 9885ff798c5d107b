#include "share/opened_elsewhere.hpp"

#include <unimem/core/error.hpp>

#include "buffer/shared_buffers.hpp"
#include "buffer/shared_memory.hpp"
#include "device/watched_wait.hpp"
#include "process/peers.hpp"
#include "process/steps.hpp"
#include "share/peers_key.hpp"
#include "share/shared_description.hpp"

#include <fmt/format.h>

#include <utility>

namespace unimem::detail {
std::optional<OpenedElsewhere::Found> OpenedElsewhere::find(BufferId id) {
  std::scoped_lock const lock(mutex_);
  auto const known = known_.find(id);
  if (known == known_.end()) return std::nullopt;
  if (auto core = known->second.core.lock()) {
    return Found{std::move(core), known->second.shape, known->second.element, known->second.name};
  }
  known_.erase(known);
  return std::nullopt;
}

std::optional<OpenedElsewhere::Found> OpenedElsewhere::open(BufferId id) {
  if (auto found = find(id)) return found;
  WatchedWait watch{"asking other processes for a buffer"};
  auto parcel = Peers::fetch(key_of(id), [&] { watch.look(); });
  if (!parcel) return std::nullopt;
  at_step(Step::open_fetched);
  auto const from = fmt::format("process {}", parcel->pid);
  auto const described = SharedDescription::decode(parcel->bytes, from);
  auto core = SharedBuffers::of_this_process().find(parcel->descriptors, described.bytes);
  if (!core) {
    auto memory = SharedMemory::attach(described.buffer.empty() ? to_string(id) : described.buffer,
                                       std::move(parcel->descriptors), described.bytes, from);
    at_step(Step::open_joined);
    BufferOptions options;
    options.name = described.buffer;
    options.name_use = NameUse::reports;
    core = SharedBuffers::of_this_process().keep(BufferCore::make(std::move(options), std::move(memory)));
  }
  Found made{std::move(core), Shape(described.shape),
             SharedElement{Name(described.element_name), described.element_bytes, described.tag, nullptr},
             described.name};
  std::scoped_lock const lock(mutex_);
  auto& known = known_[id];
  if (auto other = known.core.lock()) {  // another thread was faster
    made.core = std::move(other);
    return made;
  }
  // This process may have published it.
  auto const memory = made.core->shared_memory();
  if (memory && !Peers::of_this_process().offers(key_of(id))) memory->offer(key_of(id), std::move(parcel->bytes));
  known = {made.core, made.shape, made.element, made.name};
  return made;
}

void OpenedElsewhere::withdraw(BufferId id) noexcept {
  Peers::of_this_process().withdraw(key_of(id));
}

}  // namespace unimem::detail
