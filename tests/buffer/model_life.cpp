#include "buffer/model.hpp"

#include <unimem/device/discovery.hpp>

#include <algorithm>
#include <utility>

// What becomes of buffers, of their memory and of the devices, and the choice of what is next.
namespace unimem::testing {

void Model::make_subject(std::size_t index) {
  auto& subject = subjects_[index];
  BufferOptions options;
  options.manager = &manager_;
  options.device = any_worker().device;
  options.name = "b" + std::to_string(made_++);
  options.pinned = one_in(4);
  subject.manual = one_in(6);
  if (subject.manual) options.tracking = Tracking::manual;
  auto const words = one_in(4) ? 256 + below(512) : 16 + below(240);
  subject.truth = std::make_shared<Truth>();
  subject.truth->name = options.name;
  subject.truth->bytes.resize(words * sizeof(Word));
  by_name_.emplace(options.name, subject.truth);
  subject.buffer.emplace(Shape(words), options);
  subject.all = subject.buffer->slice(0);
  define(index);
}

void Model::define(std::size_t index) {
  Window const whole{index, {0, subjects_[index].truth->bytes.size()}};
  auto const bytes = any_bytes(whole.range.size());
  if (attempt("define", [&] { subjects_[index].all.as<std::uint8_t>().copy_from(bytes); })) {
    record_write("define", whole, bytes, true);
  }
}

void Model::release() {
  auto& subject = subjects_[below(subject_count)];
  if (!subject.buffer) return;
  record("release", {}, [of = subject.truth](bool) { of->note({0, of->bytes.size()}, "a side is released"); });
  if (one_in(3)) {
    if (!attempt("release_host", [&] { subject.buffer->release_host(); })) return;
    record("release_host", {}, [of = subject.truth](bool) { of->leave_host(); });
  } else if (one_in(2)) {
    static_cast<void>(attempt("release_device", [&] { subject.buffer->release_device(*any_worker().device); }));
  } else {
    static_cast<void>(attempt("release_device", [&] { subject.buffer->release_device(); }));
  }
}

/// As the manager does where another buffer needs the host's memory.
void Model::spill() {
  auto& subject = subjects_[below(subject_count)];
  if (!subject.buffer) return;
  auto& core = subject.buffer->core();
  for (auto const location : {Location::host, Location::pinned}) {
    static_cast<void>(attempt("spill", [&] { core.evict({&device("cpu"), location}, {}); }));
  }
  // Or a device had all of it, and has the only copy now.
  if (core.valid_on_host()) return;
  record("spill", {}, [of = subject.truth](bool) { of->leave_host(); });
}

/// Some of what the library may be told to do to a buffer, and to others, while somebody writes to a window of it.
void Model::work_around(Window const& window) {
  auto& subject = subjects_[window.subject];
  ByteRange const all{0, subject.truth->bytes.size()};
  for (auto left = 1 + below(5); left != 0; --left) {
    switch (below(6)) {
      case 0:
        fill_window<std::uint8_t>({window.subject, {all.begin, window.range.begin}});
        break;
      case 1:
        fill_window<std::uint8_t>({window.subject, {window.range.end, all.end}});
        break;
      case 2:
        // Not the cpu: its side is the host's, which a mapping holds.
        static_cast<void>(attempt(
            "release_device", [&] { subject.all.core().release_device(workers_[below(device_count - 1)].device); }));
        break;
      case 3:
        bring(any_window_of((window.subject + 1 + below(subject_count - 1)) % subject_count, 1));
        break;
      default:
        bring({window.subject, all});
        break;
    }
  }
}

void Model::resize() {
  auto& subject = subjects_[below(subject_count)];
  if (!subject.buffer) return;
  auto const words = one_in(16) ? 1 + below(16) : 16 + below(400);
  if (!attempt("resize", [&] { subject.buffer->resize(words); })) return;
  subject.all = subject.buffer->slice(0);
  // All its work has been waited for, so what the record says about it can be read now; and must be, since what is
  // chosen from now on is chosen within the new size.
  read_record(true);
  subject.truth->bytes.resize(words * sizeof(Word));
  subject.truth->leave_host();
}

void Model::forget() {
  auto const index = below(subject_count);
  auto& subject = subjects_[index];
  if (!subject.buffer) return;
  auto const how = below(3);
  if (!attempt("forget", [&] {
        if (how == 0) subject.buffer->discard();
        if (how == 1) subject.buffer->free();
        if (how == 2) subject.buffer->reset();
      })) {
    return;
  }
  record("forget", {}, [of = subject.truth](bool) { of->forget(); });
  if (one_in(2)) static_cast<void>(attempt("allocate", [&] { subject.buffer->allocate(one_in(2), one_in(2)); }));
  define(index);
}

/// Drops a buffer while its work is in flight, or moves it, or leaves a slice of it behind.
void Model::replace() {
  auto const index = below(subject_count);
  auto& subject = subjects_[index];
  ++tally_["replace"];
  switch (below(3)) {
    case 0:
      subject.buffer.reset();
      break;
    case 1:
      if (subject.buffer) {
        UnifiedBuffer<Word> moved = std::move(*subject.buffer);
        *subject.buffer = std::move(moved);
      }
      break;
    default:
      subject.all = {};
      subject.buffer.reset();
      make_subject(index);
      break;
  }
}

void Model::clone() {
  auto const from = below(subject_count), to = below(subject_count);
  if (from == to || !subjects_[from].buffer) return;
  auto& target = subjects_[to];
  std::optional<UnifiedBuffer<Word>> copy;
  std::vector<Word> seen;
  if (!attempt("clone", [&] {
        copy = subjects_[from].buffer->clone();
        // It has no event: a failure on the way shows at the first look.
        if (armed_) seen = copy->to_vector();
      })) {
    return;
  }
  target.all = {};
  target.buffer = std::move(copy);
  target.all = target.buffer->slice(0);
  target.manual = subjects_[from].manual;
  target.truth = std::make_shared<Truth>();
  target.truth->name = subjects_[from].truth->name;
  target.truth->bytes.resize(subjects_[from].truth->bytes.size());
  by_name_.emplace(target.truth->name, target.truth);
  record("clone", {}, [source = subjects_[from].truth, of = target.truth](bool) {
    for (std::size_t i = 0; i < of->bytes.size(); ++i) {
      of->bytes[i].value = source->bytes[i].value;
      of->bytes[i].defined = source->bytes[i].defined;
    }
  });
}

void Model::arm() {
  if (!options_.faults) return;
  // Copies ahead of such work fail, too, where the device that they come from is lost now, and the work with them.
  for (auto const event : std::exchange(unannounced_, {})) static_cast<void>(event.wait_for_error());
  auto& worker = workers_[below(workers_.size() - 1)];
  auto const nth = 1 + below(8);
  auto const way = below(8);
  armed_ = true;
  ++tally_["arm"];
  if (worker.device->backend() != Backend::sim) return options_.arm(way, nth);
  SimOptions faults;
  switch (way) {
    case 0:
      faults.fail_allocation = nth;
      break;
    case 1:
      faults.fail_upload = nth;
      break;
    case 2:
      faults.fail_download = nth;
      break;
    case 3:
      faults.fail_run = nth;
      break;
    case 4:
      faults.lose_after = nth;
      break;
    case 5:
      break;  // all is well again
    default:
      faults.fail_call = nth;
      break;
  }
  set_sim_faults(*worker.device, faults);
}

void Model::disarm() {
  for (auto& worker : workers_) {
    if (worker.device->backend() == Backend::sim) set_sim_faults(*worker.device, {});
  }
  if (options_.disarm) options_.disarm();
}

void Model::look() {
  auto& subject = subjects_[below(subject_count)];
  auto& core = subject.all.core();
  static_cast<void>(core.valid_on(*any_worker().device));
  auto const state = core.state();
  if (!subject.truth->bytes.empty() && !armed_ && state == BufferState::uninitialized) {
    fail("look", subject.truth->name + " has data and says it has none");
  }
  try {
    core.validate();
  } catch (std::logic_error const& error) {
    fail("look", error.what());
  }
}

void Model::step() {
  ++steps_;
  if (record_.size() > 128 || one_in(96)) return audit();
  read_record(false);
  auto const by_type = [&](auto const& act) {
    switch (below(4)) {
      case 0:
        return act(std::type_identity<std::uint8_t>{});
      case 1:
        return act(std::type_identity<std::uint16_t>{});
      case 2:
        return act(std::type_identity<std::uint32_t>{});
      default:
        return act(std::type_identity<std::uint64_t>{});
    }
  };
  auto const choice = below(100);
  if (choice < 30) return launch();
  if (choice < 38) return by_type([&]<class T>(std::type_identity<T>) { host_access<T>(unsigned(below(4))); });
  if (choice < 41) return by_type([&]<class T>(std::type_identity<T>) { map_window<T>(); });
  if (choice < 42) return by_type([&]<class T>(std::type_identity<T>) { write_before_telling<T>(); });
  if (choice < 52) return by_type([&]<class T>(std::type_identity<T>) { copy_in_or_out<T>(unsigned(below(4))); });
  if (choice < 57) return by_type([&]<class T>(std::type_identity<T>) { fill_window<T>(any_window(sizeof(T))); });
  if (choice < 66) return by_type([&]<class T>(std::type_identity<T>) { copy_between<T>(); });
  if (choice < 71) return by_type([&]<class T>(std::type_identity<T>) { lease_window<T>(unsigned(below(3))); });
  if (choice < 75) return mark_own_work();
  if (choice < 77) return work_unannounced();
  if (choice < 86) return bring(any_window(1));
  if (choice < 89) return hold_queue();
  if (choice < 91) return options_.spills && !one_in(4) ? spill() : release();
  if (choice < 92) return resize();
  if (choice < 93) return forget();
  if (choice < 95) return replace();
  if (choice < 96) return clone();
  if (choice < 97) return look();
  // Most stretches between two audits have no faults in them, so that their absence can be relied on.
  if (one_in(2)) arm();
}

}  // namespace unimem::testing
