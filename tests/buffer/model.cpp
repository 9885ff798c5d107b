#include "buffer/model.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

namespace unimem::testing {
namespace {

using namespace std::chrono_literals;

/// A device of the run. They live as long as the process, so runs share them: their faults are reset, and all memory
/// is back when a run ends.
Device& simulated(std::size_t index) {
  // Small: the buffers do not fit at once. The last reaches no other, so what comes to it from them is staged.
  static std::array<Device*, 3> const devices{
      &make_sim({.memory_bytes = std::size_t{6} << 10, .heedless = true, .latency = 2us}),
      &make_sim({.memory_bytes = std::size_t{1} << 20, .heedless = true}),
      &make_sim({.memory_bytes = std::size_t{1} << 20, .peer = false})};
  return *devices[index];
}

std::vector<MixedOperand> operands_of(std::span<const HostArgument> arguments) {
  std::vector<MixedOperand> operands;
  for (std::size_t i = 1; i < arguments.size(); i += 3) {
    std::uint32_t intent = 0;
    std::memcpy(&intent, arguments[i].data, sizeof intent);
    operands.push_back(
        {static_cast<std::uint8_t*>(arguments[i + 2].data), arguments[i + 2].bytes, static_cast<Intent>(intent)});
  }
  return operands;
}

std::string text_of(std::exception_ptr const& error) {
  try {
    std::rethrow_exception(error);
  } catch (std::exception const& exception) {
    return exception.what();
  }
}

template <class T>
T scalar(HostArgument argument) {
  T value;
  std::memcpy(&value, argument.data, sizeof value);
  return value;
}

/// The three programs as devices compile them that run no host form: by one work item, each.
constexpr auto mix_source = R"(
UNIMEM_KERNEL mix(unimem_u64 salt, unimem_u32 intent_a, unimem_u64 count_a, UNIMEM_BUFFER(unimem_u8, a),
                  unimem_u32 intent_b, unimem_u64 count_b, UNIMEM_BUFFER(unimem_u8, b),
                  unimem_u32 intent_c, unimem_u64 count_c, UNIMEM_BUFFER(unimem_u8, c)) {
  UNIMEM_GLOBAL unimem_u8* bytes[3];
  unimem_u64 count[3];
  unimem_u32 intent[3];
  unimem_u8 before[3 * 3072];
  bytes[0] = UNIMEM_DATA(unimem_u8, a); count[0] = count_a; intent[0] = intent_a;
  bytes[1] = UNIMEM_DATA(unimem_u8, b); count[1] = count_b; intent[1] = intent_b;
  bytes[2] = UNIMEM_DATA(unimem_u8, c); count[2] = count_c; intent[2] = intent_c;
  unimem_u64 state = salt * 0x9E3779B97F4A7C15 + 1;
  for (unimem_u32 i = 0; i < 3; ++i) {
    if (intent[i] == 1) continue;
    for (unimem_u64 j = 0; j < count[i]; ++j) {
      before[i * 3072 + j] = bytes[i][j];
      state = (state ^ bytes[i][j]) * 0x100000001B3;
    }
  }
  for (unimem_u32 i = 0; i < 3; ++i) {
    if (intent[i] == 0) continue;
    for (unimem_u64 j = 0; j < count[i]; ++j) {
      unimem_u64 old = intent[i] == 2 ? 3 * (unimem_u64)before[i * 3072 + j] : 0;
      bytes[i][j] = (unimem_u8)(old + (state >> 32) + j * 7 + i);
    }
  }
})";
constexpr auto set_source = R"(
UNIMEM_KERNEL set(unimem_u8 value, unimem_u64 count, UNIMEM_BUFFER(unimem_u8, x)) {
  for (unimem_u64 i = 0; i < count; ++i) UNIMEM_DATA(unimem_u8, x)[i] = value;
})";
constexpr auto hold_source = R"(
UNIMEM_KERNEL hold(unimem_u32 microseconds) {
  volatile unimem_u32 turns = 0;
  while (turns < microseconds * 100) turns = turns + 1;
})";
static_assert(static_cast<int>(Intent::read) == 0 && static_cast<int>(Intent::write) == 1 &&
              static_cast<int>(Intent::read_write) == 2);

}  // namespace

void mix(std::span<const MixedOperand> operands, std::uint64_t salt) {
  auto state = salt * 0x9E3779B97F4A7C15U + 1;
  std::vector<std::vector<std::uint8_t>> before(operands.size());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].intent == Intent::write) continue;
    before[i].assign(operands[i].bytes, operands[i].bytes + operands[i].count);
    for (auto const byte : before[i]) state = (state ^ byte) * 0x100000001B3U;
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].intent == Intent::read) continue;
    for (std::size_t j = 0; j < operands[i].count; ++j) {
      auto const old = operands[i].intent == Intent::read_write ? std::size_t{3} * before[i][j] : std::size_t{0};
      operands[i].bytes[j] = static_cast<std::uint8_t>(old + (state >> 32) + j * 7 + i);
    }
  }
}

