#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/detail/pages.hpp>
#include <unimem/device/device.hpp>

#include "device/queue_backend.hpp"
#include "device/queue_control.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unimem {

/// One queue of a ScriptedDevice: work is submitted and ends when the test says, or when somebody waits for it, so that
/// "pending" is a fact and not a matter of timing. Used by one thread.
class Script {
 public:
  explicit Script(detail::QueueControl& control) : control_(control) {
    control_.set_waiter(std::make_shared<Finisher>(*this));
  }
  Script(Script const&) = delete;
  Script& operator=(Script const&) = delete;

  /// Work that is pending until it is finished or waited for.
  Event work() { return control_.submit(); }

  /// Ends all work up to this; first, as an in-order queue does, what that work is ordered behind.
  void finish(Event event) { finish(event.ticket()); }
  void finish_all() { finish(control_.submitted()); }

  /// As the queue's own: later work is ordered behind `event`. That takes no ticket, as on some drivers.
  void order_behind(Event event) {
    ordered_behind.push_back(event);
    barriers_.emplace_back(control_.submitted() + 1, event);
  }

  void fail(Event event) {
    control_.finish(event.ticket(), std::make_exception_ptr(DeviceError("scripted", "work", -1, "SCRIPTED_FAILURE")));
  }

  std::vector<Event> ordered_behind;  ///< what the queue was made to wait for
  std::function<void()> on_wait;      ///< runs when the queue is made to wait; may throw
  std::vector<DeviceMemory> filled;   ///< what the queue was told to fill
  std::function<void()> on_fill;      ///< runs first; may throw
  std::atomic<int> host_waits{0};     ///< how often a thread blocked for work of this queue

 private:
  /// A waiting thread makes the work end.
  class Finisher final : public detail::Waiter {
   public:
    explicit Finisher(Script& script) : script_(script) {}
    void wait_until(Ticket ticket, std::chrono::steady_clock::time_point) noexcept override {
      ++script_.host_waits;
      script_.finish(ticket);
    }
    void poll() noexcept override {}

   private:
    Script& script_;
  };

  void finish(Ticket last) {
    while (!barriers_.empty() && barriers_.front().first <= last) {
      auto const event = barriers_.front().second;
      barriers_.pop_front();
      static_cast<void>(event.wait_for_error());
    }
    control_.finish(last);
  }

  detail::QueueControl& control_;
  std::deque<std::pair<Ticket, Event>> barriers_;
};

/// A device whose driver keeps books: every block is real host memory, entered when it is allocated and crossed out
/// when it is released, and what must not happen to a driver (releasing twice, releasing what it never gave) fails the
/// test. Thread-safe but for its hooks, which are set before threads start.
class ScriptedDevice final : public Device {
  template <class Read>
  [[nodiscard]] auto locked(Read read) const {
    std::lock_guard const lock{mutex_};
    return read();
  }

 public:
  explicit ScriptedDevice(std::size_t capacity, std::size_t max_allocation = 0) : Device(Backend::sim, "scripted:0") {
    info_.name = "scripted";
    info_.total_bytes = capacity;
    info_.max_allocation = max_allocation == 0 ? capacity : max_allocation;
    info_.alignment = 256;
  }
  ~ScriptedDevice() override {
    EXPECT_EQ(live_bytes(), 0U) << "the pool has kept driver memory";
    for (auto& script : scripts_) script.finish_all();
  }

  // What the test decides.
  std::function<void(std::size_t bytes)> on_allocate;  ///< runs inside every driver call; may throw in its place
  std::function<void(DeviceMemory memory)> on_release;
  PageSource* page_source = nullptr;  ///< what it maps pages with, if it does

