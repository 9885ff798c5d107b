#include <unimem/pool/detail/address_book.hpp>

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "core/fork.hpp"
#include "core/stack.hpp"
#include "pool/address_table.hpp"
#include "pool/small_blocks.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <bit>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace unimem::detail {
namespace {

constexpr std::size_t shard_bits = 4;

/// On cache lines of its own: threads that use different shards must not meet all the same.
struct alignas(64) Shard {
  std::mutex mutex;
  AddressTable table;
  std::size_t live_bytes = 0;
};

constexpr auto given_back_already = "it was given back already";
constexpr auto another_size = "it was handed out with another size";
constexpr auto another_alignment = "it was handed out with another alignment";

/// Why an address is not taken back, and what is known of the last owner of what is there.
struct Refusal {
  char const* why = nullptr;
  Trail trail{};
};

}  // namespace

struct AddressBook::State {
  MemoryPool& pool;
  char const* what;
  Name name;
  std::unique_ptr<SmallBlocks> small{};  ///< null: none share pages
  std::array<Shard, std::size_t{1} << shard_bits> shards{};
  StackOptions const stacks{pool.stacks()};
  StackSampler sampler{};
  std::atomic<std::uint64_t> refused{0};
  MadeHere made{};

  [[nodiscard]] Shard& shard(std::uintptr_t address) noexcept {
    return shards[static_cast<std::size_t>(address_hash(address) >> (64 - shard_bits))];
  }

  /// "PoolResource 'rows' on cpu host"
  [[nodiscard]] std::string title() const {
    auto const quoted = name.empty() ? std::string{} : fmt::format(" '{}'", name.view());
    return fmt::format("{}{} on {} {}", what, quoted, pool.device().id(), to_string(pool.location()));
  }

  /// What does not fit what is at an address, if anything is. With the shard's lock.
  [[nodiscard]] static Refusal judge(Shard const& shard, AddressTable::Entry const* entry, std::uintptr_t address,
                                     std::size_t bytes) noexcept {
    auto const with = [](char const* why, std::unique_ptr<Trail> const& trail) {
      return trail == nullptr ? Refusal{why} : Refusal{why, *trail};
    };
    if (entry == nullptr) {
      auto const* const taken = shard.table.taken_lately(address);
      return taken == nullptr ? Refusal{} : with(given_back_already, taken->trail);
    }
    if (entry->bytes != bytes) return with(another_size, entry->trail);
    return with(another_alignment, entry->trail);
  }

  /// The same of a small block; null where there is none.
  [[nodiscard]] static char const* why(SmallBlocks::Return refusal) noexcept {
    switch (refusal) {
      case SmallBlocks::Return::twice:
        return given_back_already;
      case SmallBlocks::Return::other_size:
        return another_size;
      case SmallBlocks::Return::other_alignment:
        return another_alignment;
      case SmallBlocks::Return::taken:
      case SmallBlocks::Return::unknown:
        break;
    }
    return nullptr;
  }

  /// Counts and reports it.
  void refuse(void const* address, std::size_t bytes, std::size_t alignment, char const* why,
              Trail const& trail) noexcept {
    refused.fetch_add(1, std::memory_order_relaxed);  // a count alone
    CallStack here;
    if (stacks.every != 0) here.capture();
    try {
      auto text = fmt::format("{}: deallocate({}, {} bytes, alignment {}) refused: {}", title(), fmt::ptr(address),
                              bytes, alignment, why);
      text += describe_calls("acquired by", trail.acquired.calls());
      text += describe_calls("released first by", trail.released.calls());
      text += describe_calls("refused to", here.calls());
      log(LogLevel::error, text);
    } catch (std::exception const&) {
      log(LogLevel::error, why);
    }
  }
};

AddressBook::AddressBook(MemoryPool& pool, char const* what, Name name, Small small)
    : state_(std::make_unique<State>(pool, what, name)) {
  bool const in_pages = small == Small::in_pages && pool.stacks().every == 0 && !pool.zeroes_on_release();
  if (in_pages) state_->small = std::make_unique<SmallBlocks>(pool, name);
}

