#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include "buffer/buffer_fixture.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace unimem::testing {

using Words = std::vector<std::uint32_t>;

/// Where the two buffers of a try start from.
enum class Start {
  on_host,
  on_first,
  on_second,
  on_host_and_first,
  on_both_devices,
  in_parts,
  empty,
  in_windows,
  in_file
};
inline constexpr std::array starts{Start::on_host,         Start::on_first, Start::on_second, Start::on_host_and_first,
                                   Start::on_both_devices, Start::in_parts, Start::empty};
/// Those too that a small simulated device can start from: windows of both buffers on the first device, which alone has
/// what they hold; all of both in files.
inline constexpr std::array small_starts{
    Start::on_host,         Start::on_first, Start::on_second, Start::on_host_and_first,
    Start::on_both_devices, Start::in_parts, Start::empty,     Start::in_windows,
    Start::in_file};

/// One try of one operation: two devices that do not reach each other, two buffers, and what they hold.
struct Stage {
  static constexpr std::size_t count = 4096, bytes = count * sizeof(std::uint32_t);
  /// Of a small device: so much that windows are a quarter of a buffer.
  static constexpr std::size_t device_bytes = 4 * bytes;
  enum class Spills : bool { no, yes };

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

  Stage(Device& one, Device& two, Start start, Spills spills = Spills::no)
      : first(one), second(two), manager(options_for(start, spills)) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &first;
    options.name = "a";
    a.emplace(Shape(count), options);
    options.name = "b";
    b.emplace(Shape(count), options);
    events.reserve(4);
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
      if (start == Start::in_windows) {
        manager.set_limit(first, manager.pool(first, Location::device).bytes_in_use() + bytes - 1);
        for (auto const part : {std::size_t{0}, std::size_t{2}})
          write_on(*buffer, *words, first, part * count / 4, count / 8);
      }
      if (start == Start::in_file && buffer->core().evict({&device("cpu"), Location::host}, {}) == 0) {
        throw std::runtime_error("it was not evicted to a file");
      }
    }
    manager.set_limit(first, std::numeric_limits<std::size_t>::max());
  }

  static ManagerOptions options_for(Start start, Spills spills) {
    ManagerOptions options;
    if (start == Start::in_file || spills == Spills::yes) {
      options.spill = {.directory = ::testing::TempDir(), .min_bytes = 1};
    }
    return options;
  }

  /// Makes the device the only one that holds the elements from `from` on, or that many of them.
  static void write_on(UnifiedBuffer<std::uint32_t>& buffer, Words const& words, Device& on, std::size_t from,
                       std::optional<std::size_t> some = {}) {
    auto const elements = some.value_or(buffer.size() - from);
    auto part = buffer.slice(from, elements);
    auto const lease = part.device_overwrite(on);
    put(on, lease, std::span{words}.subspan(from, elements));
  }

  /// What is done under a lease: where the host cannot, by a queue. Once more if it is refused.
  static void put(Device& on, DeviceSpan<std::uint32_t> const& lease, std::span<const std::uint32_t> words) {
    if (on.info().runs_host_form) {
      auto* const data = [&] {
        try {
          return lease.data();
        } catch (std::bad_alloc const&) {
          return lease.data();
        }
      }();
      std::ranges::copy(words, data);
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
  bool drops_a = false;  ///< nothing that a holds afterwards counts
  bool by_rows = false;  ///< of one that failed some rows may have been copied
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
inline void launched(Stage& s) {
  s.in_b = s.in_a;
  for (auto& word : s.in_b) ++word;
  for (auto& word : s.in_a) word *= 2;
}

/// A part of a buffer that reaches neither end of it.
inline constexpr std::size_t part_begin = 8, part_count = 16;

inline void seven_in_part(Stage& s) {
  std::fill_n(s.in_a.begin() + part_begin, part_count, 7U);
}
inline std::span<std::uint32_t> part_of_scratch(Stage& s) {
  return std::span{s.scratch}.first(part_count);
}
inline void part_from_scratch(Stage& s) {
  std::ranges::copy(part_of_scratch(s), s.in_a.begin() + part_begin);
}

/// A block of rows of a, as rows of eight elements, to another place in b.
inline void copy_a_block(Stage& s) {
  auto to = s.b->view_2d(Stage::count / 8, 8);
  copy_block(s.a->view_2d(Stage::count / 8, 8), {1, 1}, to, {3, 2}, {4, 5});
}
inline void block_copied(Stage& s) {
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t column = 0; column < 5; ++column) {
      s.in_b[(3 + row) * 8 + 2 + column] = s.in_a[(1 + row) * 8 + 1 + column];
    }
  }
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
         Words const sevens(Stage::count, 7U);  // before the lease: whoever overwrites does
         auto const lease = s.a->device_overwrite(s.second);
         Stage::put(s.second, lease, sevens);
       },
       all_seven},
      {"sync_to_device", [](S s) { s.a->sync_to_device(s.second); }},
      {"sync_to_host", [](S s) { s.a->sync_to_host(); }},
      {"synchronize", [](S s) { s.a->synchronize(); }},
      {"sync_to_device_async", [](S s) { s.add(s.a->sync_to_device_async(s.second)); }},
      {"sync_to_host_async", [](S s) { s.add(s.a->sync_to_host_async()); }},
      {"synchronize_async", [](S s) { s.add(s.a->synchronize_async()); }},
      {"prefetch", [](S s) { s.add(s.a->prefetch(s.second)); }},
      {"allocate", [](S s) { s.a->allocate(); }},
      {"mark_host_dirty", [](S s) { s.a->mark_host_dirty(); }},
      {"mark_device_dirty", [](S s) { s.a->mark_device_dirty(s.second); }},
      {"fill", [](S s) { s.add(s.a->fill_async(7U)); }, all_seven},
      {"fill_of_a_part", [](S s) { s.add(s.a->fill_async(7U, part_begin, part_count)); }, seven_in_part},
      {"copy_from", [](S s) { s.a->copy_from(s.scratch); }, from_scratch},
      {"copy_from_async", [](S s) { s.add(s.a->copy_from_async(s.scratch)); }, from_scratch},
      {"copy_to", [](S s) { s.a->copy_to(s.scratch); }},
      {"copy_to_async", [](S s) { s.add(s.a->copy_to_async(s.scratch)); }},
      {"copy_from_to_a_part", [](S s) { s.a->copy_from(part_of_scratch(s), part_begin); }, part_from_scratch},
      {"copy_from_async_to_a_part", [](S s) { s.add(s.a->copy_from_async(part_of_scratch(s), part_begin)); },
       part_from_scratch},
      {"copy_to_from_a_part", [](S s) { s.a->copy_to(part_of_scratch(s), part_begin); }},
      {"copy_to_async_from_a_part", [](S s) { s.add(s.a->copy_to_async(part_of_scratch(s), part_begin)); }},
      {"to_vector", [](S s) { std::ignore = s.a->to_vector(); }},
      {"copy", [](S s) { s.add(copy_async(*s.a, *s.b)); }, a_to_b},
      {"copy_of_overlapping_slices", [](S s) { s.add(copy_async(s.a->slice(0, Stage::count - 4), s.a->slice(4))); },
       [](S s) { std::copy_backward(s.in_a.begin(), s.in_a.end() - 4, s.in_a.end()); }},
      {"copy_of_a_block", copy_a_block, block_copied, false, true},
      {"map",
       [](S s) {
         auto mapping = s.a->map(MapMode::read_write);
         std::ranges::fill(mapping, 7U);
         mapping.unmap();
       },
       all_seven},
      {"map_discard",
       [](S s) {
         auto mapping = s.a->map(MapMode::discard, part_begin, part_count);
         std::ranges::fill(mapping, 7U);
         mapping.unmap();
       },
       seven_in_part},
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
      {"launch", [](S s) { s.launch(); }, launched},
      {"free_with_work_in_flight",
       [](S s) {
         s.launch();
         s.a->free();
       },
       launched, true},
      {"reset_with_work_in_flight",
       [](S s) {
         s.launch();
         s.a->reset();
       },
       launched, true},
      {"discard_with_work_in_flight",
       [](S s) {
         s.launch();
         s.a->discard();
       },
       launched, true},
  };
}