  [[nodiscard]] std::size_t live_bytes() const {
    return locked([this] { return live_bytes_; });
  }
  [[nodiscard]] std::size_t peak_bytes() const {
    return locked([this] { return peak_bytes_; });
  }
  [[nodiscard]] std::size_t live_blocks() const {
    return locked([this] { return live_.size(); });
  }
  [[nodiscard]] std::size_t driver_calls() const {
    return locked([this] { return calls_; });
  }
  [[nodiscard]] bool holds(DeviceMemory memory) const {
    return locked([&] {
      auto const found = live_.find(memory.object);
      return found != live_.end() && found->second.bytes == memory.bytes;  // addresses come back, with other sizes
    });
  }

  [[nodiscard]] std::size_t queues() const noexcept { return scripts_.size(); }

  /// A queue, and the script that drives it.
  [[nodiscard]] std::pair<Queue, Script*> scripted_queue() {
    auto queue = create_queue();
    return {std::move(queue), &scripts_.back()};
  }

  [[nodiscard]] MemoryInfo memory_info() const override {
    return {info().total_bytes - live_bytes(), info().total_bytes};
  }

  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location) override {
    if (on_allocate) on_allocate(bytes);
    std::lock_guard const lock{mutex_};
    ++calls_;
    if (location == Location::host || location == Location::pinned) {
      throw UnsupportedOperation("host memory", "scripted:0", "it is not the host");
    }
    if (bytes > info().total_bytes - live_bytes_) {
      OutOfMemory::Facts facts;
      facts.where = "scripted:0 device";
      facts.requested = bytes;
      facts.reason = "the scripted driver is full";
      throw OutOfMemory(facts);
    }
    auto storage = std::make_unique_for_overwrite<std::byte[]>(bytes);
    DeviceMemory const memory{reinterpret_cast<std::uintptr_t>(storage.get()), 0, bytes};
    live_.emplace(memory.object, Entry{std::move(storage), bytes});
    live_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
    return memory;
  }

  void release(DeviceMemory memory, Location) noexcept override {
    if (on_release) on_release(memory);
    std::lock_guard const lock{mutex_};
    auto const found = live_.find(memory.object);
    if (found == live_.end() || memory.offset != 0 || memory.bytes != found->second.bytes) {
      ADD_FAILURE() << "released what the driver has not given";
      return;
    }
    live_bytes_ -= memory.bytes;
    live_.erase(found);
  }

  [[nodiscard]] PageSource* pages() noexcept override { return page_source; }
  [[nodiscard]] bool shares_storage_with_host() const noexcept override { return true; }
  [[nodiscard]] void* address(DeviceMemory memory) override {
    return reinterpret_cast<void*>(memory.object + memory.offset);
  }
  [[nodiscard]] std::shared_ptr<Program const> compile(ProgramSource const&) override { return nullptr; }

 protected:
  [[nodiscard]] std::unique_ptr<detail::QueueBackend> make_queue() override {
    auto backend = std::make_unique<Backend_>();
    backend->script = &scripts_.emplace_back(backend->control());
    return backend;
  }

 private:
  struct Entry {
    std::unique_ptr<std::byte[]> storage;
    std::size_t bytes;
  };

  class Backend_ final : public detail::QueueBackend {
   public:
    Script* script = nullptr;
    Event upload(DeviceMemory, void const*, std::size_t, detail::CopyTerms const&) override { return script->work(); }
    Event download(void*, DeviceMemory, std::size_t, detail::CopyTerms const&) override { return script->work(); }
    Event copy(DeviceMemory, DeviceMemory, std::size_t, detail::CopyTerms const&) override { return script->work(); }
    Event fill(DeviceMemory memory, std::span<const std::byte>) override {
      if (script->on_fill) script->on_fill();
      script->filled.push_back(memory);
      return script->work();
    }
    Event run(std::shared_ptr<Program const>, Range, std::span<const KernelArgument>, std::span<const Event>) override {
      return script->work();
    }
    Event mark() override { return script->work(); }
    void wait(Event event) override {
      if (script->on_wait) script->on_wait();
      script->order_behind(event);
    }
  };

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Entry> live_;
  std::size_t live_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
  std::size_t calls_ = 0;
  std::deque<Script> scripts_;  ///< never moved: the queues and the control blocks point to them
};

}  // namespace unimem
