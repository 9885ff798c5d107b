#include "buffer/model.hpp"

#include <unimem/core/error.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

// What devices do to windows of buffers.
namespace unimem::testing {
namespace {

template <class T>
KernelArgument scalar(T value) {
  KernelArgument argument;
  argument.kind = KernelArgument::Kind::scalar;
  std::memcpy(argument.scalar.data(), &value, sizeof value);
  argument.scalar_bytes = sizeof value;
  return argument;
}

constexpr std::size_t most_operands = 3;  ///< of a launch

KernelArgument memory(DeviceMemory of, bool writes) {
  KernelArgument argument;
  if (!of.empty()) argument.memory = of;  // a pointer to nothing would still point at a neighbour's bytes
  argument.writes = writes;
  return argument;
}

/// What is done under a lease, again where a driver refuses it: the lease counts as a write, whatever became of that.
template <class Copy>
void insist(Device& on, Copy const& copy) {
  for (int tries = 0;; ++tries) {
    try {
      auto queue = on.create_queue();
      return copy(queue).wait();
    } catch (DeviceError const&) {
      if (tries == 3) throw;
    }
  }
}

template <class Lease>
std::vector<std::uint8_t> bytes_at(Device& on, Lease const& lease, std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  if (count == 0) return bytes;
  if (on.info().runs_host_form) {
    std::memcpy(bytes.data(), lease.data(), count);
  } else {
    insist(on, [&](Queue& queue) { return queue.download(bytes.data(), lease.native(), count); });
  }
  return bytes;
}

template <class Lease>
void put_at(Device& on, Lease const& lease, std::vector<std::uint8_t> const& bytes) {
  if (bytes.empty()) return;
  if (on.info().runs_host_form) {
    std::memcpy(lease.data(), bytes.data(), bytes.size());
  } else {
    insist(on, [&](Queue& queue) { return queue.upload(lease.native(), bytes.data(), bytes.size()); });
  }
}

}  // namespace

template <class T>
void Model::lease_window(unsigned kind) {
  auto const window = any_window(sizeof(T));
  auto const count = window.range.size();
  auto& on = *any_worker().device;
  auto const new_bytes = any_bytes(count);
  std::vector<std::uint8_t> seen;
  switch (kind) {
    case 0:
      if (attempt("device_view", [&] {
            auto const lease = slice<T>(window).device_view(on);
            seen = bytes_at(on, lease, count);
          })) {
        observe("device_view", window, std::move(seen), false);
      }
      break;
    case 1:
      if (attempt("device", [&] {
            auto part = slice<T>(window);
            auto const lease = part.device(on);
            seen = bytes_at(on, lease, count);
            put_at(on, lease, new_bytes);
          })) {
        observe("device", window, std::move(seen), false);
        record_write("device", window, new_bytes, false);
      }
      break;
    default:
      if (attempt("device_overwrite", [&] {
            auto part = slice<T>(window);
            auto const lease = part.device_overwrite(on);
            put_at(on, lease, new_bytes);
          })) {
        record_write("device_overwrite", window, new_bytes, false);
      }
      break;
  }
}

void Model::mark_own_work() {
  auto const window = any_window(1);
  auto& worker = any_worker();
  auto const value = static_cast<std::uint8_t>(random_());
  Event event;
  bool leased = false;
  if (!attempt("mark_device_dirty", [&] {
        auto part = slice<std::uint8_t>(window);
        auto const lease = part.device(*worker.device);
        leased = true;
        // The library counts it as written now; when that ends, only this event knows.
        std::array const arguments{scalar(value), scalar(std::uint64_t{window.range.size()}),
                                   memory(lease.native(), true)};
        event = any_queue(worker).run(worker.set, Range{1}, arguments);
        part.mark_device_dirty(*worker.device, 0, all, event);
      })) {
    if (leased)
      record("mark_device_dirty", {}, [of = shared_truth(window), range = window.range](bool) {
        for (auto i = range.begin; i < range.end; ++i) of->bytes[i].on_host = false;
      });
    return;
  }
  record("mark_device_dirty", {}, [of = shared_truth(window), range = window.range](bool) {
    for (auto i = range.begin; i < range.end; ++i) of->bytes[i].on_host = false;
  });
  record_work("mark_device_dirty", event, window, std::vector<std::uint8_t>(window.range.size(), value),
              *worker.device);
}

/// Nobody is told when it ends, nor if it fails: only where nothing can.
void Model::work_unannounced() {
  if (armed_) return;
  auto const window = any_window(1);
  auto& worker = any_worker();
  auto& queue = any_queue(worker);
  auto const value = static_cast<std::uint8_t>(random_());
  bool const by_queue = one_in(2);
  Event event;
  if (attempt("unannounced work", [&] {
        auto part = slice<std::uint8_t>(window);
        auto const lease = by_queue ? part.device(queue) : part.device(*worker.device);
        std::array const slow{scalar(static_cast<std::uint32_t>(below(200)))};
        queue.run(worker.hold, Range{1}, slow);
        std::array const arguments{scalar(value), scalar(std::uint64_t{window.range.size()}),
                                   memory(lease.native(), true)};
        event = queue.run(worker.set, Range{1}, arguments);
      })) {
    std::erase_if(unannounced_, [](Event one) { return one.ready(); });
    unannounced_.push_back(event);
    record_work("unannounced work", event, window, std::vector<std::uint8_t>(window.range.size(), value),
                *worker.device);
    if (one_in(2)) return;
    // Looked at before anything else waits for it.
    std::vector<std::uint8_t> seen;
    if (attempt("look at unannounced work", [&] {
          auto const lease = slice<std::uint8_t>(window).device_view(*worker.device);
          seen = bytes_at(*worker.device, lease, window.range.size());
        })) {
      observe("look at unannounced work", window, std::move(seen), false);
    }
  }
}

void Model::launch() {
  auto& worker = any_worker();
  auto& queue = any_queue(worker);
  constexpr std::array intents{Intent::read, Intent::write, Intent::read_write};
  std::vector<Window> windows;
  std::vector<Intent> intent;
  for (std::size_t i = 0, count = 1 + below(most_operands); i < count; ++i) {
    // Now and then over the same bytes, or some of them.
    windows.push_back(i != 0 && one_in(3) ? any_window_of(windows.front().subject, 1) : any_window(1));
    if (i != 0 && one_in(8)) windows.back() = windows.front();
    intent.push_back(intents[below(intents.size())]);
  }
  auto const salt = random_();
  std::vector<Operand> operands;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    operands.push_back({&subjects_[windows[i].subject].all.core(), windows[i].range, intent[i]});
  }
  std::vector<std::shared_ptr<Truth>> truths;
  for (auto const& window : windows) truths.push_back(shared_truth(window));
  // The cpu's inputs arrive in the host's memory.
  auto const inputs_fail = [truths, windows, intent, on_host = worker.device->shares_storage_with_host()] {
    for (std::size_t i = 0; on_host && i < windows.size(); ++i) {
      if (intent[i] != Intent::write) truths[i]->fail_on_way_to_host(windows[i].range);
    }
  };
  Event event;
  if (!attempt("launch", [&] {
        event = use_on_device(queue, operands, [&](std::span<const DeviceMemory> there, std::span<const Event> needs) {
          std::vector<KernelArgument> arguments{scalar(salt)};
          for (std::size_t i = 0; i < there.size(); ++i) {
            arguments.push_back(scalar(static_cast<std::uint32_t>(intent[i])));
            arguments.push_back(scalar(std::uint64_t{windows[i].range.size()}));
            arguments.push_back(memory(there[i], intent[i] != Intent::read));
          }
          for (auto left = there.size(); left < most_operands; ++left) {
            arguments.push_back(scalar(static_cast<std::uint32_t>(Intent::read)));
            arguments.push_back(scalar(std::uint64_t{0}));
            arguments.push_back(memory({}, false));
          }
          return queue.run(worker.mix, Range{1}, arguments, needs);
        });
      })) {
    record("launch", {}, [inputs_fail](bool) { inputs_fail(); });
    return;
  }
  for (auto const& truth : truths) {
    if (options_.device_limit != 0 && truth->bytes.size() > options_.device_limit) ++tally_["in a window"];
  }
  record("launch", event, [truths, windows, intent, salt, inputs_fail, &on = *worker.device](bool failed) {
    if (failed) {
      inputs_fail();
      for (std::size_t i = 0; i < windows.size(); ++i) {
        if (intent[i] == Intent::read) truths[i]->note(windows[i].range, "not read");
      }
      for (std::size_t i = 0; i < windows.size(); ++i) {
        if (intent[i] != Intent::read) truths[i]->fail_on(on, windows[i].range);
      }
      return;
    }
    for (std::size_t i = 0; i < windows.size(); ++i) {
      truths[i]->note(windows[i].range, on.id());
      if (intent[i] != Intent::write) truths[i]->note(windows[i].range, "read");
    }
    // Each operand by itself: where they overlap the later one's result counts, on what was there before all of them.
    bool defined = true;
    std::vector<std::vector<std::uint8_t>> bytes(windows.size());
    std::vector<MixedOperand> mixed;
    for (std::size_t i = 0; i < windows.size(); ++i) {
      auto const range = windows[i].range;
      for (auto at = range.begin; at < range.end; ++at) {
        bytes[i].push_back(truths[i]->bytes[at].value);
        defined = defined && (intent[i] == Intent::write || truths[i]->bytes[at].defined);
      }
      mixed.push_back({bytes[i].data(), bytes[i].size(), intent[i]});
    }
    mix(mixed, salt);
    for (std::size_t i = 0; i < windows.size(); ++i) {
      if (intent[i] != Intent::read) truths[i]->write(windows[i].range, bytes[i], defined, false);
    }
  });
}

