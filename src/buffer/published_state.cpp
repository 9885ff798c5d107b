#include <unimem/buffer/detail/published_state.hpp>

namespace unimem::detail {
namespace {

/// Only when it is another: other threads look at it all the time.
template <class T>
void store(std::atomic<T>& published, T value) noexcept {
  if (published.load(std::memory_order_relaxed) != value) published.store(value, std::memory_order_relaxed);
}

}  // namespace

void PublishedState::publish(Facts const& facts) noexcept {
  auto summary = static_cast<std::uint32_t>(facts.state);
  if (facts.found_by_looking) summary |= by_looking;
  if (facts.host_is_exported) summary |= host_exported;
  if (facts.host_is_current) summary |= host_current;
  if (facts.host_is_exclusive) summary |= host_exclusive;
  if (host_address_ != facts.host_address) host_address_ = facts.host_address;
  current_on_.store(facts.current_on, std::memory_order_release);
  // Release: a thread that sees the summary also sees the address, and the bytes that were copied to it.
  summary_.store(summary, std::memory_order_release);
  store(bytes_, facts.bytes);
  auto const one = facts.only_on == nullptr ? on_none : address_of(*facts.only_on);
  store(memory_on_, facts.on_several ? on_several : one);
  store(spillable_bytes_, facts.spillable_bytes);
}

}  // namespace unimem::detail
