#include "pool/thread_cache.hpp"

#include "core/fork.hpp"
#include "pool/block_intake.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <span>
#include <thread>
#include <utility>

namespace unimem::detail {

constinit thread_local MagazineTable magazine_table;

namespace {

std::uint64_t next_pool() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

/// The magazines a thread has of all its pools. When the thread ends, each pool gets its blocks back.
class Memberships {
 public:
  Memberships() = default;
  Memberships(Memberships const&) = delete;
  Memberships& operator=(Memberships const&) = delete;

  ~Memberships() {
    ended = true;
    magazine_table = {};
    for (auto& [pool, thread] : all_) leave(*thread);
  }

  /// Set when this thread's are gone: destructors of other thread-local objects may still release blocks.
  static inline constinit thread_local bool ended = false;

  [[nodiscard]] static Memberships& mine() {
    static thread_local Memberships memberships;
    return memberships;
  }

  [[nodiscard]] ThreadMagazines* find(std::uint64_t pool) const noexcept {
    for (auto const& [number, thread] : all_) {
      if (number == pool) return thread.get();
    }
    return nullptr;
  }

  void add(std::uint64_t pool, std::shared_ptr<ThreadMagazines> thread) {
    std::erase_if(all_, [](auto const& one) {
      std::lock_guard const lock{one.second->mutex};
      if (one.second->cache != nullptr) return false;
      // A block that outlives its pool is released as one of this pool.
      auto& slot = magazine_table.all[one.first % MagazineTable::slots];
      if (slot.pool == one.first) slot = {};
      return true;
    });
    all_.emplace_back(pool, std::move(thread));
  }

  void remove(std::uint64_t pool) noexcept {
    std::erase_if(all_, [pool](auto const& one) { return one.first == pool; });
  }

  /// In a forked child, at its start: the pools are the parent's.
  static void forget_inherited() noexcept {
    if (ended) return;
    magazine_table = {};
    mine().all_.clear();
  }

 private:
  static void leave(ThreadMagazines& thread) noexcept {
    std::lock_guard const lock{thread.mutex};
    if (thread.cache != nullptr) thread.cache->retire(thread);
  }

