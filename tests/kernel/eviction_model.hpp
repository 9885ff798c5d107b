#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace unimem::testing {

/// Random use of more memory than two devices have: kernels, host edits, leases, hints and copies on buffers that push
/// each other out. Beside every buffer stands an array that says what its bytes must be; an operation that the model
/// does not expect to fit may be refused, and has then changed nothing.
///
/// Single-threaded. Throws std::logic_error at the first difference.
class EvictionModel {
 public:
  struct Options {
    unsigned seed = 1;
    std::array<Device*, 2> devices{};
    std::size_t limit = std::size_t{1} << 20;  ///< bytes per device
    double oversubscription = 2;               ///< bytes of all buffers over `limit`
    PoolBacking backing = PoolBacking::automatic;
  };

  explicit EvictionModel(Options const& options)
      : options_(options), manager_(manager_options(options)), random_(options.seed) {
    for (std::size_t i = 0; i < options_.devices.size(); ++i) {
      manager_.set_limit(*options_.devices[i], options_.limit);
      used_before_[i] = used(i);
    }
    for (auto& subject : subjects_) replace(subject);
  }

  void step() {
    ++steps_;
    auto& subject = subjects_[below(subjects_.size())];
    switch (auto const what = below(100); what / 5) {
      case 0:
        return edit(subject);
      case 1:
        return edit(subject);
      case 2:
        return look(subject);
      case 3:
        return look(subject);
      case 4:
        return lease(subject);
      case 5:
        return subject.lease ? unlease(subject) : lease(subject);
      case 6:
        return unlease(subject);
      case 7:
        return copy_to(subject);
      case 8:
        return hint(subject);
      case 9:
        return bring(subject);
      case 10:
        return what % 5 < 2 ? replace(subject) : let_go(subject);
      default:
        return launch_on(subject);
    }
  }

  /// Every byte, and nothing left behind.
  void finish() {
    for (auto& subject : subjects_) {
      unlease(subject);
      if (subject.buffer->to_vector() != subject.truth) fail("at the end a buffer is not what it ought to be");
      subject.buffer.reset();
    }
    for (auto* const device : options_.devices) device->synchronize();
    static_cast<void>(manager_.cleanup());
    for (std::size_t i = 0; i < options_.devices.size(); ++i) {
      manager_.pool(*options_.devices[i], Location::device).validate();
      if (used(i) != used_before_[i]) fail("device memory did not come back");
      auto& device = *options_.devices[i];
      // Between any two looks, too.
      if (manager_.pool(device, Location::device).statistics().peak_reserved_bytes > options_.limit ||
          (device.backend() == Backend::sim && sim_peak_bytes(device) - used_before_[i] > options_.limit)) {
        fail("a device has held more than its limit");
      }
    }
  }

  [[nodiscard]] std::map<std::string, std::size_t> const& tally() const noexcept { return tally_; }

  /// Why this was refused so often that little of the rest was shown; empty if it was not. What fits is never refused.
  /// Of four times what there is, on one device alone, which leases fill, two thirds are: 0.67 to 0.69 of each 20,000.
  [[nodiscard]] std::string refused_too_much() const {
    auto const times = [&](char const* what) {
      auto const found = tally_.find(what);
      return found == tally_.end() ? 0 : found->second;
    };
    auto const asked = times("leased") + times("prefetched") + times("brought") + times("set") + times("mixed");
    auto const refused = times("refused"), copies = times("copied"), copies_refused = times("copy refused");
    bool const fits = options_.oversubscription < 1;
    if (fits ? refused + copies_refused == 0 : 4 * refused <= 3 * asked && 4 * copies_refused <= copies) return {};
    return fmt::format("{} of {} uses and {} of {} copies were refused", refused, asked, copies_refused, copies);
  }
  [[nodiscard]] GlobalMemoryStatistics statistics() const { return manager_.statistics(); }

 private:
  using Word = std::uint32_t;

  struct Subject {
    std::optional<UnifiedBuffer<Word>> buffer;
    std::vector<Word> truth;
    std::optional<DeviceSpan<const Word>> lease;
    std::size_t leased_on = 0;
  };

  static ManagerOptions manager_options(Options const& options) {
    ManagerOptions made;
    made.pools.backing = options.backing;
    return made;
  }

