#include "pool/allocation_recorder.hpp"

#include <unimem/core/detail/environment.hpp>
#include <unimem/core/log.hpp>

#include "core/claimed_file.hpp"
#include "core/fork.hpp"
#include "core/write_all.hpp"
#include "pool/pool_core.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

namespace unimem::detail {
namespace {

constexpr std::string_view header = "Thread,Time,Action,Pointer,Size,Stream,Device,Location,Name,Capacity,Event\n";
constexpr std::size_t most_kept = std::size_t{64} << 10;

void complain(std::string_view path, std::string_view reason) noexcept {
  try {
    log(LogLevel::warning, fmt::format("UNIMEM_LOG: {}: {}; allocations are not recorded", path, reason));
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): no memory for the words
  }
}

/// A field of a line: quoted if it holds what would end it, and with spaces for line breaks, which no quote helps with.
std::string field(std::string_view text) {
  std::string line(text);
  std::ranges::replace_if(line, [](char c) { return c == '\r' || c == '\n'; }, ' ');
  if (line.find_first_of(",\"") == std::string::npos) return line;
  std::string quoted = "\"";
  for (char const c : line) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

/// The time of day, UTC, as the log of RMM has it.
std::string time_of_day() {
  namespace chrono = std::chrono;
  auto const now = chrono::time_point_cast<chrono::microseconds>(chrono::system_clock::now());
  chrono::hh_mm_ss const time{now - chrono::floor<chrono::days>(now)};
  return fmt::format("{:02}:{:02}:{:02}.{:06}", time.hours().count(), time.minutes().count(), time.seconds().count(),
                     time.subseconds().count());
}

/// What `UNIMEM_LOG` comes to in one process.
struct Recording {
  std::once_flag asked;
  AllocationRecorder* recorder = nullptr;  ///< never destroyed: pools may be static
};

constinit PerProcess<Recording> recordings;
/// The recorder of this process or, where that has none, of an ancestor's.
constinit std::atomic<AllocationRecorder*> latest{nullptr};  // acquire and release: with what it points to

// A child that lives longer would keep the file from the next process.
Fork::Hook const closes_file{[]() noexcept {
  if (auto* const inherited = latest.load(std::memory_order_acquire)) inherited->abandon_file();
}};

std::unique_ptr<AllocationRecorder> recorder_by_environment() noexcept {
  std::string pattern;
  try {
    pattern = environment("UNIMEM_LOG").value_or("");
    bool const is_ancestors =
        latest.load(std::memory_order_acquire) != nullptr && pattern.find("%p") == std::string::npos;
    if (pattern.empty() || is_ancestors) return nullptr;
    auto path = name_for_process(pattern);
    auto [file, problem] = claim_file(path);
    if (!file) {
      complain(path, problem);
      return nullptr;
    }
    return std::make_unique<AllocationRecorder>(std::move(file), std::move(path), Fork::depth() != 0);
  } catch (std::exception const& error) {
    complain(pattern, error.what());
    return nullptr;
  }
}

}  // namespace

AllocationRecorder* AllocationRecorder::of_process() {
  auto& recording = recordings.get();
  std::call_once(recording.asked, [&recording] {
    recording.recorder = recorder_by_environment().release();
    if (recording.recorder == nullptr) return;
    latest.store(recording.recorder, std::memory_order_release);
    static_cast<void>(std::atexit([] {
      auto* const recorder = latest.load(std::memory_order_acquire);
      if (!recorder->made_.inherited()) recorder->at_exit();
    }));
  });
  return recording.recorder;
}

AllocationRecorder::AllocationRecorder(UniqueFd file, std::string path, bool writes_at_once)
    : file_(std::move(file)), path_(std::move(path)), kept_(header), at_once_(writes_at_once) {
  flush();  // a file that cannot be written is noticed now
}

void AllocationRecorder::allocated(Block const& block, std::size_t bytes, std::uint64_t queue) noexcept {
  std::lock_guard const lock{mutex_};
  if (!file_) return;
  try {
    sizes_.insert_or_assign(&block, bytes);
    add({"allocate", *block.pool, &block, bytes, queue, block.name});
  } catch (std::exception const& error) {
    end(error.what());
  }
}

void AllocationRecorder::failed(PoolCore const& pool, std::size_t bytes, std::uint64_t queue, Name name) noexcept {
  std::lock_guard const lock{mutex_};
  if (!file_) return;
  try {
    add({"allocate failure", pool, nullptr, bytes, queue, name});
  } catch (std::exception const& error) {
    end(error.what());
  }
}

void AllocationRecorder::released(Block const& block, Event last_use) noexcept {
  std::lock_guard const lock{mutex_};
  if (!file_) return;
  // Taken out first: a line that cannot be written ends the recording and empties the sizes.
  auto const size = sizes_.extract(&block);
  if (size.empty()) return;
  try {
    add({"free", *block.pool, &block, size.mapped(), last_use.queue_id(), block.name, last_use});
  } catch (std::exception const& error) {
    end(error.what());
  }
}

void AllocationRecorder::add(Line const& line) {
  auto const& [action, pool, block, bytes, stream, name, event] = line;
  fmt::format_to(std::back_inserter(kept_), "{},{},{},{:#x},{},{},{},{},{},{},", ::gettid(), time_of_day(), action,
                 reinterpret_cast<std::uintptr_t>(block), bytes, stream, field(pool.device().id()),
                 to_string(pool.location()), field(name.view()), block == nullptr ? 0 : block->capacity());
  if (event != Event{}) fmt::format_to(std::back_inserter(kept_), "{}:{}", event.queue_id(), event.ticket());
  kept_ += '\n';
  if (at_once_ || kept_.size() >= most_kept) flush();
}

void AllocationRecorder::flush() noexcept {
  auto const problem = file_ ? write_all(file_.get(), kept_) : std::error_code{};
  if (problem) end(problem.message());
  kept_.clear();
}

void AllocationRecorder::end(std::string_view reason) noexcept {
  complain(path_, reason);
  file_ = {};
  sizes_.clear();
}

void AllocationRecorder::at_exit() noexcept {
  std::lock_guard const lock{mutex_};
  flush();
  at_once_ = true;
}

}  // namespace unimem::detail
