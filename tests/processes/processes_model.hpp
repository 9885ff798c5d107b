#pragma once

#include <unimem/core/byte_ranges.hpp>

#include "processes/own_process.hpp"
#include "processes/peer_process.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace unimem::testing {

/// Four processes, of which this is the first, that share two buffers and do what chance has them do; and what every
/// byte must be, or that it is lost. Throws std::runtime_error, with what was done last, where a process sees anything
/// else.
class ProcessesModel {
 public:
  explicit ProcessesModel(std::uint64_t seed);
  void step();
  /// Every process sees all that there is.
  void check_all();

  struct Counts {
    std::size_t operations = 0, blocked = 0, killed = 0, lost = 0, reopened = 0, checked = 0;
  };
  [[nodiscard]] Counts const& counts() const noexcept { return counts_; }

 private:
  static constexpr std::size_t processes = 4, buffers = 2, own = 0;

  struct Part {
    std::size_t buffer = 0;
    ByteRange range;
  };
  /// What a process maps.
  struct Held {
    bool writes = false;
    bool discards = false;
    Part part;
  };
  struct Process {
    std::unique_ptr<OwnProcess> here;
    std::unique_ptr<PeerProcess> peer;
    std::array<bool, buffers> open{};
    std::vector<Held> held;
    std::size_t device_limit = 0;  ///< 0: none

    void tell(std::string const& line) const { here ? here->tell(line) : peer->tell(line); }
    [[nodiscard]] bool answers_within(std::chrono::milliseconds time) const {
      return here ? here->answers_within(time) : peer->answers_within(time);
    }
    [[nodiscard]] std::string answer() const { return here ? here->answer() : peer->answer(); }
  };
  struct Byte {
    std::uint8_t value = 0;
    bool lost = false;
    std::size_t unsettled = processes;  ///< who may still be bringing it from a device
  };
  using Contents = std::vector<Byte>;

  /// An operation of one process.
  struct Operation {
    std::string line;
    std::vector<Part> reads, writes;  ///< in turn with others
    std::vector<Part> looks;          ///< without a turn
    bool unsettled = false;           ///< what it writes may come later
    std::function<std::string()> expects = [] { return std::string("ok"); };
    std::function<void()> changes = [] {};
  };

  // Chance.
  [[nodiscard]] std::size_t below(std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_);
  }
  [[nodiscard]] bool one_in(std::size_t count) { return below(count) == 0; }
  [[nodiscard]] Part any_part(std::size_t most);
  [[nodiscard]] std::uint32_t any_seed() { return static_cast<std::uint32_t>(below(1U << 30U)); }
  [[nodiscard]] std::string any_queue();

  // Operations.
  [[nodiscard]] Operation any_operation(std::size_t process);
  [[nodiscard]] Operation a_read(std::string const& how, Part part) const;
  [[nodiscard]] Operation a_write(std::size_t process, std::size_t most);
  [[nodiscard]] Operation a_copy(bool on_device, std::size_t most);
  [[nodiscard]] Operation without_turn(Part part);
  void run(std::size_t process, Operation const& operation);
  void run_blocked(std::size_t process, Operation const& operation);
  void finish(std::size_t process, Operation const& operation, std::string const& answer);
  void map(std::size_t process);
  void end_mapping(std::size_t process, std::size_t index, bool by_death);
  void kill(std::size_t process);
  void replace(std::size_t process);
  void close_and_open(std::size_t process);
  void heal();
  void probe(Part part);
  void check_that_reads_move_nothing(std::size_t process);
  void settle(std::size_t buffer);
  void settle_process(std::size_t process);
  [[nodiscard]] bool may_be_bringing(std::size_t process) const;
  [[nodiscard]] bool maps_to_write(std::size_t process, std::size_t buffer, std::size_t byte) const;

  // What there must be.
  [[nodiscard]] std::string bytes_told(Part part) const;
  [[nodiscard]] bool any_lost(std::vector<Part> const& parts) const;
  void write_pattern(Part part, std::uint32_t seed);
  [[nodiscard]] std::vector<std::size_t> in_the_way(std::size_t process, Operation const& operation) const;
  [[nodiscard]] bool meets_own_mapping(std::size_t process, Operation const& operation) const;
  [[nodiscard]] bool meets(Operation const& operation, Operation const& other) const;

  std::string ask(std::size_t process, std::string const& line);
  void expect(std::size_t process, std::string const& line, std::string const& wanted);
  [[noreturn]] void fail(std::string const& what) const;
  static std::string words(Part part);
  [[nodiscard]] static bool meet(ByteRange one, ByteRange other) {
    return one.begin < other.end && other.begin < one.end;
  }

  std::mt19937_64 random_;
  std::uint64_t seed_;
  std::array<Process, processes> processes_;
  std::array<Contents, buffers> contents_;
  std::array<std::string, buffers> ids_;
  std::vector<std::string> log_;
  Counts counts_;
};

}  // namespace unimem::testing