  [[nodiscard]] std::size_t below(std::size_t bound) { return random_() % bound; }
  [[nodiscard]] std::size_t used(std::size_t device) const {
    auto const info = options_.devices[device]->memory_info();
    return info.total_bytes - info.free_bytes;
  }
  [[noreturn]] void fail(std::string const& why) const {
    throw std::logic_error(fmt::format("seed {}, oversubscription {}, step {}: {}", options_.seed,
                                       options_.oversubscription, steps_, why));
  }

  /// Runs what needs `operands` on a device together. If it was refused, that must have been for want of room: less
  /// than the operands and all leases could take, blocks being larger than what was asked for, and pages whole.
  template <class Call>
  bool attempt(char const* what, std::size_t device, std::vector<Subject const*> operands, Call const& call) {
    ++tally_[what];
    for (auto const& subject : subjects_) {
      if (subject.lease && &on(subject.leased_on) == &on(device)) operands.push_back(&subject);
    }
    std::ranges::sort(operands);
    operands.erase(std::ranges::unique(operands).begin(), operands.end());
    std::size_t const around = options_.backing == PoolBacking::pages ? 2 * (std::size_t{64} << 10) : 4096;
    std::size_t wanted = 0;
    for (auto const* const operand : operands) wanted += operand->truth.size() * sizeof(Word) * 9 / 8 + around;
    bool done = true;
    try {
      call();
    } catch (OutOfMemory const& refused) {
      ++tally_["refused"];
      done = false;
      if (wanted < options_.limit * 7 / 8) fail(fmt::format("{} was refused: {}", what, refused.what()));
    }
    for (std::size_t i = 0; i < options_.devices.size(); ++i) {
      if (used(i) - used_before_[i] > options_.limit) fail("a device holds more than its limit");
    }
    return done;
  }

  void replace(Subject& subject) {
    unlease(subject);
    ++tally_["replaced"];
    // A quarter to seven quarters of what is a buffer's share.
    auto const share =
        options_.oversubscription * static_cast<double>(options_.limit / sizeof(Word) / subjects_.size());
    auto const count = static_cast<std::size_t>(share * static_cast<double>(250 + below(1500)) / 1000) + 1;
    BufferOptions made;
    made.manager = &manager_;
    made.device = options_.devices[below(2)];
    made.name = fmt::format("made in step {}", steps_);
    subject.buffer.emplace(count, made);
    subject.truth.resize(count);
    for (auto& word : subject.truth) word = static_cast<Word>(random_());
    subject.buffer->copy_from(subject.truth);
  }

  void edit(Subject& subject) {
    ++tally_["edited"];
    auto const begin = below(subject.truth.size());
    auto const count = below(subject.truth.size() - begin) + 1;
    auto const view = subject.buffer->host(begin, count);
    auto const value = static_cast<Word>(random_());
    for (std::size_t i = 0; i < count; ++i) view[i] = subject.truth[begin + i] = value + static_cast<Word>(i);
  }

  void look(Subject& subject) {
    ++tally_["looked at"];
    auto const begin = below(subject.truth.size());
    auto const count = std::min<std::size_t>(below(subject.truth.size() - begin) + 1, 512);
    auto const view = subject.buffer->host_view(begin, count);
    if (!std::equal(view.begin(), view.end(), subject.truth.begin() + static_cast<std::ptrdiff_t>(begin))) {
      fail("the host reads something else");
    }
  }

  void lease(Subject& subject) {
    unlease(subject);
    auto const device = below(2);
    attempt("leased", device, {&subject}, [&] { subject.lease.emplace(subject.buffer->device_view(on(device))); });
    subject.leased_on = device;
  }
  static void unlease(Subject& subject) { subject.lease.reset(); }

  void hint(Subject& subject) {
    ++tally_["hinted"];
    auto& device = on(below(2));
    switch (below(4)) {
      case 0:
        subject.buffer->will_use(device);
        return;
      case 1:
        subject.buffer->wont_use(device);
        return;
      case 2:
        subject.buffer->set_priority(1);
        return;
      default:
        subject.buffer->set_priority(0);
        return;
    }
  }

