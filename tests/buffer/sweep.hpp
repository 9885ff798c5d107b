#pragma once

#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace unimem::testing {

using Words = std::vector<std::uint32_t>;

/// Where the two buffers of a try start from.
enum class Start { on_host, on_first, on_second, on_host_and_first, on_both_devices, in_parts, empty };
inline constexpr std::array starts{Start::on_host,         Start::on_first, Start::on_second, Start::on_host_and_first,
                                   Start::on_both_devices, Start::in_parts, Start::empty};

/// One try of one operation: two devices that do not reach each other, two buffers, and what they hold.
struct Stage {
  static constexpr std::size_t count = 64;

  Device& first;
  Device& second;
  MemoryManager manager;
  std::optional<UnifiedBuffer<std::uint32_t>> a, b;
  Words in_a = words_from(1000), in_b = words_from(5000);
  Words scratch = words_from(9000);
  std::vector<Event> events;  ///< of what the operation started

  static Words words_from(std::uint32_t from) {
    Words words(count);
    std::iota(words.begin(), words.end(), from);
    return words;
  }

  Stage(Device& one, Device& two, Start start) : first(one), second(two) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &first;
    options.name = "a";
    a.emplace(Shape(count), options);
    options.name = "b";
    b.emplace(Shape(count), options);
    if (start == Start::empty) return;
    for (auto const& [buffer, words] : {std::pair{&*a, &in_a}, std::pair{&*b, &in_b}}) {
      buffer->copy_from(*words);
      if (start == Start::on_first || start == Start::in_parts) write_on(*buffer, *words, first, 0);
      if (start == Start::on_second) write_on(*buffer, *words, second, 0);
      if (start == Start::in_parts) write_on(*buffer, *words, second, count / 2);
      if (start == Start::on_host_and_first || start == Start::on_both_devices) buffer->sync_to_device(first);
      if (start == Start::on_both_devices) {
        buffer->sync_to_device(second);
        buffer->release_host();
      }
    }
  }

  /// Makes the device the only one that holds the elements from `from` on.
  static void write_on(UnifiedBuffer<std::uint32_t>& buffer, Words const& words, Device& on, std::size_t from) {
    auto part = buffer.slice(from);
    auto const lease = part.device_overwrite(on);
    put(on, lease, std::span{words}.subspan(from));
  }

  /// What is done under a lease: where the host cannot, by a queue, once more if the driver refuses.
  static void put(Device& on, DeviceSpan<std::uint32_t> const& lease, std::span<const std::uint32_t> words) {
    if (on.info().runs_host_form) {
      std::ranges::copy(words, lease.data());
      return;
    }
    for (int tries = 0;; ++tries) {
      try {
        auto queue = on.create_queue();
        return queue.upload(lease.native(), words.data(), words.size_bytes()).wait();
      } catch (DeviceError const&) {
        if (tries == 3 || on.is_lost()) throw;
      }
    }
  }

  void add(Event event) { events.push_back(event); }

  /// As a launch does: b becomes a plus one, on the second device, and a twice what it was.
  void launch() {
    auto& queue = second.default_queue();
    auto const program =
        second.compile({"both", R"(UNIMEM_KERNEL both(UNIMEM_BUFFER(unimem_u32, x), UNIMEM_BUFFER(unimem_u32, y)) {
                                     UNIMEM_GLOBAL unimem_u32* a = UNIMEM_DATA(unimem_u32, x);
                                     UNIMEM_DATA(unimem_u32, y)[UNIMEM_ITEM_X] = a[UNIMEM_ITEM_X] + 1;
                                     a[UNIMEM_ITEM_X] *= 2;
                                   })",
                        [](Range, std::size_t begin, std::size_t end, std::span<const HostArgument> arguments) {
                          auto* const x = static_cast<std::uint32_t*>(arguments[0].data);
                          auto* const y = static_cast<std::uint32_t*>(arguments[1].data);
                          for (auto i = begin; i < end; ++i) {
                            y[i] = x[i] + 1;
                            x[i] *= 2;
                          }
                        }});
    std::array const operands{Operand{&a->core(), {0, a->size_bytes()}, Intent::read_write},
                              Operand{&b->core(), {0, b->size_bytes()}, Intent::write}};
    add(use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      std::array<KernelArgument, 2> arguments;
      for (std::size_t i = 0; i < 2; ++i) arguments[i].memory = memory[i];
      return queue.run(program, Range{count}, arguments, needs);
    }));
  }
};

/// A public operation, and what the buffers hold once it has succeeded.
struct Operation {
  char const* name;
  std::function<void(Stage&)> call;
  std::function<void(Stage&)> result = [](Stage&) {};
};

