#include <unimem/manager/links.hpp>

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/device/discovery.hpp>

#include "core/disk_cache.hpp"
#include "core/fork.hpp"
#include "manager/link_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

namespace unimem {

std::string_view to_string(LinkSource source) noexcept {
  switch (source) {
    case LinkSource::configured:
      return "configured";
    case LinkSource::measured:
      return "measured";
    case LinkSource::estimated:
      return "estimated";
  }
  return "unknown";
}

namespace {

using detail::DiskCache;
using detail::LinkFigures;

/// The host's end of a link.
constexpr Device* the_host = nullptr;

DiskCache cache_in(LinkOptions const& options) {
  constexpr std::uintmax_t limit = std::uintmax_t{1} << 20;  // an entry is some hundred bytes
  auto const directory = options.cache_directory ? std::filesystem::path(*options.cache_directory)
                                                 : detail::user_cache_directory("links-v1");
  return {directory, "link", limit};
}

std::string identity_of(Device const& device) {
  auto const& info = device.info();
  return fmt::format("{}|{}|{}|{}|{}|{}", device.id(), to_string(device.backend()), info.name, info.vendor, info.driver,
                     info.compute_units);  // not its size, which some drivers take from what is free
}

/// All that the figures of a link depend on, how they were measured included. The processor counts always: it takes
/// part in every copy.
std::string key_of(Device const* from, Device const* to) {
  auto const& cpu = device("cpu").info();
  auto const name = [](Device const* end) { return end == the_host ? "host" : identity_of(*end); };
  return fmt::format("{}\n{}\n{}|{}|{}\ncopies of {} bytes\n", name(from), name(to), cpu.name, cpu.driver,
                     cpu.compute_units, detail::copied_to_measure());
}

/// Behind the figures of a file.
constexpr std::string_view within_cache = " within the cache";

std::string text_of(LinkFigures const& figures) {
  return fmt::format("{} {}{}\n", figures.bytes_per_second, figures.latency_seconds,
                     figures.within_cache ? within_cache : "");
}

std::optional<LinkFigures> read_figures(std::string_view text) {
  LinkFigures figures;
  auto const *const begin = text.data(), *const end = begin + text.size();
  auto const first = std::from_chars(begin, end, figures.bytes_per_second);
  if (first.ec != std::errc{} || first.ptr == end || *first.ptr != ' ') return std::nullopt;
  auto const second = std::from_chars(first.ptr + 1, end, figures.latency_seconds);
  std::string_view rest{second.ptr, end};
  figures.within_cache = rest.starts_with(within_cache);
  if (figures.within_cache) rest.remove_prefix(within_cache.size());
  return second.ec == std::errc{} && rest == "\n" && detail::is_plausible(figures) ? std::optional{figures}
                                                                                   : std::nullopt;
}

Link link_of(Device const* from, Device const* to, LinkFigures const& figures, LinkSource source) {
  auto const name = [](Device const* end) { return end == the_host ? std::string("host") : std::string(end->id()); };
  return {name(from), name(to), figures.bytes_per_second, figures.latency_seconds, false, source, figures.within_cache};
}

}  // namespace

/// What is known is behind one lock that is never held for long; a measuring thread holds another, so that no two
/// measurements disturb each other and none is made twice.
class Links::State {
 public:
  explicit State(LinkOptions options) : options_(std::move(options)), cache_(cache_in(options_)) {}

  /// The direct link between two ends, one of which may be the host.
  [[nodiscard]] Link direct(Device* from, Device* to) {
    made_.require("asking what a link gives");
    auto const& device = to == the_host ? *from : *to;  // whose queue does it
    auto const direction = from == the_host ? CopyDirection::from_host
                           : to == the_host ? CopyDirection::to_host
                                            : CopyDirection::from_device;
    if (auto const set = options_.measure_configured ? std::nullopt : device.configured_link(direction)) {
      return link_of(from, to, {set->bytes_per_second, set->latency_seconds}, LinkSource::configured);
    }
    Key const key{from, to};
    if (auto const* const link = find(key)) return *link;
    std::lock_guard const one_at_a_time{measuring_};
    if (auto const* const link = find(key)) return *link;
    return remember(key, find_out(from, to, device));
  }

 private:
  using Key = std::pair<Device const*, Device const*>;

  /// Null if it is not known yet. What is known stays where it is.
  [[nodiscard]] Link const* find(Key const& key) const {
    std::lock_guard const lock{mutex_};
    auto const found = known_.find(key);
    return found == known_.end() ? nullptr : &found->second;
  }

