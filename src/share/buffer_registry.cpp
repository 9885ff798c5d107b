#include <unimem/core/error.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "buffer/shared_buffers.hpp"
#include "buffer/shared_memory.hpp"
#include "core/fork.hpp"
#include "core/type_name.hpp"
#include "share/opened_elsewhere.hpp"
#include "share/peer_deaths.hpp"
#include "share/peers_key.hpp"
#include "share/random_tag.hpp"
#include "share/shared_description.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace unimem {
namespace {

/// How many of the published an error lists: it is to be read.
constexpr std::size_t listed_at_most = 8;

std::string describe(detail::SharedElement const& element) {
  return fmt::format("{} ({} byte{})", detail::type_name(element.name.view()), element.bytes,
                     element.bytes == 1 ? "" : "s");
}

}  // namespace

struct BufferRegistry::State {
  struct Entry {
    std::shared_ptr<BufferCore> core;
    Shape shape;
    detail::SharedElement element;
    std::string name;
    std::uint64_t opened = 0;

    [[nodiscard]] std::size_t count() const noexcept { return core->size_bytes() / element.bytes; }
    /// A resize leaves one dimension, of which the registry is not told. It may come at any time: code that needs to
    /// know more of the core than its shape asks it once for its bytes.
    [[nodiscard]] Shape shape_of(std::size_t bytes) const {
      auto const now = bytes / element.bytes;
      return shape.count() == now ? shape : Shape(now);
    }
    [[nodiscard]] std::string title() const {
      if (!name.empty()) return fmt::format("'{}'", name);
      auto const own = core->name();
      return own.empty() ? std::string("one without a name") : fmt::format("'{}'", own);
    }
  };
  using Entries = std::map<std::uint64_t, Entry>;  // by number, which is the order of publishing
  using Names = std::map<std::string, std::uint64_t, std::less<>>;

  /// In a forked child, with what was inherited: a thread that is not here may have been in the middle of it, so it is
  /// neither looked at nor destroyed, and kept for leak checkers.
  explicit State(State const* inherited_) : inherited(inherited_) {}

  /// Counts the refusal, and gives the lock back: what is thrown is put together without it.
  void refused(std::unique_lock<std::mutex>& lock) {
    ++counts.refused;
    lock.unlock();
  }
  [[nodiscard]] std::vector<std::string> available() const;
  [[noreturn]] void throw_not_found(std::unique_lock<std::mutex>& lock, std::string const& what, std::string reason);
  /// The entry of an id; NotFound.
  [[nodiscard]] Entries::iterator entry_of(std::unique_lock<std::mutex>& lock, BufferId id);
  /// Throws InvalidArgument, naming both, unless the entry's elements are `wanted`.
  void check_element(std::unique_lock<std::mutex>& lock, Entry const& entry, detail::SharedElement const& wanted);
  /// The bytes of `count` elements from `offset` on; InvalidArgument.
  [[nodiscard]] ByteRange window_of(std::unique_lock<std::mutex>& lock, Entry const& entry, std::size_t offset,
                                    std::size_t count);
  /// The entry of an id, of another process's buffer too, which is opened for that: `use(lock, entry)`, with the lock
  /// held. NotFound.
  template <class Use>
  auto with_entry(BufferId id, Use const& use);

  detail::MadeHere const made{};
  std::uint64_t const tag = detail::random_tag();
  State const* const inherited;
  mutable std::mutex mutex;
  Entries entries;
  Names names;
  std::uint64_t last = 0;  ///< the number given last
  RegistryStatistics counts;
  detail::OpenedElsewhere elsewhere;
};

std::vector<std::string> BufferRegistry::State::available() const {
  std::vector<std::string> result;
  for (auto const& [number, entry] : entries) {
    if (result.size() == listed_at_most) break;
    result.push_back(entry.name.empty() ? to_string(BufferId{tag, number}) : entry.name);
  }
  return result;
}

void BufferRegistry::State::throw_not_found(std::unique_lock<std::mutex>& lock, std::string const& what,
                                            std::string reason) {
  auto listed = available();
  auto const more = entries.size() - listed.size();
  refused(lock);
  if (more != 0) reason += fmt::format("{}{} more are published", reason.empty() ? "" : "; ", more);
  throw NotFound("published buffer", what, std::move(listed), std::move(reason));
}

BufferRegistry::State::Entries::iterator BufferRegistry::State::entry_of(std::unique_lock<std::mutex>& lock,
                                                                         BufferId id) {
  if (id.registry == tag) {
    if (auto const found = entries.find(id.number); found != entries.end()) return found;
  }
  char const* reason = "its id is another registry's, and no process of this user has a buffer of that id for others";
  if (!id) {
    reason = "the id names nothing";
  } else if (id.registry == tag) {
    reason = id.number <= last ? "it was released" : "no such id was given";
  }
  throw_not_found(lock, to_string(id), reason);
}