namespace {

ManagerOptions manager_options(bool spills) {
  if (!spills) return {};
  return {.spill = {.directory = std::filesystem::temp_directory_path().string(), .min_bytes = 1}};
}

}  // namespace

Model::Model(Options options)
    : random_(options.seed), options_(std::move(options)), manager_(manager_options(options_.spills)) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    auto& worker = workers_[i];
    if (i + 1 == workers_.size()) {
      worker.device = &device("cpu");
    } else {
      worker.device = options_.devices[i] != nullptr ? options_.devices[i] : &simulated(i);
    }
    worker.queues = {&worker.device->default_queue()};
    for (int more = 0; more < 2; ++more) {
      own_queues_.push_back(std::make_unique<Queue>(worker.device->create_queue()));
      worker.queues.push_back(own_queues_.back().get());
    }
    worker.mix = worker.device->compile(
        {"mix", mix_source, [](Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
           mix(operands_of(arguments), scalar<std::uint64_t>(arguments[0]));
         }});
    worker.set = worker.device->compile(
        {"set", set_source, [](Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
           auto const value = scalar<std::uint8_t>(arguments[0]);
           if (arguments[2].bytes != 0) std::memset(arguments[2].data, value, arguments[2].bytes);
         }});
    worker.hold = worker.device->compile(
        {"hold", hold_source, [](Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
           std::this_thread::sleep_for(std::chrono::microseconds(scalar<std::uint32_t>(arguments[0])));
         }});
  }
  for (std::size_t i = 0; options_.device_limit != 0 && i + 1 < workers_.size(); ++i) {
    manager_.set_limit(*workers_[i].device, options_.device_limit);
  }
  disarm();
  for (std::size_t i = 0; i < subject_count; ++i) make_subject(i);
}

Model::~Model() {
  // Also when it ends with a Discrepancy: what is in flight uses memory that the record holds.
  for (auto const& entry : record_) static_cast<void>(entry.event.wait_for_error());
  disarm();
}

void Model::fail(std::string_view what, std::string const& why) const {
  throw Discrepancy(std::string(armed_ ? "with faults, " : "") + "operation " + std::to_string(steps_) + ", " +
                    std::string(what) + ": " + why);
}

void Model::record(std::string_view what, Event event, std::function<void(bool failed)> apply) {
  record_.push_back({steps_, what, event, std::move(apply)});
}

void Model::read_record(bool wait) {
  while (!record_.empty() && (wait || record_.front().event.ready())) {
    auto const entry = std::move(record_.front());
    record_.pop_front();
    Truth::reading_step = entry.step;
    Truth::reading = entry.what;
    auto const error = entry.event.wait_for_error();
    bool const failed = error != nullptr;
    if (failed && !armed_) fail(entry.what, "failed, though no device did: " + text_of(error));
    if (failed) ++tally_["failed later"];
    entry.apply(failed);
  }
}

void Model::compare(std::string_view what, Truth& truth, ByteRange range, std::span<const std::uint8_t> seen) const {
  for (std::size_t i = 0; i < range.size(); ++i) {
    auto& byte = truth.bytes[range.begin + i];
    if (byte.defined && byte.value != seen[i]) {
      fail(what, truth.name + " held " + std::to_string(seen[i]) + " at " + std::to_string(range.begin + i) +
                     " where " + std::to_string(byte.value) + " was written over " + std::to_string(byte.before) +
                     truth.history(range.begin + i));
    }
    // What nobody wrote is what it was first read as, and stays so; but for failures, which may undo that it was read.
    byte.value = seen[i];
    byte.defined = byte.defined || !armed_ || what == "audit";
    byte.shaken = byte.may_lost = false;
  }
}

void Model::observe(std::string_view what, Window const& window, std::vector<std::uint8_t> seen, bool on_host) {
  record(what, {},
         [this, what, on_host, of = shared_truth(window), range = window.range, seen = std::move(seen)](bool) {
           compare(what, *of, range, seen);
           if (on_host) of->arrive_on_host(range);
         });
}

void Model::record_write(std::string_view what, Window const& window, std::vector<std::uint8_t> values, bool on_host) {
  record(what, {}, [of = shared_truth(window), range = window.range, values = std::move(values), on_host](bool) {
    of->write(range, values, true, on_host);
  });
}

void Model::record_work(std::string_view what, Event event, Window const& window, std::vector<std::uint8_t> values,
                        Device const& on) {
  record(what, event, [of = shared_truth(window), range = window.range, values = std::move(values), &on](bool failed) {
    failed ? of->fail_on(on, range) : of->write(range, values, true, false);
  });
}

