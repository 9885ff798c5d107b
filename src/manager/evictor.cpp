#include "manager/evictor.hpp"

#include <unimem/device/device.hpp>
#include <unimem/device/wait_watch.hpp>

#include <exception>

namespace unimem::detail {

std::optional<std::size_t> Evictor::evict(Residents::Candidate const& candidate, std::string& failure) {
  auto& counts = candidate.place.device->reaches_host_memory() ? of_the_host_ : of_devices_;
  std::size_t bytes = 0;
  try {
    bytes = residents_.evict(*candidate.resident, candidate.place);
  } catch (WaitInterrupted const&) {
    throw;  // no failure of the resident's
  } catch (std::exception const& error) {
    counts.failures.fetch_add(1, std::memory_order_relaxed);
    failure = error.what();
    return std::nullopt;
  }
  if (bytes != 0) counts.evictions.fetch_add(1, std::memory_order_relaxed);
  counts.bytes.fetch_add(bytes, std::memory_order_relaxed);
  return bytes;
}

}  // namespace unimem::detail