/// Brings bytes somewhere ahead of their use: changes nothing but where they are.
void Model::bring(Window const& window) {
  auto& worker = any_worker();
  auto const how = below(7);
  bool const to_host = how >= 3 || worker.device->shares_storage_with_host();
  Event event;
  bool const started = attempt("sync", [&] {
    auto part = slice<std::uint8_t>(window);
    if (how == 0) event = part.prefetch(any_queue(worker));
    if (how == 1) event = part.sync_to_device_async(*worker.device);
    if (how == 2) part.sync_to_device(*worker.device);
    if (how == 3) event = part.sync_to_host_async();
    if (how == 4) part.sync_to_host();
    if (how == 5) event = part.synchronize_async();
    if (how == 6) part.synchronize();
  });
  // Some of it may have been on its way when it threw; what waits first brings nothing that will fail.
  bool const waits_first = how == 2 || how == 4 || how == 6;
  record("sync", event, [to_host, started, waits_first, of = shared_truth(window), range = window.range](bool failed) {
    if (!to_host) of->note(range, started && !failed ? "is on a device" : "did not reach a device");
    if (!to_host || (!started && waits_first)) return;
    started && !failed ? of->arrive_on_host(range) : of->fail_on_way_to_host(range);
  });
}

/// Holds one queue up, so that the others overtake it.
void Model::hold_queue() {
  auto& worker = any_worker();
  std::array const arguments{scalar(static_cast<std::uint32_t>(below(150)))};
  auto& queue = any_queue(worker);
  static_cast<void>(attempt("hold", [&] { queue.run(worker.hold, Range{1}, arguments); }));
}

#define UNIMEM_FOR_ELEMENT(T) template void Model::lease_window<T>(unsigned kind);
UNIMEM_FOR_ELEMENT(std::uint8_t)
UNIMEM_FOR_ELEMENT(std::uint16_t)
UNIMEM_FOR_ELEMENT(std::uint32_t)
UNIMEM_FOR_ELEMENT(std::uint64_t)
#undef UNIMEM_FOR_ELEMENT

}  // namespace unimem::testing