bool Model::attempt(std::string_view what, std::function<void()> const& call) {
  ++tally_[std::string(what)];
  try {
    call();
    return true;
  } catch (Discrepancy const&) {
    throw;
  } catch (DataLost const& error) {
    if (!armed_) fail(what, error.what());
    if (std::ranges::any_of(workers_, [](Worker const& worker) { return worker.device->is_lost(); })) {
      // While a device is lost, what only it has is; the model's devices come back, and so does that.
      last_error_ = error.what();
      ++tally_["lost for now"];
      return false;
    }
    auto const name = error.buffer.substr(error.buffer.find('\'') + 1);
    std::vector<std::shared_ptr<Truth>> truths;
    auto const [first, last] = by_name_.equal_range(name.substr(0, name.find('\'')));
    for (auto of = first; of != last; ++of) {
      if (auto truth = of->second.lock()) truths.push_back(std::move(truth));
    }
    // Whether they may have been lost shows when everything before has been read.
    record(what, {}, [this, what, truths, range = ByteRange{error.begin, error.end}, name](bool) {
      if (std::ranges::none_of(truths, [&](auto const& truth) { return truth->may_have_lost(range); })) {
        fail(what, name + " lost good bytes within [" + std::to_string(range.begin) + ", " + std::to_string(range.end) +
                       ")" + (truths.empty() ? std::string{} : truths.front()->history(range.begin)));
      }
    });
    ++tally_["lost"];
  } catch (OutOfMemory const&) {
    // The smallest device is smaller than some launches.
    ++tally_["no room"];
  } catch (Error const& error) {
    if (!armed_) fail(what, std::string("threw ") + error.what());
    last_error_ = error.what();
    for (auto& subject : subjects_) {
      record(what, {}, [of = subject.truth](bool) { of->note({0, of->bytes.size()}, "threw, here or elsewhere"); });
    }
    ++tally_["threw"];
  } catch (std::exception const& error) {
    fail(what, std::string("threw what is no error of the library: ") + error.what());
  }
  return false;
}

void Model::audit_subject(Subject& subject) {
  auto& of = *subject.truth;
  std::vector<std::uint8_t> seen(of.bytes.size());
  auto bytes = subject.all.as<std::uint8_t>();
  // Every failure is told once and then dealt with: two of copies on their way here, and each lost range once.
  for (std::size_t tries = 0; !attempt("audit",
                                       [&] {
                                         // Not a read alone: what is current on the host needs nothing of what has
                                         // failed elsewhere.
                                         static_cast<void>(bytes.sync_to_host_async());
                                         bytes.copy_to(seen);
                                       });
       ++tries) {
    read_record(true);
    if (tries > of.bytes.size() + 4) fail("audit", of.name + " cannot be read any more: " + last_error_);
    auto const lost = std::ranges::find_if(of.bytes, &Truth::Byte::may_lost);
    if (tries < 4 || lost == of.bytes.end()) continue;
    // What is gone is written anew, from the first lost byte on.
    auto const begin = static_cast<std::size_t>(lost - of.bytes.begin());
    std::size_t count = 0;
    while (begin + count < of.bytes.size() && of.bytes[begin + count].may_lost) ++count;
    Window const window{static_cast<std::size_t>(&subject - subjects_.data()), {begin, begin + count}};
    auto const values = any_bytes(count);
    if (attempt("repair", [&] { bytes.slice(begin, count).copy_from(values); })) {
      record_write("repair", window, values, true);
    }
    read_record(true);
  }
  Truth::reading_step = steps_;
  Truth::reading = "audit";
  compare("audit", of, {0, seen.size()}, seen);
  of.arrive_on_host({0, seen.size()});
  subject.all.core().validate();
}

void Model::audit() {
  disarm();
  // What nobody has an event of, such as copies ahead of a lease, may still be on its way to fail.
  for (auto& worker : workers_) worker.device->synchronize();
  read_record(true);
  for (auto& subject : subjects_) audit_subject(subject);
  read_record(true);
  std::erase_if(by_name_, [](auto const& known) { return known.second.expired(); });
  armed_ = false;
}

void Model::finish() {
  audit();
  for (auto& subject : subjects_) subject = {};
  for (auto& worker : workers_) worker.device->synchronize();
  auto const left = manager_.statistics();
  if (left.active_bytes != 0 || left.active_allocations != 0) {
    fail("the end", std::to_string(left.active_bytes) + " bytes did not come back");
  }
  tally_["evicted"] = left.reclaims;
  tally_["spilled"] = left.spills;
  tally_["restored"] = left.restores;
  if (left.spill_files != 0) fail("the end", std::to_string(left.spill_files) + " files stay");
}

Model::Window Model::any_window_of(std::size_t subject, std::size_t unit) {
  auto const units = subjects_[subject].truth->bytes.size() / unit;
  auto const begin = below(units + 1);
  // Mostly short, now and then all of it.
  auto const most = units - begin;
  auto const count = one_in(8) ? most : below(std::min<std::size_t>(most, 64 / unit + 8) + 1);
  return {subject, {begin * unit, (begin + count) * unit}};
}

Model::Window Model::any_window(std::size_t unit) {
  return any_window_of(below(subject_count), unit);
}

std::vector<std::uint8_t> Model::any_bytes(std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random_());
  return bytes;
}

}  // namespace unimem::testing