/// Whether a buffer holds what it should: what was asked for, or, if that has failed, what it held before.
inline bool is_in_order(Words const& seen, Words const& before, Words const& after, bool failed, bool by_rows) {
  if (seen == after || (failed && seen == before)) return true;
  if (!failed || !by_rows || seen.size() != before.size() || seen.size() != after.size()) return false;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] != before[i] && seen[i] != after[i]) return false;
  }
  return true;
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
    } catch (std::bad_alloc const&) {
      failed = true;
    }
  }
  ADD_FAILURE() << buffer.name() << " cannot be read any more";
  return std::nullopt;
}

/// Judges what a try of `operation` has left of its buffers: nothing that was not at stake is lost, what they hold is
/// as it was or as asked for, and they go on working on both devices. `on_device(buffer, device)` is what the device
/// has of a buffer that is given a lease there; `also(buffer, seen)` looks at what could be read before it changes.
template <class OnDevice, class Also>
void expect_in_order(Stage& stage, Operation const& operation, Start start, bool& failed, OnDevice const& on_device,
                     Also const& also) {
  auto const before_a = stage.in_a, before_b = stage.in_b;
  operation.result(stage);
  bool const has_data = start != Start::empty;
  // What failed work was writing over may be gone where the one good copy stood.
  bool const sole_copy = start != Start::on_host && start != Start::on_host_and_first && start != Start::in_file;
  auto const look = [&](UnifiedBuffer<std::uint32_t>& buffer, Words const& was, Words const& is, bool counts) {
    buffer.core().validate();
    if (auto const seen = read_back(buffer, failed); !seen) {
      EXPECT_TRUE(failed && sole_copy) << buffer.name() << " lost what was not at stake";
    } else {
      if (counts) {
        EXPECT_TRUE(is_in_order(*seen, was, is, failed, operation.by_rows))
            << buffer.name() << " is neither as it was nor as asked for";
      }
      also(buffer, *seen);
    }
    buffer.core().validate();
    auto const anew = Stage::words_from(77);
    Words const fitting(anew.begin(), anew.begin() + static_cast<std::ptrdiff_t>(buffer.size()));
    buffer.copy_from(fitting);
    for (auto* const on : {&stage.first, &stage.second}) EXPECT_EQ(on_device(buffer, *on), fitting);
    EXPECT_EQ(buffer.to_vector(), fitting);
  };
  look(*stage.a, before_a, stage.in_a, has_data && !operation.drops_a);
  if (stage.b->state() != BufferState::uninitialized) look(*stage.b, before_b, stage.in_b, has_data);
}

/// Lets the buffers go: all that they had has then come back to the pools.
inline void expect_given_back(Stage& stage) {
  stage.a.reset();
  stage.b.reset();
  for (auto* const on : {&stage.first, &stage.second}) on->synchronize();
  EXPECT_EQ(stage.manager.statistics().active_bytes, 0U) << "a leak";
  EXPECT_EQ(stage.manager.statistics().active_allocations, 0U) << "a leak";
}

}  // namespace unimem::testing
