#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>

#include "device/queue_backend.hpp"

#include <memory>
#include <new>
#include <string>
#include <vector>

namespace unimem::testing {

/// A discrete device that does nothing: every command has ended when it has been submitted, or none has until that is
/// wanted. What is left is what the floors above cost.
class IdleDevice final : public Device {
 public:
  IdleDevice() : Device(Backend::sim, "idle:0") {
    info_.name = "does nothing";
    info_.total_bytes = std::size_t{4} << 30;
    info_.max_allocation = info_.total_bytes;
    info_.alignment = 64;
    info_.runs_host_form = true;
  }

  /// From now on no command ends; or all have ended.
  void holds_commands(bool holds) noexcept {
    holds_ = holds;
    for (auto* const queue : queues_) queue->finish();
  }

  [[nodiscard]] MemoryInfo memory_info() const override { return {info_.total_bytes, info_.total_bytes}; }
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location /*location*/) override {
    return {reinterpret_cast<std::uintptr_t>(::operator new(bytes, std::align_val_t{64})), 0, bytes};
  }
  void release(DeviceMemory memory, Location /*location*/) noexcept override {
    ::operator delete(reinterpret_cast<void*>(memory.object), std::align_val_t{64});
  }
  [[nodiscard]] bool shares_storage_with_host() const noexcept override { return false; }
  [[nodiscard]] void* address(DeviceMemory memory) override {
    return reinterpret_cast<void*>(memory.object + memory.offset);
  }
  [[nodiscard]] std::shared_ptr<Program const> compile(ProgramSource const& /*source*/) override {
    return std::make_shared<Nothing>();
  }

 protected:
  [[nodiscard]] std::unique_ptr<detail::QueueBackend> make_queue() override {
    auto queue = std::make_unique<IdleQueue>(*this);
    queues_.push_back(queue.get());
    return queue;
  }

 private:
  class Nothing final : public Program {};

  class IdleQueue final : public detail::QueueBackend {
   public:
    explicit IdleQueue(IdleDevice& device) noexcept : device_(device) {}
    ~IdleQueue() override { std::erase(device_.queues_, this); }
    void finish() noexcept {
      if (!device_.holds_) control().finish(control().submitted());
    }
    Event upload(DeviceMemory, void const*, std::size_t, detail::CopyTerms const&) override { return mark(); }
    Event download(void*, DeviceMemory, std::size_t, detail::CopyTerms const&) override { return mark(); }
    Event copy(DeviceMemory, DeviceMemory, std::size_t, detail::CopyTerms const&) override { return mark(); }
    Event fill(DeviceMemory, std::span<const std::byte>) override { return mark(); }
    Event run(std::shared_ptr<Program const>, Range, std::span<const KernelArgument>, std::span<const Event>) override {
      return mark();
    }
    Event mark() override {
      auto const event = control().submit();
      finish();
      return event;
    }
    void wait(Event) override {}

   private:
    IdleDevice& device_;
  };

  bool holds_ = false;
  std::vector<IdleQueue*> queues_;
};

}  // namespace unimem::testing
