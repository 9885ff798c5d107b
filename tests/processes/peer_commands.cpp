#include "processes/peer_commands.hpp"

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/share/buffer_registry.hpp>
#include <unimem/share/detail/sent_buffers.hpp>

#include "process/steps.hpp"
#include "processes/busy_worker.hpp"
#include "processes/device_work.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::testing {
namespace {

using Byte = std::uint8_t;
using Bytes = std::vector<Byte>;

/// What is written by work on a device.
void write_pattern(std::span<Byte> bytes, std::uint32_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern_byte(seed, i);
}

std::string hex(std::span<Byte const> bytes) {
  constexpr char const* digits = "0123456789abcdef";
  std::string text;
  for (auto const byte : bytes) {
    text += digits[byte >> 4U];
    text += digits[byte & 15U];
  }
  return text;
}

std::atomic<bool> ending = false;  ///< this process, by `exit` or behind its last command

}  // namespace

Bytes pattern_of(std::size_t count, std::uint32_t seed) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = pattern_byte(seed, i);
  return bytes;
}

std::string told(std::span<Byte const> bytes) {
  constexpr std::size_t few = 128;
  if (bytes.size() <= few) return hex(bytes);
  std::uint64_t sum = 0xcbf29ce484222325U;
  for (auto const byte : bytes) sum = (sum ^ byte) * 0x100000001b3U;
  return "sum " + std::to_string(sum) + " of " + std::to_string(bytes.size());
}

class PeerCommands::Process {
 public:
  std::string answer(std::string const& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    at_ = &slots_[0];
    if (command.starts_with('@')) {
      at_ = &slot(std::stoul(command.substr(1)));
      words >> command;
    }
    auto const found = commands_.find(command);
    if (found == commands_.end()) return "error Unknown " + command;
    try {
      auto const said = (this->*found->second)(words);
      return said.empty() ? "ok" : "ok " + said;
    } catch (DataLost const& error) {
      return std::string("error DataLost ") + error.what();
    } catch (NotFound const& error) {
      return std::string("error NotFound ") + error.what();
    } catch (InvalidArgument const& error) {
      return std::string("error InvalidArgument ") + error.what();
    } catch (UnsupportedOperation const& error) {
      return std::string("error UnsupportedOperation ") + error.what();
    } catch (IoError const& error) {
      return std::string("error IoError ") + error.what();
    } catch (std::exception const& error) {
      return std::string("error Other ") + error.what();
    }
  }

 private:
  struct Slot {
    std::optional<UnifiedBuffer<Byte>> buffer;
    std::optional<Mapping<Byte>> mapping;
    std::optional<Mapping<Byte>> reading;
  };
  Slot& slot(std::size_t number) { return slots_.at(number); }

  using Words = std::istringstream;
  static std::size_t number(Words& words) {
    std::size_t value = 0;
    if (!(words >> value)) throw std::runtime_error("a number is missing");
    return value;
  }
  BufferSlice<Byte> part(Words& words) {
    auto const offset = number(words);
    return at_->buffer.value().slice(offset, number(words));
  }
  /// Of the slot of that number.
  BufferSlice<Byte> part_of(std::size_t number_of_slot, Words& words) {
    auto const offset = number(words);
    return slot(number_of_slot).buffer.value().slice(offset, number(words));
  }
  static std::uint32_t number32(Words& words) { return static_cast<std::uint32_t>(number(words)); }
  Queue& queue(Words& words) {
    std::string name;
    words >> name;
    if (name == "sim") return queue_;
    if (name == "sim2") return second_queue_;
    if (name == "cpu") return cpu_queue_;
    throw std::runtime_error("no queue: " + name);
  }
  static BufferId id_from(Words& words) {
    std::string text;
    words >> text;
    BufferId id;
    auto const dash = text.find('-');
    std::from_chars(text.data(), text.data() + dash, id.registry, 16);
    std::from_chars(text.data() + dash + 1, text.data() + text.size(), id.number);
    return id;
  }

