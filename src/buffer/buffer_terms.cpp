#include "buffer/buffer_terms.hpp"

#include <unimem/core/detail/environment.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/replica.hpp"

#include <fmt/format.h>

#include <atomic>
#include <utility>

namespace unimem::detail {
namespace {

/// The default one is never destroyed, and is not counted.
std::shared_ptr<MemoryManager> manager_of(BufferOptions const& options) {
  if (options.manager != nullptr) return options.manager->share();
  return {std::shared_ptr<MemoryManager>{}, &default_manager()};
}

/// Threads take them by the dozen, so as not to meet here for each.
std::uint64_t next_id() {
  static constexpr std::uint64_t dozen = 12;
  static constinit std::atomic<std::uint64_t> next{1};
  static constinit thread_local std::uint64_t mine = 0, end = 0;
  if (mine == end) {
    mine = next.fetch_add(dozen, std::memory_order_relaxed);
    end = mine + dozen;
  }
  return mine++;
}

}  // namespace

BufferTerms::BufferTerms(BufferOptions&& given)
    : options(std::move(given)),
      manager(manager_of(options)),
      spill_files(manager->spill_files()),
      name(options.name),
      key(name.empty() ? options.site : name),
      id(next_id()) {
  if (options.manager != nullptr) options.manager = manager.get();
  static bool const strict_by_default = environment_flag("UNIMEM_STRICT", false);
  options.strict = options.strict || strict_by_default;
  if (options.location == Location::pinned) options.pinned = true;
}

std::string BufferTerms::display_name() const {
  return name.empty() ? fmt::format("buffer #{}", id) : fmt::format("buffer '{}'", name.view());
}

AcquireOptions BufferTerms::named() const {
  AcquireOptions options_of_block;
  options_of_block.name = key;
  return options_of_block;
}

void BufferTerms::count_in(Replica& replica) const {
  replica.count_in(manager->usage_book(), key, id, options.made_by.get());
}

}  // namespace unimem::detail