  std::vector<std::pair<std::uint64_t, std::shared_ptr<ThreadMagazines>>> all_;
};

Fork::Hook const forgets{&Memberships::forget_inherited};

}  // namespace

ThreadCache::ThreadCache(BlockIntake& core, Use use)
    : core_(core),
      pool_(use != Use::none && barriers_are_asymmetric() ? next_pool() : 0),
      quick_pool_(use == Use::quick ? pool_ : 0),
      depots_(pool_ != 0) {}

Block* ThreadCache::take(std::size_t bytes, std::uint64_t queue, Name name) noexcept {
  if (pool_ == 0) return nullptr;
  auto* own = this->own();
  if (own == nullptr) own = enroll();  // a thread without magazines finds what is in the depots
  if (own == nullptr || !own->enter()) return nullptr;
  auto* block = own->take(bytes, queue, name);
  if (block == nullptr) block = take_from_depot(*own, bytes, queue, name);
  own->leave();
  return block;
}

Block* ThreadCache::take_from_depot(Magazines& own, std::size_t bytes, std::uint64_t queue, Name name) noexcept {
  if (bytes > largest_small_block) {
    auto* const block = depots_.take_large(bytes, queue);
    if (block != nullptr) own.pass_on(*block, bytes, name);
    return block;
  }
  std::array<Block*, Magazine::slots> batch;  // NOLINT(*-member-init): the depot fills in what it counts
  auto const count = depots_.take(bytes, std::span{batch}.first(own.room_for(bytes)));
  for (std::size_t i = count; i-- > 0;) own.receive(*batch[i]);
  return count == 0 ? nullptr : own.take(bytes, queue, name);
}

bool ThreadCache::keep(Block& block, std::uint64_t number) noexcept {
  if (pool_ == 0) return false;
  auto* own = this->own();
  if (own == nullptr) own = enroll();
  if (own == nullptr || !own->enter()) return false;
  own->catch_up(number);
  if (own->sends_on(block)) {
    auto* const one = &block;
    own->send_on(block);
    if (!depots_.put_large(block)) core_.take_back({&one, 1});
  } else {
    while (!own->keep(block)) make_room(*own, block.capacity());
  }
  own->leave();
  return true;
}

void ThreadCache::make_room(Magazines& own, std::size_t bytes) noexcept {
  if (bytes > largest_small_block) {
    auto* const oldest = &own.take_oldest_large();
    if (!depots_.put_large(*oldest)) core_.take_back({&oldest, 1});
  } else if (own.are_full_for(bytes)) {
    core_.take_back(own);
  } else {
    std::array<Block*, Magazine::slots> batch{};
    auto const blocks = std::span{batch}.first(own.take_half(bytes, batch));
    core_.take_back(blocks.subspan(depots_.put(blocks)));
  }
}

bool ThreadCache::flush_all() noexcept {
  return flush_beyond(0, 0);
}

bool ThreadCache::flush_beyond(std::size_t flush_threshold_small, std::size_t flush_threshold_large) noexcept {
  std::size_t small = 0, large = 0;
  {
    auto const accounts = core_.lock();
    auto const add = [&](auto const& parked) {
      auto const of_large = parked.large_bytes();
      large += of_large;
      small += std::max(parked.bytes(), of_large) - of_large;
    };
    add(depots_);
    for (auto const& thread : threads_) add(thread->magazines);
  }
  if (small > flush_threshold_small) {
    CacheFlush const brought_back{*this};
    return true;
  }
  if (large <= flush_threshold_large) return false;
  std::lock_guard const lock{mutex_};
  seize_all();
  for (auto const& thread : threads_) core_.take_back_large(thread->magazines);
  core_.take_back_large(depots_);
  release_all();
  return true;
}

std::size_t ThreadCache::bytes_beside(Magazines const* these) const noexcept {
  auto sum = depots_.bytes();
  for (auto const& thread : threads_) {
    if (&thread->magazines != these) sum += thread->magazines.bytes();
  }
  return sum;
}

Magazines* ThreadCache::own_elsewhere() const noexcept {
  if (pool_ == 0 || Memberships::ended) return nullptr;
  auto* const thread = Memberships::mine().find(pool_);
  if (thread == nullptr) return nullptr;
  auto& slot = magazine_table.all[pool_ % MagazineTable::slots];
  slot = {pool_, &thread->magazines};  // from the pool that has had it
  return slot.magazines;
}

Magazines* ThreadCache::enroll() noexcept {
  if (Memberships::ended) return nullptr;
  try {
    auto& memberships = Memberships::mine();
    auto fresh = std::make_shared<ThreadMagazines>();
    fresh->cache = this;
    memberships.add(pool_, fresh);
    std::lock_guard const lock{mutex_};
    if (closed_) {
      memberships.remove(pool_);
      return nullptr;
    }
    if (seizures_ != 0) fresh->magazines.seize();
    try {
      auto const accounts = core_.lock();
      threads_.push_back(fresh);
    } catch (...) {
      memberships.remove(pool_);
      throw;
    }
    magazine_table.all[pool_ % MagazineTable::slots] = {pool_, &fresh->magazines};
    return &fresh->magazines;
  } catch (std::exception const&) {  // no memory for magazines: the core serves without
    return nullptr;
  }
}

void ThreadCache::seize_all() noexcept {
  if (seizures_++ != 0) return;
  bool others = false;
  for (auto const& thread : threads_) {
    thread->magazines.seize();
    others = others || thread->owner != std::this_thread::get_id();
  }
  if (others) heavy_barrier();  // owners see it, or are seen inside
  for (auto const& thread : threads_) thread->magazines.wait_for_owner();
}

void ThreadCache::release_all() noexcept {
  if (--seizures_ != 0) return;
  for (auto const& thread : threads_) thread->magazines.give_up();
}

ThreadCache::CacheFlush::CacheFlush(ThreadCache& thread_cache) noexcept : thread_cache_(thread_cache) {
  std::lock_guard const lock{thread_cache_.mutex_};
  thread_cache_.seize_all();
  for (auto const& thread : thread_cache_.threads_) thread_cache_.core_.take_back(thread->magazines);
  if (thread_cache_.depots_.bytes() != 0) thread_cache_.core_.take_back(thread_cache_.depots_);
}

ThreadCache::CacheFlush::~CacheFlush() {
  std::lock_guard const lock{thread_cache_.mutex_};
  thread_cache_.release_all();
}

void ThreadCache::close() noexcept {
  std::vector<std::shared_ptr<ThreadMagazines>> threads;
  {
    std::lock_guard const lock{mutex_};
    closed_ = true;
    seize_all();  // and never released
    for (auto const& thread : threads_) {
      core_.take_back(thread->magazines);
      core_.count_hits_of(thread->magazines);
    }
    core_.take_back(depots_);
    auto const accounts = core_.lock();
    threads.swap(threads_);
  }
  for (auto const& thread : threads) {
    std::lock_guard const lock{thread->mutex};
    thread->cache = nullptr;
  }
}

void ThreadCache::retire(ThreadMagazines& thread) noexcept {
  std::lock_guard const lock{mutex_};
  if (closed_) return;
  core_.take_back(thread.magazines);
  core_.count_hits_of(thread.magazines);
  auto const accounts = core_.lock();
  std::erase_if(threads_, [&](auto const& one) { return one.get() == &thread; });
}

}  // namespace unimem::detail
