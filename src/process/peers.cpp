#include "process/peers.hpp"

#include <unimem/core/error.hpp>

#include "core/fork.hpp"
#include "process/peers_inquiry.hpp"
#include "process/peers_protocol.hpp"
#include "process/peers_service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

namespace unimem::detail {

Peers& Peers::of_this_process() {
  static constinit PerProcess<Peers> instance;
  return instance.get();
}

Peers::Peers() = default;
Peers::~Peers() {
  service_.reset();
}

Peers::Number Peers::offer(Key key, std::vector<UniqueFd> descriptors, std::string bytes, Times times,
                           std::size_t memory) {
  if (descriptors.size() > most_descriptors) {
    throw InvalidArgument("descriptors", fmt::format("{}", descriptors.size()),
                          fmt::format("at most {}", most_descriptors));
  }
  if (bytes.size() > most_bytes) {
    throw InvalidArgument("bytes", fmt::format("{}", bytes.size()), fmt::format("at most {}", most_bytes));
  }
  auto const made = std::make_shared<Offer>(Offer{std::move(descriptors), std::move(bytes), times, memory});
  made->number = ++last_;
  Offers one;
  one.emplace(key, made);
  offer(std::move(one));
  return made->number;
}

void Peers::offer(Offers all) {
  std::scoped_lock const lock(mutex_);
  if (!service_) service_ = std::make_unique<Service>(*this);
  while (!all.empty()) {
    auto one = all.extract(all.begin());
    count_in(*one.mapped());
    auto const there = offers_.insert(std::move(one));
    if (there.inserted) continue;
    count_out(*there.position->second);
    there.position->second = std::move(there.node.mapped());
  }
}

bool Peers::withdraw(Key key) noexcept {
  return withdraw(key, std::nullopt);
}

void Peers::withdraw(Key key, Number number) noexcept {
  static_cast<void>(withdraw(key, std::optional(number)));
}

bool Peers::withdraw(Key key, std::optional<Number> number) noexcept {
  std::shared_ptr<Offer const> gone;  // closes descriptors, without the lock
  std::scoped_lock const lock(mutex_);
  auto const found = offers_.find(key);
  if (found == offers_.end() || (number && *number != found->second->number)) return false;
  gone = std::move(found->second);
  count_out(*gone);
  offers_.erase(found);
  return true;
}

void Peers::count_in(Offer const& one) noexcept {
  if (one.times == Times::any) return;
  ++waiting_.count;
  waiting_.memory += one.memory;
}

void Peers::count_out(Offer const& one) noexcept {
  if (one.times == Times::any) return;
  --waiting_.count;
  waiting_.memory -= one.memory;
}

Peers::Waiting Peers::waiting() {
  std::scoped_lock const lock(mutex_);
  return waiting_;
}

bool Peers::offers(Key key) {
  return find(key) != nullptr;
}

std::shared_ptr<Peers::Offer const> Peers::find(Key key) {
  std::scoped_lock const lock(mutex_);
  auto const found = offers_.find(key);
  return found == offers_.end() ? nullptr : found->second;
}

Peers::Page Peers::page(std::optional<Key> after) {
  Page made;
  std::scoped_lock const lock(mutex_);
  auto next = after ? offers_.upper_bound(*after) : offers_.begin();
  for (; next != offers_.end(); ++next) {
    auto const& bytes = next->second->bytes;
    peers::Entry const entry{next->first, bytes.size()};
    if (made.bytes.size() + sizeof entry + bytes.size() > peers::most_payload) break;
    made.bytes.append(reinterpret_cast<char const*>(&entry), sizeof entry);
    made.bytes.append(bytes);
    ++made.entries;
  }
  made.more = next != offers_.end();
  return made;
}

namespace {

class Fetch final : public peers::Inquiry {
 public:
  explicit Fetch(Peers::Key key) : key_(key) {}

  std::optional<Peers::Parcel> found;
  std::optional<IoError> odd;

  void begin() override { odd.reset(); }
  [[nodiscard]] peers::Request first() const override { return {.kind = peers::Request::fetch, .key = key_}; }
  [[nodiscard]] std::optional<peers::Request> take(std::string const& name, std::uint32_t pid,
                                                   peers::Message message) override {
    if (message.head.kind != peers::Answer::fetched || message.head.found > 1) {
      peers::refuse(name, EPROTO, "answers what it was not asked");
    }
    if (message.head.found == 1) found = {pid, std::move(message.descriptors), std::move(message.bytes)};
    return std::nullopt;
  }
  void fail(std::string const&, IoError const& error) override { odd = error; }
  [[nodiscard]] bool is_done() const override { return found.has_value(); }

