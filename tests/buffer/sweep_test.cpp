#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

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
namespace {

using Words = std::vector<std::uint32_t>;

/// Where the two buffers of a try start from.
enum class Start { on_host, on_first, on_second, on_host_and_first, on_both_devices, in_parts, empty };
constexpr std::array starts{Start::on_host,         Start::on_first, Start::on_second, Start::on_host_and_first,
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
    std::copy(words.begin() + static_cast<std::ptrdiff_t>(from), words.end(), lease.data());
  }

  void add(Event event) { events.push_back(event); }

  /// As a launch does: b becomes a plus one, on the second device, and a twice what it was.
  void launch() {
    auto& queue = second.default_queue();
    auto const program =
        second.compile({"both", "", [](Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
                          auto* const x = static_cast<std::uint32_t*>(arguments[0].data);
                          auto* const y = static_cast<std::uint32_t*>(arguments[1].data);
                          for (std::size_t i = 0; i < count; ++i) {
                            y[i] = x[i] + 1;
                            x[i] *= 2;
                          }
                        }});
    std::array const operands{Operand{&a->core(), {0, a->size_bytes()}, Intent::read_write},
                              Operand{&b->core(), {0, b->size_bytes()}, Intent::write}};
    add(use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      std::array<KernelArgument, 2> arguments;
      for (std::size_t i = 0; i < 2; ++i) arguments[i].memory = memory[i];
      return queue.run(program, Range{1}, arguments, needs);
    }));
  }
};

/// A public operation, and what the buffers hold once it has succeeded.
struct Operation {
  char const* name;
  std::function<void(Stage&)> call;
  std::function<void(Stage&)> result = [](Stage&) {};
};

void PrintTo(Operation const& operation, std::ostream* out) {
  *out << operation.name;
}

void all_seven(Stage& s) {
  s.in_a.assign(Stage::count, 7);
}
void from_scratch(Stage& s) {
  s.in_a = s.scratch;
}
void a_to_b(Stage& s) {
  s.in_b = s.in_a;
}

std::vector<Operation> operations() {
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
         std::fill_n(lease.data(), Stage::count, 7U);
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

class FaultSweep : public ::testing::TestWithParam<Operation> {
 protected:
  /// Reads a buffer, told of old failures first, of which some had no event; nothing if bytes of it are lost.
  static std::optional<Words> read(UnifiedBuffer<std::uint32_t>& buffer, bool& failed) {
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

  /// Runs the operation once with that fault. Returns whether anything failed.
  void attempt(Operation const& operation, Start start, bool may_lose, SimOptions const& faults, bool on_second,
               bool& failed) {
    failed = false;
    {
      Stage stage(first, second, start);
      bool const has_data = start != Start::empty;
      set_sim_faults(on_second ? second : first, faults);
      try {
        operation.call(stage);
      } catch (BufferNotAllocated const&) {
        EXPECT_EQ(start, Start::empty);
      } catch (Error const&) {
        failed = true;
      }
      for (auto const event : stage.events) failed = event.wait_for_error() != nullptr || failed;
      for (auto* const on : {&first, &second}) on->synchronize();
      set_sim_faults(first, {});
      set_sim_faults(second, {});

      auto const before_a = stage.in_a, before_b = stage.in_b;
      operation.result(stage);
      auto const check = [&](UnifiedBuffer<std::uint32_t>& buffer, Words const& before, Words const& after) {
        auto const seen = read(buffer, failed);
        if (!seen) {
          EXPECT_TRUE(failed && may_lose) << buffer.name() << " lost what was not at stake";
        } else if (has_data) {
          bool const as_it_was = std::equal(seen->begin(), seen->end(), before.begin(), before.end());
          bool const as_it_is = std::equal(seen->begin(), seen->end(), after.begin(), after.end());
          EXPECT_TRUE(as_it_is || (failed && as_it_was)) << buffer.name() << " is neither as it was nor as asked for";
        }
        buffer.core().validate();
        // And it goes on working, on both devices.
        auto const anew = Stage::words_from(77);
        Words const fitting(anew.begin(), anew.begin() + static_cast<std::ptrdiff_t>(buffer.size()));
        buffer.copy_from(fitting);
        for (auto* const on : {&first, &second}) {
          auto const lease = buffer.device(*on);
          EXPECT_EQ(Words(lease.data(), lease.data() + lease.size()), fitting);
        }
        EXPECT_EQ(buffer.to_vector(), fitting);
      };
      check(*stage.a, before_a, stage.in_a);
      if (stage.b->state() != BufferState::uninitialized) check(*stage.b, before_b, stage.in_b);
      stage.a.reset();
      stage.b.reset();
      first.synchronize();
      second.synchronize();
      EXPECT_EQ(stage.manager.statistics().active_bytes, 0U) << "a leak";
      EXPECT_EQ(stage.manager.statistics().active_allocations, 0U) << "a leak";
    }
    EXPECT_EQ(first.memory_info().free_bytes, first.memory_info().total_bytes) << "a leak on the device";
    EXPECT_EQ(second.memory_info().free_bytes, second.memory_info().total_bytes) << "a leak on the device";
  }

  Device& first = make_sim({.memory_bytes = std::size_t{1} << 20, .peer = false});
  Device& second = make_sim({.memory_bytes = std::size_t{1} << 20, .peer = false});
};

/// For every device call an operation makes on either device, from every starting state: that call failing, or the
/// device being lost from then on.
TEST_P(FaultSweep, WhicheverCallFailsNothingElseDoes) {
  std::size_t tries = 0;
  for (auto const start : starts) {
    for (bool const lose : {false, true}) {
      for (bool const on_second : {false, true}) {
        bool failed = true;
        for (std::uint64_t n = 1; failed; ++n, ++tries) {
          ASSERT_LT(n, 50U) << "it never passes";
          SCOPED_TRACE(::testing::Message() << GetParam().name << ", start " << static_cast<int>(start) << ", "
                                            << (lose ? "lost after" : "failing") << " call " << n << " of the "
                                            << (on_second ? "second" : "first") << " device");
          SimOptions faults;
          (lose ? faults.lose_after : faults.fail_call) = n;
          // What a failed command was writing over may be gone where the one good copy stood.
          bool const sole_copy = start != Start::on_host && start != Start::on_host_and_first;
          attempt(GetParam(), start, sole_copy, faults, on_second, failed);
          if (HasFailure()) return;
        }
      }
    }
  }
  RecordProperty("tries", std::to_string(tries));
}

INSTANTIATE_TEST_SUITE_P(Operations, FaultSweep, ::testing::ValuesIn(operations()),
                         [](auto const& operation) { return std::string(operation.param.name); });

}  // namespace
}  // namespace unimem::testing
