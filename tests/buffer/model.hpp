#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/sim.hpp>

#include "buffer/model_truth.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::testing {

/// The library did what no order of successes and failures explains.
class Discrepancy : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Random use of the public face: several buffers and slices of them, on the host, on three devices, simulated
/// ones or others, and on the cpu device, by several queues each, with nobody waiting for anything but where the
/// library itself does. It writes down what every operation ought to do, in the order in which they were called.
///
/// The record is read later: what an operation did counts from the moment its event is done, and not at all if it
/// failed. So the model never waits either, and knows nothing about which device call was to fail. Whatever was read on
/// the way was copied out and is compared when its turn in the record comes. From time to time everything is waited for
/// and every byte is looked at.
///
/// Single-threaded; the library's own threads do the work.
class Model {
 public:
  struct Options {
    unsigned seed = 1;
    bool faults = true;   ///< let devices fail now and then
    bool spills = false;  ///< host memory goes to files now and then
    /// Of each of the three devices' memory: less than some buffers have, so that they get windows of them. 0: all.
    std::size_t device_limit = 0;
    /// The three beside the cpu; null: a simulated one.
    std::array<Device*, 3> devices{};
    /// For devices that are not simulated: has a call fail soon, in one of eight ways, the fifth of which is none; and
    /// lets all be well again.
    std::function<void(std::size_t way, std::size_t nth)> arm{};
    std::function<void()> disarm{};
  };

  explicit Model(Options options);
  Model(Model const&) = delete;
  Model& operator=(Model const&) = delete;
  ~Model();

  /// One operation. Throws Discrepancy.
  void step();
  /// Waits for everything and compares every byte. Throws Discrepancy.
  void audit();
  /// Audits, drops all buffers, and looks for memory that did not come back. Throws Discrepancy.
  void finish();

  /// How often what happened.
  [[nodiscard]] std::map<std::string, std::size_t> const& tally() const noexcept { return tally_; }

 private:
  using Word = std::uint32_t;
  static constexpr std::size_t subject_count = 6;
  static constexpr std::size_t device_count = 4;

  /// A buffer, or what is left of one: a slice that outlived it.
  struct Subject {
    std::optional<UnifiedBuffer<Word>> buffer;
    BufferSlice<Word> all;
    std::shared_ptr<Truth> truth;
    bool manual = false;  ///< Tracking::manual
  };
  /// A window to operate on.
  struct Window {
    std::size_t subject = 0;
    ByteRange range;
  };
  struct Entry {
    std::size_t step;
    std::string_view what;
    Event event;
    std::function<void(bool failed)> apply;
  };
  struct Worker {
    Device* device;
    std::vector<Queue*> queues;
    std::shared_ptr<Program const> mix, set, hold;
  };

  // What happens (model_host.cpp, model_device.cpp, model_life.cpp).
  template <class T>
  void host_access(unsigned kind);
  template <class T>
  void map_window();
  template <class T>
  void write_before_telling();
  void work_around(Window const& window);
  template <class T>
  void copy_in_or_out(unsigned kind);
  template <class T>
  void fill_window(Window const& window);
  template <class T>
  void copy_between();
  template <class T>
  void lease_window(unsigned kind);
  void mark_own_work();
  void work_unannounced();
  void launch();
  void bring(Window const& window);
  void hold_queue();
  void release();
  void spill();
  void resize();
  void forget();
  void replace();
  void clone();
  void arm();
  void disarm();
  void look();

  // The record (model.cpp).
  void record(std::string_view what, Event event, std::function<void(bool failed)> apply);
  /// Reads as much of the record as is done, or waits for all of it.
  void read_record(bool wait);
  /// Compares what was read with what ought to have been there.
  void compare(std::string_view what, Truth& truth, ByteRange range, std::span<const std::uint8_t> seen) const;
  void observe(std::string_view what, Window const& window, std::vector<std::uint8_t> seen, bool on_host);
  /// Writes down a write that is done already.
  void record_write(std::string_view what, Window const& window, std::vector<std::uint8_t> values, bool on_host);
  /// Writes down a write of work on a device.
  void record_work(std::string_view what, Event event, Window const& window, std::vector<std::uint8_t> values,
                   Device const& on);
  /// Runs one call. Returns whether it succeeded; an error it must not throw is a Discrepancy.
  bool attempt(std::string_view what, std::function<void()> const& call);
  void audit_subject(Subject& subject);
  [[noreturn]] void fail(std::string_view what, std::string const& why) const;

  // Choices.
  [[nodiscard]] std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  [[nodiscard]] bool one_in(std::size_t n) { return below(n) == 0; }
  [[nodiscard]] Worker& any_worker() { return workers_[below(workers_.size())]; }
  [[nodiscard]] Queue& any_queue(Worker& worker) { return *worker.queues[below(worker.queues.size())]; }
  [[nodiscard]] Window any_window(std::size_t unit);
  [[nodiscard]] Window any_window_of(std::size_t subject, std::size_t unit);
  [[nodiscard]] std::vector<std::uint8_t> any_bytes(std::size_t count);
  template <class T>
  [[nodiscard]] BufferSlice<T> slice(Window const& window);
  [[nodiscard]] Truth& truth(Window const& window) { return *subjects_[window.subject].truth; }
  [[nodiscard]] std::shared_ptr<Truth> shared_truth(Window const& window) { return subjects_[window.subject].truth; }

  void make_subject(std::size_t index);
  void define(std::size_t index);

  std::mt19937_64 random_;
  Options options_;
  MemoryManager manager_;
  std::vector<std::unique_ptr<Queue>> own_queues_;
  std::array<Worker, device_count> workers_;
  std::array<Subject, subject_count> subjects_;
  std::multimap<std::string, std::weak_ptr<Truth>> by_name_;  ///< a clone has its original's name
  std::deque<Entry> record_;
  std::vector<Event> unannounced_;  ///< works that nobody is told of
  std::map<std::string, std::size_t> tally_;
  std::size_t made_ = 0;   ///< buffers
  std::size_t steps_ = 0;  ///< operations
  std::string last_error_;
  bool armed_ = false;  ///< a device may have failed since the last audit
};

template <class T>
BufferSlice<T> Model::slice(Window const& window) {
  auto& all = subjects_[window.subject].all;
  auto const first = window.range.begin / sizeof(Word), last = (window.range.end + sizeof(Word) - 1) / sizeof(Word);
  auto words = all.slice(first, last - first);
  if (one_in(4)) words = words.slice(0).slice(0, words.size());
  if constexpr (sizeof(T) >= sizeof(Word)) {
    return words.template as<T>();
  } else {
    return words.template as<T>().slice((window.range.begin - first * sizeof(Word)) / sizeof(T),
                                        window.range.size() / sizeof(T));
  }
}

/// The program of `launch`, over what its operands held before it: every byte written depends on every byte read.
struct MixedOperand {
  std::uint8_t* bytes = nullptr;
  std::size_t count = 0;
  Intent intent = Intent::read;
};
void mix(std::span<const MixedOperand> operands, std::uint64_t salt);

}  // namespace unimem::testing