AddressBook::~AddressBook() {
  if (state_->made.inherited()) {
    static_cast<void>(state_.release());  // NOLINT(bugprone-unused-return-value): stays
    return;
  }
  auto const left = statistics();
  if (left.live_allocations == 0) return;
  try {
    log(LogLevel::warning, fmt::format("{} ends with {} allocations of {} bytes in use: they go back to the pool",
                                       state_->title(), left.live_allocations, left.live_bytes));
  } catch (std::exception const&) {
    log(LogLevel::warning, "a memory resource ends with allocations in use: they go back to the pool");
  }
}

void* AddressBook::acquire(std::size_t bytes, std::size_t alignment, Queue* queue) {
  auto& state = *state_;
  auto* const small = state.small.get();
  bool const is_small = small != nullptr && small->serves(bytes, alignment);
  bool const alone = is_small && small->goes_alone(bytes, alignment);
  if (is_small && !alone) {
    state.made.require("allocating from a memory resource");
    if (auto* const address = small->take(bytes, alignment)) return address;
  }
  AcquireOptions options;
  options.queue = queue;
  options.name = state.name;
  // What every block has need not be asked for; anything else the pool judges, and names.
  bool const kept_anyway = std::has_single_bit(alignment) && alignment <= state.pool.device().info().alignment;
  if (!kept_anyway) options.alignment = alignment;
  Allocation block;
  try {
    block = state.pool.acquire(bytes == 0 ? 1 : bytes, options);
  } catch (...) {
    if (alone) small->was_not_taken(bytes, alignment);
    throw;
  }
  auto* const address = block.data();
  if (address == nullptr) {
    throw UnsupportedOperation("memory by its address", state.title(), "memory of this device has none");
  }
  auto trail = state.sampler.is_due(state.stacks) ? begin_trail() : nullptr;
  auto const key = reinterpret_cast<std::uintptr_t>(address);
  auto& shard = state.shard(key);
  std::lock_guard const lock{shard.mutex};
  shard.table.put({key, bytes, alignment, std::move(block), std::move(trail)});
  shard.live_bytes += bytes;
  return address;
}

void AddressBook::release(void* address, std::size_t bytes, std::size_t alignment, Event last_use) noexcept {
  if (state_->made.inherited()) return;
  auto const key = reinterpret_cast<std::uintptr_t>(address);
  auto* const small = state_->small.get();
  if (small != nullptr && small->serves(bytes, alignment)) {
    auto const end = small->give(key, bytes, alignment);
    if (end == SmallBlocks::Return::taken) return;
  }
  auto& shard = state_->shard(key);
  std::unique_lock lock{shard.mutex};
  auto* const entry = shard.table.find(key);
  if (entry == nullptr || entry->bytes != bytes || entry->alignment != alignment) {
    auto refusal = State::judge(shard, entry, key, bytes);
    lock.unlock();
    if (refusal.why == nullptr && small != nullptr) refusal.why = State::why(small->judge(key, bytes));
    if (refusal.why == nullptr) refusal.why = "it was not handed out here";
    return state_->refuse(address, bytes, alignment, refusal.why, refusal.trail);
  }
  if (entry->trail != nullptr) entry->trail->released.capture();
  auto block = shard.table.take(*entry);
  shard.live_bytes -= bytes;
  lock.unlock();
  block.release(last_use);
}

void AddressBook::refuse(void const* address, std::size_t bytes, std::size_t alignment, char const* why) noexcept {
  state_->refuse(address, bytes, alignment, why, {});
}

MemoryPool& AddressBook::pool() const noexcept {
  return state_->pool;
}

AddressStatistics AddressBook::statistics() const {
  state_->made.require("counting what a memory resource has handed out");
  AddressStatistics result;
  result.refused_deallocations = state_->refused.load(std::memory_order_relaxed);
  for (auto& shard : state_->shards) {
    std::lock_guard const lock{shard.mutex};
    result.live_allocations += shard.table.count();
    result.live_bytes += shard.live_bytes;
  }
  if (state_->small != nullptr) {
    auto const [blocks, bytes] = state_->small->live();
    result.live_allocations += blocks;
    result.live_bytes += bytes;
  }
  return result;
}

void AddressBook::validate() const {
  state_->made.require("checking a memory resource");
  for (auto& shard : state_->shards) {
    std::lock_guard const lock{shard.mutex};
    shard.table.validate();
  }
  if (state_->small != nullptr) state_->small->validate();
}

}  // namespace unimem::detail
