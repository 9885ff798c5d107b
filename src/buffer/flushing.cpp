#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/device/detail/blocking_wait.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/host_device.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/transfer_engine.hpp"
#include "device/current_task.hpp"
#include "device/process_end.hpp"
#include "manager/access_context.hpp"
#include "manager/admission.hpp"
#include "manager/backing_file.hpp"
#include "manager/file_device.hpp"

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

// A buffer whose first replica is a file of the user's: how it begins, and how the file gets what is newer elsewhere.

namespace unimem {

using detail::AccessContext;
using detail::BackingFile;
using detail::BufferAccess;
using detail::BufferParts;
using detail::Reconciler;
using detail::TransferEngine;

std::shared_ptr<BufferCore> BufferCore::make(BufferOptions&& options, std::shared_ptr<BackingFile> file) {
  auto const bytes = file->memory().bytes;
  auto core = make(bytes, std::move(options), std::move(file));
  if (core->tracking() == Tracking::pages) {
    throw UnsupportedOperation("Tracking::pages", core->parts_->terms.display_name(),
                               "host memory of a buffer that is made from a file comes in parts");
  }
  Guard parts(*core->parts_);
  parts->replicas.places.host_has_its_own();
  parts->watch.never_watch();
  parts->begin_in_file();
  parts.unlock();
  core->become_listed();
  return core;
}

bool BufferCore::is_from_file() const noexcept {
  return parts_->file != nullptr;
}

bool BufferCore::is_read_only() const noexcept {
  return is_from_file() && parts_->file->mode() == FileMode::read;
}

void BufferCore::flush() {
  std::shared_ptr<BackingFile> file;
  detail::run_admitted(use_of({}), [&](AccessContext& context) {
    Guard parts(*parts_);
    file = parts->file;
    if (!file) throw UnsupportedOperation("flush", parts->terms.display_name(), "it was made from no file");
    if (file->mode() != FileMode::read_write || parts->replicas.bytes() == 0) return true;
    auto const whole = parts->replicas.whole();
    if (!Reconciler(*parts).resolve_or_wait(context, whole)) return false;
    TransferEngine transfers(*parts);
    auto const plan = transfers.plan_read(*parts->replicas.places.users_file(), whole);
    parts->check_lost(plan);
    return transfers.bring_or_wait(context, plan);
  });
  if (file->mode() == FileMode::read_write) file->sync();
}

namespace {

/// When the process ends what is on its way to files is waited for.
void await_files_at_the_end() {
  static bool const registered = [] {
    detail::watch_process_end(
        []() noexcept { static_cast<void>(detail::FileDevice::instance().default_queue().record().wait_for_error()); });
    return true;
  }();
  static_cast<void>(registered);
}

/// Starts those copies of a plan for the file that come from the host's memory. Each is a plan of its own: committing
/// the given one would count the others as done.
std::vector<Event> bring_from_host(BufferParts& parts, TransferEngine& transfers, Plan const& plan) {
  std::vector<Event> events;
  for (auto const& copy : plan.copies) {
    if (!parts.replicas.places.in_host_memory(copy.from)) continue;
    for (auto const event : transfers.bring(transfers.plan_read(plan.place, copy.range), nullptr)) {
      events.push_back(event);
    }
  }
  return events;
}

/// Parts of the host's memory go that the file has as well, and no work is at.
void drop_clean_parts(AccessContext& context, BufferParts& parts, Place file) {
  auto const& replica = parts.replicas.in_memory_of_host();
  if (!replica) return;
  auto& memory = *replica->reserved();
  auto const committed = std::vector(memory.committed().begin(), memory.committed().end());
  for (auto const cell : committed) {
    auto const range = memory.range_of(cell);
    bool const in_use = memory.is_held(cell) || !replica->work().before_host_access(range, true).empty();
    if (in_use || !parts.replicas.coherence.valid(file).contains(range)) continue;
    std::optional<TransferEngine::CarriedOut> nothing_to_save;
    if (!BufferAccess(parts).release_in_host_memory(context, range, file, nothing_to_save)) continue;
    memory.decommit(cell);
  }
}

}  // namespace

void BufferCore::write_back_at_end() noexcept {
  auto& parts = *parts_;
  if (!parts.file || parts.file->mode() != FileMode::read_write || parts.replicas.bytes() == 0) return;
  bool const held_by_work = detail::CurrentTask::is_ending() && parts.lock.holder() != std::thread::id{};
  if (held_by_work) return;  // for good: work has called `exit` that an operation on this buffer was waiting for
  auto const file = parts.file;
  try {
    Guard guard(parts, detail::Watched::no);
    Reconciler(parts).try_to_record_writes();
    auto& replicas = parts.replicas;
    if (!replicas.coherence.has_data()) return;
    TransferEngine transfers(parts);
    auto const in_file = *replicas.places.users_file();
    auto const newer = [&] { return transfers.plan_read(in_file, replicas.whole()); };
    auto const all = newer();
    if (all.lost) parts.check_lost(all);
    if (all.copies.empty()) return;
    await_files_at_the_end();
    AccessContext context{AccessContext::Waiting::never};  // so that there is memory, or it throws
    // What the host has goes straight to the file; what a device has, by way of memory that the host's parts give.
    auto written = bring_from_host(parts, transfers, all);
    if (!newer().copies.empty()) {
      for (auto const event : written) detail::await_end(event, detail::Watched::no);
      drop_clean_parts(context, parts, in_file);
      auto const rest = newer();
      static_cast<void>(transfers.make_ready(context, rest));
      written = transfers.bring(rest, nullptr);
    }
    auto& queue = detail::host_device().waiting_queue();
    auto const name = parts.terms.display_name();
    auto const end = [file, name, written](Range, std::size_t, std::size_t, std::span<const HostArgument>) {
      try {
        for (auto const event : written) event.wait();
        file->sync();
      } catch (std::exception const& error) {
        log(LogLevel::error, fmt::format("what {} had newer than its file is not all there:", name));
        log(LogLevel::error, error.what());
      }
    };
    queue.run(detail::host_device().compile({"the end of a buffer in a file", {}, end}), Range{1}, {});
  } catch (std::exception const& error) {
    log(LogLevel::error, fmt::format("what a buffer had newer than '{}' is not written there:", file->name()));
    log(LogLevel::error, error.what());
  }
}

}  // namespace unimem