  void bring(Subject& subject) {
    auto const device = below(2);
    if (below(2) == 0) {
      attempt("prefetched", device, {&subject}, [&] { static_cast<void>(subject.buffer->prefetch(on(device))); });
    } else {
      attempt("brought", device, {&subject}, [&] { subject.buffer->sync_to_device(on(device)); });
    }
  }

  void let_go(Subject& subject) {
    unlease(subject);
    ++tally_["let go"];
    subject.buffer->release_device();
  }

  /// A device that neither may be at home on could be full: what is refused there is no news.
  void copy_to(Subject& target) {
    auto& source = subjects_[below(subjects_.size())];
    if (&source == &target) return;
    auto const count = std::min(source.truth.size(), target.truth.size());
    auto const length = below(count) + 1;
    auto const from = below(source.truth.size() - length + 1), to = below(target.truth.size() - length + 1);
    ++tally_["copied"];
    try {
      copy(source.buffer->slice(from, length), target.buffer->slice(to, length));
    } catch (OutOfMemory const&) {
      ++tally_["copy refused"];
      return;
    }
    std::copy_n(source.truth.begin() + static_cast<std::ptrdiff_t>(from), length,
                target.truth.begin() + static_cast<std::ptrdiff_t>(to));
  }

  void launch_on(Subject& target) {
    auto const device = below(2);
    auto& queue = on(device).default_queue();
    auto& source = subjects_[below(subjects_.size())];
    auto const value = static_cast<Word>(random_());
    if (below(4) == 0) {
      auto const done = attempt("set", device, {&target},
                                [&] { launch(queue, set_, Range{target.truth.size()}, write(*target.buffer), value); });
      if (done) {
        for (std::size_t i = 0; i < target.truth.size(); ++i) target.truth[i] = value ^ static_cast<Word>(i);
      }
      return;
    }
    if (&source == &target) return;
    auto& third = subjects_[below(subjects_.size())];
    bool const three = &third != &source && &third != &target && below(2) == 0;
    auto count = std::min(source.truth.size(), target.truth.size());
    if (three) count = std::min(count, third.truth.size());
    auto const& also = three ? third : source;
    auto const done = attempt("mixed", device, {&target, &source, &also}, [&] {
      launch(queue, blend_, Range{count}, readwrite(*target.buffer), read(*source.buffer), read(*also.buffer), value);
    });
    if (!done) return;
    for (std::size_t i = 0; i < count; ++i) {
      target.truth[i] = target.truth[i] * value + source.truth[i] - 3 * also.truth[i];
    }
  }

  [[nodiscard]] Device& on(std::size_t device) const { return *options_.devices[device]; }

  Options options_;
  MemoryManager manager_;
  std::mt19937_64 random_;
  std::array<std::size_t, 2> used_before_{};
  std::array<Subject, 16> subjects_;
  std::size_t steps_ = 0;
  std::map<std::string, std::size_t> tally_;
  Kernel set_ =
      Kernel("set")
          .source(R"(
    UNIMEM_KERNEL set(UNIMEM_BUFFER(unsigned, x), unsigned value) {
      UNIMEM_DATA(unsigned, x)[UNIMEM_ITEM_X] = value ^ (unsigned)UNIMEM_ITEM_X;
    })")
          .host([](WorkItem item, std::span<Word> x, Word value) { x[item.x] = value ^ static_cast<Word>(item.x); });
  Kernel blend_ = Kernel("blend")
                      .source(R"(
    UNIMEM_KERNEL blend(UNIMEM_BUFFER(unsigned, x), UNIMEM_CONST_BUFFER(unsigned, y), UNIMEM_CONST_BUFFER(unsigned, z), unsigned a) {
      UNIMEM_DATA(unsigned, x)[UNIMEM_ITEM_X] = UNIMEM_DATA(unsigned, x)[UNIMEM_ITEM_X] * a +
        UNIMEM_DATA(unsigned, y)[UNIMEM_ITEM_X] - 3 * UNIMEM_DATA(unsigned, z)[UNIMEM_ITEM_X];
    })")
                      .host([](WorkItem item, std::span<Word> x, std::span<const Word> y, std::span<const Word> z,
                               Word a) { x[item.x] = x[item.x] * a + y[item.x] - 3 * z[item.x]; });
};

}  // namespace unimem::testing
