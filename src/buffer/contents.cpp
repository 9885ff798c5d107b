#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/device/device.hpp>

#include "buffer/buffer_lock.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/replica.hpp"
#include "buffer/shared_access.hpp"
#include "manager/admission.hpp"

#include <string_view>
#include <vector>

// What is asked of a buffer by those that keep its contents elsewhere for a while: in a file, or off its devices.

namespace unimem {

using detail::AccessContext;
using detail::BufferLook;
using detail::Reconciler;

bool BufferCore::has_contents() {
  bool has_data = false;
  detail::run_admitted(detail::operands(*this), [&](AccessContext& context) {
    Guard parts(*parts_);
    if (!Reconciler(*parts).resolve_or_wait(context, parts->replicas.whole())) return false;
    has_data = parts->replicas.coherence.has_data();
    return true;
  });
  return has_data;
}

void BufferCore::require_writable(std::string_view operation) const {
  BufferLook const look{parts_->lock, parts_->terms};
  parts_->check_access(operation);
  parts_->check_writable(operation);
  parts_->check_not_captured();
}

std::vector<BufferCore::DeviceShare> BufferCore::shares_of_devices() const {
  BufferLook const look{parts_->lock, parts_->terms};
  detail::SharedAccess(*parts_).note_others();
  std::vector<DeviceShare> shares;
  auto const& replicas = parts_->replicas;
  for (Place place = host_place + 1; place < replicas.places.count(); ++place) {
    auto const& replica = replicas.at(place);
    if (!replica || replicas.places.is_file(place) || replicas.places.in_host_memory(place)) continue;
    auto* const device = replicas.places[place].device;
    if (device->reaches_host_memory()) continue;
    shares.push_back(
        {device, replicas.coherence.valid(place), replica->capacity(), parts_->captured || replica->holds().leased()});
  }
  return shares;
}

}  // namespace unimem