template <class Use>
auto BufferRegistry::State::with_entry(BufferId id, Use const& use) {
  if (id && id.registry != tag) {
    if (auto found = elsewhere.open(id)) {
      Entry entry{std::move(found->core), std::move(found->shape), found->element, std::move(found->name)};
      std::unique_lock lock{mutex};
      return use(lock, entry);
    }
  }
  std::unique_lock lock{mutex};
  return use(lock, entry_of(lock, id)->second);
}

void BufferRegistry::State::check_element(std::unique_lock<std::mutex>& lock, Entry const& entry,
                                          detail::SharedElement const& wanted) {
  bool const same_name = entry.element.name == wanted.name && entry.element.bytes == wanted.bytes;
  bool const both_typed = entry.element.type != nullptr && wanted.type != nullptr;
  if (same_name && (!both_typed || detail::same_type(*entry.element.type, *wanted.type))) return;
  auto const requirement = fmt::format("{}, as buffer {} has them{}", describe(entry.element), entry.title(),
                                       same_name ? ": another type of that name" : "");
  refused(lock);
  throw InvalidArgument("element type", describe(wanted), requirement);
}

ByteRange BufferRegistry::State::window_of(std::unique_lock<std::mutex>& lock, Entry const& entry, std::size_t offset,
                                           std::size_t count) {
  try {
    return detail::checked_range(offset, count, entry.count(), entry.element.bytes);
  } catch (InvalidArgument const&) {
    refused(lock);
    throw;
  }
}

BufferRegistry::BufferRegistry() : state_(std::make_unique<State>(nullptr).release()) {}

BufferRegistry::~BufferRegistry() {
  auto* const last = state_.load(std::memory_order_acquire);
  if (!last->made.inherited()) std::unique_ptr<State>(last).reset();
}

