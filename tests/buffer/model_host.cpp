#include "buffer/model.hpp"

#include <unimem/device/discovery.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

// What the host does to windows of buffers.
namespace unimem::testing {
namespace {

template <class T>
std::vector<std::uint8_t> bytes_of(std::span<const T> elements) {
  std::vector<std::uint8_t> bytes(elements.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

template <class T>
std::vector<T> elements_of(std::vector<std::uint8_t> const& bytes) {
  std::vector<T> elements(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

template <class T>
void put(std::span<T> elements, std::vector<std::uint8_t> const& bytes) {
  if (!bytes.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
}

}  // namespace

template <class T>
void Model::host_access(unsigned kind) {
  auto const window = any_window(sizeof(T));
  auto const count = window.range.size();
  auto const new_bytes = any_bytes(count);
  std::vector<std::uint8_t> seen;
  auto& subject = subjects_[window.subject];
  switch (kind) {
    case 0:
      if (attempt("host_view", [&] {
            auto const part = slice<T>(window);
            seen = bytes_of(part.host_view());
          })) {
        observe("host_view", window, std::move(seen), true);
      }
      break;
    case 1:
      if (attempt("host", [&] {
            auto part = slice<T>(window);
            auto const view = part.host();
            seen = bytes_of(std::span<const T>(view));
            put(view, new_bytes);
            if (subject.manual) part.mark_host_dirty();
          })) {
        observe("host", window, std::move(seen), true);
        record_write("host", window, new_bytes, true);
      }
      break;
    case 2:
      if (attempt("host_overwrite", [&] {
            auto part = slice<T>(window);
            put(part.host_overwrite(), new_bytes);
          })) {
        record_write("host_overwrite", window, new_bytes, true);
      }
      break;
    default:
      if (count == 0) return;
      static_cast<void>(attempt("at", [&] {
        auto part = slice<T>(window);
        for (std::size_t i = 0; i < part.size(); i += 1 + part.size() / 4) {
          std::memcpy(&part.at(i), new_bytes.data() + i * sizeof(T), sizeof(T));
          if (subject.manual) part.mark_host_dirty(i, 1);
          Window const element{window.subject,
                               {window.range.begin + i * sizeof(T), window.range.begin + (i + 1) * sizeof(T)}};
          auto const from = new_bytes.begin() + static_cast<std::ptrdiff_t>(i * sizeof(T));
          record_write("at", element, {from, from + static_cast<std::ptrdiff_t>(sizeof(T))}, true);
        }
      }));
      break;
  }
}

template <class T>
void Model::map_window() {
  auto const window = any_window(sizeof(T));
  auto const new_bytes = any_bytes(window.range.size());
  constexpr std::array modes{MapMode::read, MapMode::write, MapMode::read_write, MapMode::discard};
  auto const mode = modes[below(modes.size())];
  std::vector<std::uint8_t> seen;
  if (!attempt("map", [&] {
        auto mapping = slice<T>(window).map(mode);
        if (mode != MapMode::discard) seen = bytes_of(std::span<const T>(mapping.elements()));
        if (mode != MapMode::read) put(mapping.elements(), new_bytes);
        mapping.unmap();
      })) {
    return;
  }
  if (mode != MapMode::discard) observe("map", window, std::move(seen), true);
  if (mode != MapMode::read) record_write("map", window, new_bytes, true);
}

/// The library hears of a write only after it has moved what lies around it: through a mapping, or a kept pointer.
template <class T>
void Model::write_before_telling() {
  if (armed_) return;  // what a failure makes of bytes that nobody has declared is not defined
  auto const window = any_window(sizeof(T));
  auto const first = any_bytes(window.range.size()), then = any_bytes(window.range.size());
  auto part = slice<T>(window);
  if (one_in(2)) {
    std::optional<decltype(part.map(MapMode::write))> mapping;
    if (!attempt("map for a while", [&] { mapping.emplace(part.map(one_in(2) ? MapMode::write : MapMode::discard)); }))
      return;
    put(mapping->elements(), then);
    work_around(window);
    if (attempt("unmap", [&] { mapping->unmap(); })) record_write("map for a while", window, then, true);
    return;
  }
  std::span<T> kept;
  if (!attempt("keep a pointer", [&] {
        kept = part.host();
        put(kept, first);
        if (subjects_[window.subject].manual) part.mark_host_dirty();
      })) {
    return;
  }
  record_write("keep a pointer", window, first, true);
  bring({window.subject, {0, truth(window).bytes.size()}});
  // Nobody may be reading what is about to be written in place.
  for (auto& worker : workers_) worker.device->synchronize();
  put(kept, then);
  work_around(window);
  if (attempt("mark_host_dirty", [&] { part.mark_host_dirty(); })) {
    record_write("keep a pointer", window, then, true);
  }
}

template <class T>
void Model::copy_in_or_out(unsigned kind) {
  auto const window = any_window(sizeof(T));
  auto const bytes = any_bytes(window.range.size());
  auto elements = std::make_shared<std::vector<T>>(elements_of<T>(bytes));
  Event event;
  switch (kind) {
    case 0:
      if (attempt("copy_from", [&] { slice<T>(window).copy_from(*elements); })) {
        record_write("copy_from", window, bytes, true);
      }
      break;
    case 1:
      if (attempt("copy_to", [&] { slice<T>(window).copy_to(*elements); })) {
        observe("copy_to", window, bytes_of(std::span<const T>(*elements)), true);
      }
      break;
    case 2:
      if (attempt("copy_from_async", [&] { event = slice<T>(window).copy_from_async(*elements); })) {
        record("copy_from_async", event,
               [of = shared_truth(window), range = window.range, elements, bytes](bool failed) {
                 if (failed) return of->fail_on(device("cpu"), range);
                 of->write(range, bytes, true, true);
               });
      }
      break;
    default:
      if (attempt("copy_to_async", [&] { event = slice<T>(window).copy_to_async(*elements); })) {
        record("copy_to_async", event, [this, of = shared_truth(window), range = window.range, elements](bool failed) {
          if (failed) return of->fail_on_way_to_host(range);
          compare("copy_to_async", *of, range, bytes_of(std::span<const T>(*elements)));
          of->arrive_on_host(range);
        });
      } else {
        // Some of it may have been on its way when it threw.
        record("copy_to_async", {},
               [of = shared_truth(window), range = window.range](bool) { of->fail_on_way_to_host(range); });
      }
      break;
  }
}

template <class T>
void Model::fill_window(Window const& window) {
  auto const value = static_cast<T>(random_());
  std::vector<T> const filled(window.range.size() / sizeof(T), value);
  Event event;
  if (attempt("fill", [&] { event = slice<T>(window).fill_async(value); })) {
    record_work("fill", event, window, bytes_of(std::span<const T>(filled)), *workers_.front().device);  // not the cpu
  }
}

template <class T>
void Model::copy_between() {
  auto const from = any_window(sizeof(T));
  auto to = any_window(sizeof(T));
  if (one_in(3)) to = from;  // overlapping, once it has been moved
  auto const count = from.range.size();
  auto const room = subjects_[to.subject].truth->bytes.size();
  if (count > room) return;
  auto const first = to.subject == from.subject && one_in(2)
                         ? std::min(from.range.begin / sizeof(T) + below(4), (room - count) / sizeof(T))
                         : below((room - count) / sizeof(T) + 1);
  to.range = {first * sizeof(T), first * sizeof(T) + count};
  Event event;
  if (!attempt("copy", [&] { event = copy_async(slice<T>(from), slice<T>(to)); })) return;
  record("copy", event,
         [home = workers_.front().device, source = shared_truth(from), target = shared_truth(to), from = from.range,
          to = to.range](bool failed) {
           if (from == to && source == target) return;
           if (failed) return target->fail_on(*home, to);
           std::vector<Truth::Byte> const bytes(source->bytes.begin() + static_cast<std::ptrdiff_t>(from.begin),
                                                source->bytes.begin() + static_cast<std::ptrdiff_t>(from.end));
           target->note(to, "copied from another window");
           for (std::size_t i = 0; i < bytes.size(); ++i) {
             target->bytes[to.begin + i] = {
                 bytes[i].value, bytes[i].defined, false, false, false, target->bytes[to.begin + i].value};
           }
         });
}

#define UNIMEM_FOR_ELEMENT(T)                         \
  template void Model::host_access<T>(unsigned kind); \
  template void Model::map_window<T>();               \
  template void Model::copy_in_or_out<T>(unsigned);   \
  template void Model::fill_window<T>(Window const&); \
  template void Model::write_before_telling<T>();     \
  template void Model::copy_between<T>();
UNIMEM_FOR_ELEMENT(std::uint8_t)
UNIMEM_FOR_ELEMENT(std::uint16_t)
UNIMEM_FOR_ELEMENT(std::uint32_t)
UNIMEM_FOR_ELEMENT(std::uint64_t)
#undef UNIMEM_FOR_ELEMENT

}  // namespace unimem::testing
