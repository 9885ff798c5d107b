#include "buffer/model.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
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
  for (std::size_t i = 1; i < arguments.size(); i += 2) {
    std::uint32_t intent = 0;
    std::memcpy(&intent, arguments[i].data, sizeof intent);
    operands.push_back(
        {static_cast<std::uint8_t*>(arguments[i + 1].data), arguments[i + 1].bytes, static_cast<Intent>(intent)});
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

Model::Model(Options options) : random_(options.seed), faults_(options.faults) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    auto& worker = workers_[i];
    worker.device = i + 1 < workers_.size() ? &simulated(i) : &device("cpu");
    worker.queues = {&worker.device->default_queue()};
    for (int more = 0; more < 2; ++more) {
      own_queues_.push_back(std::make_unique<Queue>(worker.device->create_queue()));
      worker.queues.push_back(own_queues_.back().get());
    }
    if (i + 1 < workers_.size()) set_sim_faults(*worker.device, {});
    worker.mix = worker.device->compile(
        {"mix", "", [](Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
           mix(operands_of(arguments), scalar<std::uint64_t>(arguments[0]));
         }});
    worker.set = worker.device->compile(
        {"set", "", [](Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
           auto const value = scalar<std::uint8_t>(arguments[0]);
           if (arguments[1].bytes != 0) std::memset(arguments[1].data, value, arguments[1].bytes);
         }});
    worker.hold = worker.device->compile(
        {"hold", "", [](Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
           std::this_thread::sleep_for(std::chrono::microseconds(scalar<std::uint32_t>(arguments[0])));
         }});
  }
  for (std::size_t i = 0; i < subject_count; ++i) make_subject(i);
}

Model::~Model() {
  // Also when it ends with a Discrepancy: what is in flight uses memory that the record holds.
  for (auto const& entry : record_) static_cast<void>(entry.event.wait_for_error());
  for (std::size_t i = 0; i + 1 < workers_.size(); ++i) set_sim_faults(*workers_[i].device, {});
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
  for (std::size_t i = 0; i + 1 < workers_.size(); ++i) set_sim_faults(*workers_[i].device, {});
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