  [[nodiscard]] Link remember(Key const& key, Link link) {
    std::lock_guard const lock{mutex_};
    return known_.emplace(key, std::move(link)).first->second;
  }

  /// What all links start with, since this one could not be measured.
  [[nodiscard]] static Link estimate(Device* from, Device* to, Device const& device, std::string_view reason) {
    auto const cost = device.link_cost();
    auto link = link_of(from, to, {cost.bytes_per_second, cost.latency_seconds}, LinkSource::estimated);
    log(LogLevel::warning,
        fmt::format("the link from {} to {} could not be measured and is estimated: {}", link.from, link.to, reason));
    return link;
  }

  [[nodiscard]] Link find_out(Device* from, Device* to, Device const& device) {
    auto const key = key_of(from, to);
    if (auto const kept = recall(key)) return link_of(from, to, *kept, LinkSource::measured);
    try {
      auto const figures = measure(from, to);
      if (!detail::is_plausible(figures)) return estimate(from, to, device, "what was measured makes no sense");
      // Later processes may have more memory for it, but no smaller a cache.
      if (!figures.within_cache || !figures.short_of_memory) keep(key, figures);
      return link_of(from, to, figures, LinkSource::measured);
    } catch (std::exception const& error) {
      return estimate(from, to, device, error.what());
    }
  }

  [[nodiscard]] LinkFigures measure(Device* from, Device* to) const {
    if (options_.pools) return detail::measure_link(from, to, options_.pools);
    detail::PassingPools pools;
    return detail::measure_link(
        from, to, [&pools](Device& device, Location location) -> MemoryPool& { return pools.of(device, location); });
  }

  [[nodiscard]] std::optional<LinkFigures> recall(std::string_view key) const {
    bool damaged = false;
    auto const text = cache_.find(key, &damaged);
    auto figures = text ? read_figures(*text) : std::nullopt;
    if (damaged || (text && !figures)) {
      log(LogLevel::warning,
          fmt::format("{} holds no link that was measured; it is measured anew", cache_.file_of(key).string()));
    }
    return figures;
  }

  void keep(std::string_view key, LinkFigures const& figures) {
    auto const problem = cache_.keep(key, text_of(figures));
    if (!problem || told_.exchange(true, std::memory_order_relaxed)) return;
    log(LogLevel::warning, fmt::format("links that were measured cannot be kept as {}: {}; later processes will "
                                       "measure them again",
                                       cache_.file_of(key).string(), problem.message()));
  }

  detail::MadeHere const made_{};
  LinkOptions const options_;
  DiskCache const cache_;
  std::atomic<bool> told_{false};  ///< that nothing can be kept; guards nothing
  std::mutex measuring_;
  mutable std::mutex mutex_;
  std::map<Key, Link> known_;
};

Links::Links(LinkOptions options) : state_(std::make_unique<State>(std::move(options))) {}

Links::~Links() = default;

std::optional<Link> Links::to(Device& device) {
  if (device.shares_storage_with_host()) return std::nullopt;
  return state_->direct(the_host, &device);
}

std::optional<Link> Links::from(Device& device) {
  if (device.shares_storage_with_host()) return std::nullopt;
  return state_->direct(&device, the_host);
}

std::optional<Link> Links::between(Device& from, Device& to) {
  if (&from == &to) return std::nullopt;
  if (from.shares_storage_with_host()) return this->to(to);
  if (to.shares_storage_with_host()) return this->from(from);
  if (to.copies_from(from)) return state_->direct(&from, &to);
  auto const first = state_->direct(&from, the_host);
  auto const second = state_->direct(the_host, &to);
  return Link{first.from,
              second.to,
              std::min(first.bytes_per_second, second.bytes_per_second),
              first.latency_seconds + second.latency_seconds,
              true,
              std::max(first.source, second.source),  // the less certain of the two
              first.within_cache || second.within_cache};
}

std::vector<Link> Links::among(std::vector<std::reference_wrapper<Device>> const& devices) {
  std::vector<Link> all;
  auto const add = [&all](std::optional<Link> link) {
    if (link) all.push_back(std::move(*link));
  };
  for (Device& device : devices) {
    add(to(device));
    add(from(device));
  }
  for (Device& one : devices) {
    for (Device& other : devices) {
      if (!one.shares_storage_with_host() && !other.shares_storage_with_host()) add(between(one, other));
    }
  }
  return all;
}

}  // namespace unimem