 private:
  Peers::Key key_;
};

class List final : public peers::Inquiry {
 public:
  explicit List(Peers::Visitor* visitor) : visitor_(visitor) {}

  std::vector<Peers::Offered> found;
  std::vector<std::string> unanswered;

  void begin() override {
    found.clear();
    unanswered.clear();
    progress_.clear();
  }
  [[nodiscard]] peers::Request first() const override { return {.kind = peers::Request::list}; }
  [[nodiscard]] std::optional<peers::Request> take(std::string const& name, std::uint32_t pid,
                                                   peers::Message message) override {
    auto& progress = progress_[name];
    if (progress.fetching) {
      take_descriptors(name, progress, std::move(message));
    } else {
      take_page(name, pid, progress, message);
    }
    return next(progress);
  }
  void fail(std::string const&, IoError const& error) override { unanswered.emplace_back(error.what()); }
  [[nodiscard]] bool is_done() const override { return false; }

 private:
  /// What one process may take of this one's memory.
  static constexpr std::size_t most_listed = std::size_t{64} << 20;
  /// Of one process.
  struct Progress {
    std::optional<Peers::Key> before;
    std::size_t bytes = 0;
    bool more = false;
    std::vector<std::size_t> page;          ///< of `found`, the last first, that the visitor has not been asked about
    std::optional<std::size_t> fetching{};  ///< one of `found`
  };

  void take_page(std::string const& name, std::uint32_t pid, Progress& progress, peers::Message const& message) {
    std::string_view rest = message.bytes;
    bool good = message.head.kind == peers::Answer::listed && message.descriptors.empty();
    auto& [before, bytes, more, page, fetching] = progress;
    bytes += message.bytes.size();
    if (bytes > most_listed) peers::refuse(name, EPROTO, "sends too long a list");
    for (std::uint32_t i = 0; good && i < message.head.found; ++i) {
      peers::Entry entry;
      good = rest.size() >= sizeof entry;
      if (good) std::memcpy(&entry, rest.data(), sizeof entry);
      // In order, so that it comes to an end.
      good = good && rest.size() - sizeof entry >= entry.size && (!before || *before < entry.key);
      if (!good) break;
      before = entry.key;
      page.push_back(found.size());
      found.push_back({entry.key, pid, std::string(rest.substr(sizeof entry, entry.size))});
      rest.remove_prefix(sizeof entry + entry.size);
    }
    if (!good || !rest.empty() || (message.head.more != 0 && message.head.found == 0)) {
      peers::refuse(name, EPROTO, "sent no list");
    }
    more = message.head.more != 0;
    std::ranges::reverse(page);
  }
  void take_descriptors(std::string const& name, Progress& progress, peers::Message message) {
    if (message.head.kind != peers::Answer::fetched || message.head.found > 1) {
      peers::refuse(name, EPROTO, "answers what it was not asked");
    }
    auto const at = *std::exchange(progress.fetching, std::nullopt);
    if (message.head.found == 1) visitor_->take(found[at], std::move(message.descriptors));
  }
  [[nodiscard]] std::optional<peers::Request> next(Progress& progress) {
    while (!progress.page.empty()) {
      auto const at = progress.page.back();
      progress.page.pop_back();
      if (visitor_ == nullptr || !visitor_->wants(found[at])) continue;
      progress.fetching = at;
      return peers::Request{.kind = peers::Request::fetch, .key = found[at].key};
    }
    if (!progress.more) return std::nullopt;
    return peers::Request{.kind = peers::Request::list_after, .key = *progress.before};
  }

  Peers::Visitor* visitor_;
  std::map<std::string, Progress> progress_;
};

}  // namespace

std::optional<Peers::Parcel> Peers::fetch(Key key, std::function<void()> const& go_on) {
  Fetch inquiry(key);
  peers::ask_all(inquiry, go_on);
  if (!inquiry.found && inquiry.odd) throw IoError(*inquiry.odd);
  return std::move(inquiry.found);
}

namespace {

std::vector<Peers::Offered> list_of_all(Peers::Visitor* visitor, std::function<void()> const& go_on,
                                        std::vector<std::string>* unanswered) {
  List inquiry(visitor);
  peers::ask_all(inquiry, go_on);
  if (unanswered != nullptr) *unanswered = std::move(inquiry.unanswered);
  return std::move(inquiry.found);
}

}  // namespace

std::vector<Peers::Offered> Peers::list(std::function<void()> const& go_on, std::vector<std::string>* unanswered) {
  return list_of_all(nullptr, go_on, unanswered);
}

std::vector<Peers::Offered> Peers::list(Visitor& visitor, std::function<void()> const& go_on,
                                        std::vector<std::string>* unanswered) {
  return list_of_all(&visitor, go_on, unanswered);
}

}  // namespace unimem::detail
