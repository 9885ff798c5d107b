#include "buffer/host_watch.hpp"

#include "buffer/replica.hpp"
#include "core/check_level.hpp"

#include <fmt/format.h>

#include <utility>

namespace unimem::detail {
namespace {

bool wants_check() {
  return check_level() > 0;
}

}  // namespace

void HostWatch::check_reads(std::size_t bytes, std::string name) {
  written_map_ = std::make_shared<WrittenMap>(bytes, name);
  checks().stale_views = std::make_shared<StaleViews>(std::move(name));
}

HostWatch::Checks& HostWatch::checks() {
  if (!checks_) checks_ = std::make_unique<Checks>();
  return *checks_;
}

bool HostWatch::watches() const {
  return !never_ && (tracking() == Tracking::pages || wants_check());
}

std::unique_ptr<HostWrites> HostWatch::make(std::shared_ptr<Replica> const& memory, std::size_t size,
                                            std::string name) {
  if (tracking() == Tracking::pages) return track_pages(memory, size);
  if (!wants_check()) return nullptr;
  auto checked = check_host(memory, size, std::move(name), checks().last_marks);
  auto const views = stale_views();
  bool const own_pages = views && memory->pooled() && memory->pageable();
  return own_pages ? guard_host(std::move(checked), views, memory, size) : std::move(checked);
}

void HostWatch::begin(std::unique_ptr<HostWrites> writes) noexcept {
  collected_ = true;
  writes_ = std::move(writes);
}

void HostWatch::wrote(Plan const& plan) {
  bool const writes = plan.kind == Plan::Kind::mark || plan.intent != Intent::read;
  if (!writes || !written_map_) return;
  if (plan.parts.empty()) written_map_->wrote(plan.range);
  for (auto const part : plan.parts.ranges()) written_map_->wrote(part);
}

void HostWatch::note(std::string_view what, ByteRange range) {
  if (wants_check())
    checks().last_marks = fmt::format("last declared: {} of bytes [{}, {})", what, range.begin, range.end);
}

void HostWatch::expect_mapped_write() {
  unrecorded_.reserve(unrecorded_.size() + mapped_writes_ + 1);
  ++mapped_writes_;
}

}  // namespace unimem::detail