  std::string open(Words& words) {
    at_->buffer = registry().open<Byte>(id_from(words));
    return std::to_string(at_->buffer->size());
  }
  std::string open_as_floats(Words& words) { return std::to_string(registry().open<float>(id_from(words)).size()); }
  /// What was sent, of that many bytes, to that device; answers with what moved there in each direction.
  std::string receive(Words& words) {
    auto const id = id_from(words);
    auto const bytes = number(words);
    std::string name;
    words >> name;
    BufferOptions options;
    options.device = &device(name);
    auto const before = options.device->transfers();
    at_->buffer.emplace(Shape(bytes), detail::receive_sent(id, bytes, std::move(options)));
    auto const moved = device(name).transfers().since(before);
    return std::to_string(moved.host_to_device_bytes) + " " + std::to_string(moved.device_to_host_bytes) + " " +
           std::to_string(moved.device_to_device_bytes);
  }
  /// Another handle of the same.
  std::string open_again(Words& words) {
    auto const again = registry().open<Byte>(id_from(words));
    return std::as_const(again).host_view().data() == std::as_const(*at_->buffer).host_view().data() ? "same" : "other";
  }
  std::string publish(Words& words) {
    BufferOptions options;
    options.device = &sim_;
    auto const size = number(words);
    options.shared = number(words) != 0;
    at_->buffer.emplace(size, std::move(options));
    Bytes data(size);
    std::iota(data.begin(), data.end(), Byte{1});
    at_->buffer->copy_from(data);
    return to_string(registry().publish(*at_->buffer, {.cross_process = true}));
  }
  std::string read(Words& words) { return hex(part(words).to_vector()); }
  std::string look(Words& words) {
    auto const window = part(words);
    return hex(window.host_view());
  }
  std::string write(Words& words) {
    auto window = part(words);
    window.copy_from(Bytes(window.size(), static_cast<Byte>(number(words))));
    return {};
  }
  std::string read_on_device(Words& words) {
    auto const window = part(words);
    BufferOptions options;
    options.device = &sim_;
    UnifiedBuffer<Byte> result(window.size(), std::move(options));
    unimem::testing::copy_on(queue_, window, result.slice(0, result.size()));
    return hex(result.to_vector());
  }
  std::string write_on_device(Words& words) {
    auto window = part(words);
    auto const value = static_cast<std::uint32_t>(number(words));
    fill_on(queue_, window, static_cast<Byte>(value)).wait();
    return {};
  }
  std::string write_on_cpu(Words& words) {
    auto window = part(words);
    auto const value = static_cast<std::uint32_t>(number(words));
    fill_on(device("cpu").default_queue(), window, static_cast<Byte>(value)).wait();
    return {};
  }
  std::string map(Words& words) {
    at_->mapping = part(words).map(MapMode::read_write);
    return {};
  }
  std::string poke(Words& words) {
    auto const value = static_cast<Byte>(number(words));
    for (auto& byte : at_->mapping.value().elements()) byte = value;
    return {};
  }
  std::string unmap(Words& /*words*/) {
    at_->mapping.value().unmap();
    at_->mapping.reset();
    return {};
  }
  std::string hold(Words& words) {
    at_->reading = part(words).map(MapMode::read);
    return {};
  }
  std::string drop(Words& /*words*/) {
    at_->reading.reset();
    return {};
  }
  // For models: what they write is a pattern, and what they read is told by `told`.