BufferRegistry::State& BufferRegistry::state() const {
  auto* known = state_.load(std::memory_order_acquire);
  if (!known->made.inherited()) return *known;
  auto fresh = std::make_unique<State>(known);
  // Without a lock, which a child may have inherited locked. The first caller makes it for all; acquire and release:
  // with the pointer what it points to is seen.
  if (state_.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *known;
}

BufferId BufferRegistry::publish_core(detail::SharedCore buffer, detail::SharedElement element,
                                      SharedOptions const& options) {
  if (!buffer.core) detail::throw_empty_handle("buffer");
  if (element.bytes == 0) throw InvalidArgument("element size", "0", "at least 1");
  auto& own = state();
  auto const core = buffer.core;
  std::shared_ptr<detail::SharedMemory> memory;
  std::string described;
  if (options.cross_process) {
    detail::SharedDescription const description{options.name,
                                                std::string(core->name()),
                                                std::string(element.name.view()),
                                                element.bytes,
                                                element.tag,
                                                {buffer.shape.extents().begin(), buffer.shape.extents().end()},
                                                core->size_bytes()};
    described = description.encode();  // what is too long is refused before anything is copied
    memory = core->share();
    static_cast<void>(detail::SharedBuffers::of_this_process().keep(core));
  }
  // Made without the lock, under which they are only put in their places: nothing throws there, and what is not
  // published after all, perhaps the last share in a buffer, is destroyed when it has been given back.
  State::Entries entry;
  State::Names name;
  if (!options.name.empty()) name.try_emplace(options.name, 0);
  entry.try_emplace(0, State::Entry{std::move(buffer.core), std::move(buffer.shape), element, options.name});
  std::unique_lock lock{own.mutex};
  if (!name.empty() && own.names.contains(options.name)) {
    own.refused(lock);
    throw InvalidArgument("name", options.name, "one under which nothing is published");
  }
  auto const number = ++own.last;
  auto const put = [](auto& from, auto& to, auto change) {
    if (from.empty()) return;
    auto node = from.extract(from.begin());
    change(node);
    to.insert(std::move(node));
  };
  put(name, own.names, [&](auto& node) { node.mapped() = number; });
  put(entry, own.entries, [&](auto& node) { node.key() = number; });
  ++own.counts.published;
  lock.unlock();
  BufferId const id{own.tag, number};
  if (!options.cross_process) return id;
  try {
    memory->offer(detail::key_of(id), std::move(described));
  } catch (...) {
    release(id);
    throw;
  }
  return id;
}

detail::SharedCore BufferRegistry::open_core(BufferId id, detail::SharedElement const& element) {
  auto& own = state();
  return own.with_entry(id, [&](std::unique_lock<std::mutex>& lock, State::Entry& entry) {
    own.check_element(lock, entry, element);
    detail::SharedCore result{entry.core, entry.shape_of(entry.core->size_bytes())};
    ++entry.opened;
    ++own.counts.opened;
    return result;
  });
}

detail::SharedElement BufferRegistry::element_of(BufferId id) {
  return state().with_entry(id, [](std::unique_lock<std::mutex>&, State::Entry const& entry) { return entry.element; });
}

detail::SharedWindow BufferRegistry::resolve_core(BufferRef const& ref, detail::SharedElement const* element) {
  auto& own = state();
  return own.with_entry(ref.id, [&](std::unique_lock<std::mutex>& lock, State::Entry& entry) -> detail::SharedWindow {
    if (element != nullptr) own.check_element(lock, entry, *element);
    if (ref.element != ElementTag::any && ref.element != entry.element.tag) {
      auto const requirement = fmt::format("{}, as buffer {} has them", to_string(entry.element.tag), entry.title());
      own.refused(lock);
      throw InvalidArgument("element tag", std::string(to_string(ref.element)), requirement);
    }
    auto const range = own.window_of(lock, entry, ref.offset, ref.count);
    ++entry.opened;
    ++own.counts.opened;
    return {entry.core, range};
  });
}

BufferRef BufferRegistry::refer(BufferId id, std::size_t offset, std::size_t count) {
  auto& own = state();
  return own.with_entry(id, [&](std::unique_lock<std::mutex>& lock, State::Entry const& entry) -> BufferRef {
    auto const range = own.window_of(lock, entry, offset, count);
    return {id, offset, range.size() / entry.element.bytes, entry.element.tag};
  });
}

void BufferRegistry::release(BufferId id) {
  auto& own = state();
  State::Entries::node_type gone;  // destroyed without the lock
  std::unique_lock lock{own.mutex};
  auto const found = own.entry_of(lock, id);
  if (!found->second.name.empty()) own.names.erase(found->second.name);
  gone = own.entries.extract(found);
  ++own.counts.released;
  lock.unlock();
  detail::OpenedElsewhere::withdraw(id);
}

BufferId BufferRegistry::find(std::string_view name) {
  auto& own = state();
  std::unique_lock lock{own.mutex};
  auto const found = own.names.find(name);
  if (found == own.names.end()) own.throw_not_found(lock, std::string(name), {});
  return {own.tag, found->second};
}

bool BufferRegistry::contains(BufferId id) const {
  auto const& own = state();
  std::lock_guard const lock{own.mutex};
  return id.registry == own.tag && own.entries.contains(id.number);
}

PeerDeathSubscription BufferRegistry::on_peer_death(PeerDeathCallback callback) {
  auto deaths = detail::PeerDeaths::of_this_process();
  auto const id = deaths->subscribe(std::move(callback));
  return {std::move(deaths), id};
}

std::size_t BufferRegistry::size() const {
  auto const& own = state();
  std::lock_guard const lock{own.mutex};
  return own.entries.size();
}

std::vector<SharedBuffer> BufferRegistry::list() const {
  auto const& own = state();
  std::lock_guard const lock{own.mutex};
  std::vector<SharedBuffer> result;
  result.reserve(own.entries.size());
  for (auto const& [number, entry] : own.entries) {
    auto const bytes = entry.core->size_bytes();
    result.push_back({.id = {own.tag, number},
                      .name = entry.name,
                      .buffer = std::string(entry.core->name()),
                      .element = detail::type_name(entry.element.name.view()),
                      .tag = entry.element.tag,
                      .element_bytes = entry.element.bytes,
                      .shape = entry.shape_of(bytes),
                      .bytes = bytes,
                      .opened = entry.opened,
                      .holders = static_cast<std::size_t>(entry.core.use_count()) - 1});
  }
  return result;
}

RegistryStatistics BufferRegistry::statistics() const {
  auto const& own = state();
  std::lock_guard const lock{own.mutex};
  return own.counts;
}

void BufferRegistry::validate() const {
  auto const& own = state();
  std::lock_guard const lock{own.mutex};
  auto const require = [](bool holds, char const* broken) {
    if (!holds) throw std::logic_error(std::string("BufferRegistry: ") + broken);
  };
  require(own.counts.published - own.counts.released == own.entries.size(), "what is published was not counted");
  std::size_t named = 0;
  for (auto const& [number, entry] : own.entries) {
    require(number != 0 && number <= own.last, "an id that was not given");
    require(entry.core != nullptr && entry.element.bytes != 0, "an entry of nothing");
    if (entry.name.empty()) continue;
    ++named;
    auto const found = own.names.find(entry.name);
    require(found != own.names.end() && found->second == number, "a name that does not lead to its buffer");
  }
  require(named == own.names.size(), "names of what is gone");
}

BufferRegistry& registry() {
  // Never destroyed: its buffers would go to a manager and drivers that may be gone.
  static auto& instance = *std::make_unique<BufferRegistry>().release();
  return instance;
}

}  // namespace unimem