inline void PrintTo(Operation const& operation, std::ostream* out) {
  *out << operation.name;
}

inline void all_seven(Stage& s) {
  s.in_a.assign(Stage::count, 7);
}
inline void from_scratch(Stage& s) {
  s.in_a = s.scratch;
}
inline void a_to_b(Stage& s) {
  s.in_b = s.in_a;
}

inline std::vector<Operation> operations() {
  using S = Stage&;
  return {
      {"host", [](S s) { std::ranges::fill(s.a->host(), 7U); }, all_seven},
      {"host_view", [](S s) { std::ignore = s.a->host_view(); }},
      {"host_overwrite", [](S s) { std::ranges::fill(s.a->host_overwrite(), 7U); }, all_seven},
      {"device", [](S s) { std::ignore = s.a->device(); }},
      {"device_of_another", [](S s) { std::ignore = s.a->device(s.second); }},
      {"device_by_queue", [](S s) { std::ignore = s.a->device(s.second.default_queue()); }},
      {"device_view", [](S s) { std::ignore = s.a->device_view(s.second); }},
      {"device_overwrite",
       [](S s) {
         auto const lease = s.a->device_overwrite(s.second);
         Stage::put(s.second, lease, Words(Stage::count, 7U));
       },
       all_seven},
      {"sync_to_device", [](S s) { s.a->sync_to_device(s.second); }},
      {"sync_to_host", [](S s) { s.a->sync_to_host(); }},
      {"synchronize", [](S s) { s.a->synchronize(); }},
      {"sync_to_device_async", [](S s) { s.add(s.a->sync_to_device_async(s.second)); }},
      {"sync_to_host_async", [](S s) { s.add(s.a->sync_to_host_async()); }},
      {"synchronize_async", [](S s) { s.add(s.a->synchronize_async()); }},
      {"prefetch", [](S s) { s.add(s.a->prefetch(s.second)); }},
      {"mark_host_dirty", [](S s) { s.a->mark_host_dirty(); }},
      {"fill", [](S s) { s.add(s.a->fill_async(7U)); }, all_seven},
      {"copy_from", [](S s) { s.a->copy_from(s.scratch); }, from_scratch},
      {"copy_from_async", [](S s) { s.add(s.a->copy_from_async(s.scratch)); }, from_scratch},
      {"copy_to", [](S s) { s.a->copy_to(s.scratch); }},
      {"copy_to_async", [](S s) { s.add(s.a->copy_to_async(s.scratch)); }},
      {"to_vector", [](S s) { std::ignore = s.a->to_vector(); }},
      {"copy", [](S s) { s.add(copy_async(*s.a, *s.b)); }, a_to_b},
      {"copy_of_overlapping_slices", [](S s) { s.add(copy_async(s.a->slice(0, Stage::count - 4), s.a->slice(4))); },
       [](S s) { std::copy_backward(s.in_a.begin(), s.in_a.end() - 4, s.in_a.end()); }},
      {"map",
       [](S s) {
         auto mapping = s.a->map(MapMode::read_write);
         std::ranges::fill(mapping, 7U);
         mapping.unmap();
       },
       all_seven},
      {"resize", [](S s) { s.a->resize(Stage::count / 2); }, [](S s) { s.in_a.resize(Stage::count / 2); }},
      {"release_device", [](S s) { s.a->release_device(); }},
      {"release_host", [](S s) { s.a->release_host(); }},
      {"clone",
       [](S s) {
         auto copy = s.a->clone();
         std::ignore = copy.to_vector();  // it has no event: a failure on the way shows at the first look
         s.b = std::move(copy);
       },
       a_to_b},
      {"launch", [](S s) { s.launch(); },
       [](S s) {
         s.in_b = s.in_a;
         for (auto& word : s.in_b) ++word;
         for (auto& word : s.in_a) word *= 2;
       }},
  };
}

/// Reads a buffer, told of old failures first, of which some had no event; nothing if bytes of it are lost.
inline std::optional<Words> read_back(UnifiedBuffer<std::uint32_t>& buffer, bool& failed) {
  for (int tries = 0; tries < 6; ++tries) {
    try {
      // Not a read alone: what is current on the host needs nothing of what has failed elsewhere.
      static_cast<void>(buffer.core().fetch({0, buffer.size_bytes()}));
      return buffer.to_vector();
    } catch (DataLost const&) {
      return std::nullopt;
    } catch (Error const&) {
      failed = true;  // told once, then dealt with
    }
  }
  ADD_FAILURE() << buffer.name() << " cannot be read any more";
  return std::nullopt;
}

}  // namespace unimem::testing