  std::string see(Words& words) { return told(part(words).to_vector()); }
  std::string see_view(Words& words) {
    auto const window = part(words);
    return told(window.host_view());
  }
  std::string see_mapped(Words& words) {
    auto const mapped = part(words).map(MapMode::read);
    return told(std::as_const(mapped).elements());
  }
  std::string see_on(Words& words) {
    auto& on = queue(words);
    auto const window = part(words);
    BufferOptions options;
    options.device = &on.device();
    UnifiedBuffer<Byte> result(window.size(), std::move(options));
    unimem::testing::copy_on(on, window, result.slice(0, result.size()));
    return told(result.to_vector());
  }
  std::string put(Words& words) {
    auto window = part(words);
    window.copy_from(pattern_of(window.size(), number32(words)));
    return {};
  }
  std::string fill(Words& words) {
    auto window = part(words);
    window.fill(static_cast<Byte>(number(words)));
    return {};
  }
  std::string put_on(Words& words) {
    auto& on = queue(words);
    auto window = part(words);
    run_on(on, {operand(window, Intent::write)},
           [seed = number32(words)](OperandBytes const& bytes) { write_pattern(bytes[0], seed); });
    return {};
  }
  /// It is written a while after this process has begun to end, or in ten seconds.
  std::string put_slowly(Words& words) {
    auto& on = queue(words);
    auto window = part(words);
    run_on(on, {operand(window, Intent::write)}, [seed = number32(words)](OperandBytes const& bytes) {
      for (int looks = 0; looks < 10'000 && !ending; ++looks) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      write_pattern(bytes[0], seed);
    });
    return {};
  }
  /// Returns when it has failed.
  std::string fail_on(Words& words) {
    auto& on = queue(words);
    auto window = part(words);
    auto const failed = run_on(on, {operand(window, Intent::write)}, [](OperandBytes const& bytes) {
      bytes[0].front() = 0xee;
      throw std::runtime_error("it was to fail half-way");
    });
    return failed.wait_for_error() ? "failed" : "done";
  }
  /// Without an end of anything that it has.
  std::string exit(Words& /*words*/) {
    ending = true;
    std::exit(0);
  }
  std::string add_on(Words& words) {
    auto& on = queue(words);
    auto window = part(words);
    run_on(on, {operand(window, Intent::read_write)}, [value = number32(words)](OperandBytes const& bytes) {
      for (auto& byte : bytes[0]) byte = static_cast<Byte>(byte + value);
    });
    return {};
  }
  /// From the slot and window named first to those named then.
  std::string copy_on(Words& words) {
    auto& on = queue(words);
    auto const from = part_of(number(words), words);
    auto to = part_of(number(words), words);
    unimem::testing::copy_on(on, from, to);
    return {};
  }
  std::string copy(Words& words) {
    auto const from = part_of(number(words), words);
    auto to = part_of(number(words), words);
    unimem::copy(from, to);
    return {};
  }
  /// That often, one after the other.
  std::string copy_often(Words& words) {
    auto const times = number(words);
    auto const from = part_of(number(words), words);
    auto to = part_of(number(words), words);
    for (std::size_t i = 0; i < times; ++i) unimem::copy(from, to);
    return {};
  }
  std::string put_often(Words& words) {
    auto const times = number(words);
    auto window = part(words);
    auto const bytes = pattern_of(window.size(), number32(words));
    for (std::size_t i = 0; i < times; ++i) window.copy_from(bytes);
    return {};
  }
  /// Answers with what is there, but for a mapping to discard.
  std::string map_as(Words& words) {
    std::string mode;
    words >> mode;
    auto const modes = mode == "discard" ? MapMode::discard : mode == "read" ? MapMode::read : MapMode::read_write;
    auto& held = modes == MapMode::read ? at_->reading : at_->mapping;
    held = part(words).map(modes);
    return modes == MapMode::discard ? std::string() : told(std::as_const(*held).elements());
  }
  std::string poke_pattern(Words& words) {
    auto const bytes = pattern_of(at_->mapping.value().elements().size(), number32(words));
    std::ranges::copy(bytes, at_->mapping->elements().begin());
    return {};
  }
  /// What a mapping to read shows.
  std::string see_held(Words& /*words*/) { return told(std::as_const(at_->reading.value()).elements()); }
  std::string prefetch(Words& words) {
    static_cast<void>(part(words).prefetch(sim_));
    return {};
  }
  std::string to_device(Words& words) {
    part(words).sync_to_device(sim_);
    return {};
  }
  std::string to_host(Words& words) {
    part(words).sync_to_host();
    return {};
  }
  std::string to_host_async(Words& words) {
    static_cast<void>(part(words).sync_to_host_async());
    return {};
  }
  std::string synchronize(Words& words) {
    part(words).synchronize();
    return {};
  }
  std::string evict(Words& /*words*/) {
    at_->buffer.value().release_device(sim_);
    return {};
  }
  std::string limit(Words& words) {
    default_manager().set_limit(sim_, number(words));
    return {};
  }
  std::string await(Words& /*words*/) {
    for (auto* const one : {&queue_, &second_queue_, &cpu_queue_}) one->synchronize();
    return {};
  }
  std::string state(Words& /*words*/) { return std::string(to_string(at_->buffer.value().state())); }
  std::string moved(Words& /*words*/) {
    auto const all = at_->buffer.value().statistics();
    return std::to_string(all.host_to_device_bytes) + " " + std::to_string(all.device_to_host_bytes);
  }
  std::string close(Words& /*words*/) {
    at_->mapping.reset();
    at_->reading.reset();
    at_->buffer.reset();
    return {};
  }
  /// The mappings, the buffers and what is published are as they are.
  std::string exit_at_once(Words& /*words*/) { ::_exit(0); }
  /// Its child's number, which stays until it is killed.
  std::string fork(Words& /*words*/) {
    auto const child = ::fork();
    while (child == 0) ::pause();
    return std::to_string(child);
  }
  /// It is killed where it takes that step for the so-manieth time.
  std::string die_at(Words& words) {
    static std::atomic<int> step, passes;
    step = static_cast<int>(number(words));
    passes = static_cast<int>(number(words));
    detail::step_watcher = [](detail::Step taken) {
      if (static_cast<int>(taken) == step.load() && --passes <= 0) ::raise(SIGKILL);
    };
    return {};
  }
  /// It is stopped where it takes that step next.
  std::string stop_at(Words& words) {
    static std::atomic<int> step;
    step = static_cast<int>(number(words));
    detail::step_watcher = [](detail::Step taken) {
      auto wanted = static_cast<int>(taken);
      if (step.compare_exchange_strong(wanted, -1)) ::raise(SIGSTOP);
    };
    return {};
  }
  /// Writes to the first part, and reads the second, until it is told to rest.
  std::string work(Words& words) {
    auto own = part(words);
    auto others = part(words);
    worker_.emplace(std::move(own), std::move(others), number32(words));
    return {};
  }
  std::string rounds(Words& /*words*/) { return std::to_string(worker_.value().rounds()); }
  std::string rest(Words& /*words*/) {
    auto said = worker_.value().rest();
    worker_.reset();
    return said;
  }
  std::string kill(Words& /*words*/) {
    ::raise(SIGKILL);
    return {};
  }

  Device& sim_ = make_sim();
  Queue queue_ = sim_.create_queue();
  Queue second_queue_ = sim_.create_queue();
  Queue cpu_queue_ = device("cpu").create_queue();
  std::array<Slot, 2> slots_;
  Slot* at_ = nullptr;
  std::optional<BusyWorker> worker_;
  std::map<std::string, std::string (Process::*)(Words&), std::less<>> const commands_{
      {"open", &Process::open},
      {"open_as_floats", &Process::open_as_floats},
      {"receive", &Process::receive},
      {"open_again", &Process::open_again},
      {"publish", &Process::publish},
      {"read", &Process::read},
      {"look", &Process::look},
      {"write", &Process::write},
      {"read_on_device", &Process::read_on_device},
      {"write_on_device", &Process::write_on_device},
      {"write_on_cpu", &Process::write_on_cpu},
      {"map", &Process::map},
      {"poke", &Process::poke},
      {"unmap", &Process::unmap},
      {"hold", &Process::hold},
      {"drop", &Process::drop},
      {"moved", &Process::moved},
      {"close", &Process::close},
      {"see", &Process::see},
      {"see_view", &Process::see_view},
      {"see_mapped", &Process::see_mapped},
      {"see_on", &Process::see_on},
      {"put", &Process::put},
      {"fill", &Process::fill},
      {"put_on", &Process::put_on},
      {"add_on", &Process::add_on},
      {"copy_on", &Process::copy_on},
      {"copy", &Process::copy},
      {"copy_often", &Process::copy_often},
      {"put_often", &Process::put_often},
      {"map_as", &Process::map_as},
      {"poke_pattern", &Process::poke_pattern},
      {"see_held", &Process::see_held},
      {"prefetch", &Process::prefetch},
      {"to_device", &Process::to_device},
      {"to_host", &Process::to_host},
      {"to_host_async", &Process::to_host_async},
      {"synchronize", &Process::synchronize},
      {"evict", &Process::evict},
      {"limit", &Process::limit},
      {"await", &Process::await},
      {"state", &Process::state},
      {"put_slowly", &Process::put_slowly},
      {"fail_on", &Process::fail_on},
      {"exit", &Process::exit},
      {"exit_well", &Process::exit},
      {"die_at", &Process::die_at},
      {"stop_at", &Process::stop_at},
      {"work", &Process::work},
      {"rounds", &Process::rounds},
      {"rest", &Process::rest},
      {"exit_at_once", &Process::exit_at_once},
      {"fork", &Process::fork},
      {"kill", &Process::kill}};
};

PeerCommands::PeerCommands() : process_(std::make_unique<Process>()) {}
PeerCommands::~PeerCommands() {
  ending = true;
}

std::string PeerCommands::answer(std::string const& line) {
  return process_->answer(line);
}

}  // namespace unimem::testing
