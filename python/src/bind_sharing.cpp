#include <unimem/core/error.hpp>
#include <unimem/share/buffer_id.hpp>
#include <unimem/share/buffer_ref.hpp>
#include <unimem/share/buffer_registry.hpp>
#include <unimem/share/detail/sent_buffers.hpp>
#include <unimem/share/shared_list.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <charconv>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "bindings.hpp"
#include "buffer_ids.hpp"
#include "departures.hpp"
#include "gil.hpp"
#include "window.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// "00c0ffee15900d1d-42", as `to_string` spells it; an id of nothing for what is no such text, so that NotFound names
/// it.
BufferId id_from(std::string_view text) {
  BufferId id;
  constexpr std::ptrdiff_t digits = 16;
  if (text.find('-') != digits) return {};
  auto const* const begin = std::to_address(text.begin());
  auto const* const dash = begin + digits;
  auto const* const end = std::to_address(text.end());
  auto const first = std::from_chars(begin, dash, id.registry, 16);
  auto const second = std::from_chars(dash + 1, end, id.number);
  bool const read = first.ec == std::errc{} && first.ptr == dash && second.ec == std::errc{} && second.ptr == end;
  return read ? id : BufferId{};
}

nb::object window_of(nb::handle type, std::shared_ptr<BufferCore> core, std::size_t offset,
                     std::vector<std::size_t> shape, nb::object dtype, bool whole) {
  nb::object result = nb::inst_alloc(type);
  new (nb::inst_ptr<Window>(result)) Window(std::move(core), offset, std::move(shape), std::move(dtype), whole);
  nb::inst_mark_ready(result);
  return result;
}

/// Other processes' texts, of any bytes: U+FFFD for what is no UTF-8.
nb::object text_of(std::string const& bytes) {
  return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

nb::tuple extents_of(Shape const& shape) {
  nb::list extents;
  for (auto const extent : shape.extents()) extents.append(extent);
  return nb::tuple(extents);
}

nb::tuple listed(SharedWithOthers const& one) {
  nb::list holders;
  for (auto const& [pid, command, alive, serves, reading, writing] : one.holders) {
    holders.append(nb::make_tuple(pid, text_of(command), alive, serves, reading, writing));
  }
  return nb::make_tuple(to_string(one.id), text_of(one.name), text_of(one.buffer), text_of(one.element),
                        extents_of(one.shape), one.bytes, nb::tuple(holders), one.lost_bytes, text_of(one.trouble));
}

/// What it raises is logged by the library. The package ends all subscriptions before the interpreter ends, so that no
/// call can be waiting for its lock then.
PeerDeathCallback told_of_deaths(nb::object const& callback) {
  std::shared_ptr<PyObject> const function(callback.inc_ref().ptr(), [](PyObject* object) { depart(object); });
  return [function](PeerDeath const& death) {
    if (Ending::leaves_out_this_thread()) return;
    nb::gil_scoped_acquire const acquired;
    nb::list ids;
    for (auto const id : death.buffers) ids.append(to_string(id));
    nb::borrow(function.get())(death.pid, nb::tuple(ids), death.lost_bytes);
  };
}

ElementTag tag_of(int tag) {
  return static_cast<ElementTag>(tag);
}

}  // namespace

BufferId checked_id(std::string const& text) {
  auto const id = id_from(text);
  // In the words of a registry, which would only say "none".
  if (!id) throw NotFound("buffer", text, {}, "it is no id: sixteen hexadecimal digits, a dash, a number");
  return id;
}

void bind_sharing(nb::module_& m) {
  m.def("_publish", [](Window& window, std::string name, bool cross_process) {
    auto core = window.live();
    Shape shape(window.shape());
    auto const element = element_of(window.dtype());
    if (cross_process) window.drop_host();
    return unlocked([&] {
      return to_string(registry().publish_core({std::move(core), std::move(shape)}, element,
                                               SharedOptions{std::move(name), cross_process}));
    });
  });
  m.def("_open", [](nb::handle type, std::string const& text, nb::object dtype) {
    auto const id = checked_id(text);
    auto const element = element_of(dtype);
    auto found = unlocked([&] { return registry().open_core(id, element); });
    auto const extents = found.shape.extents();
    return window_of(type, std::move(found.core), 0, {extents.begin(), extents.end()}, std::move(dtype), true);
  });
  m.def("_send_shared", [](Window& window) {
    auto const core = window.live();
    window.drop_host();
    look_out_on_host(*core, window.range(), Intent::read);
    return unlocked([&] { return to_string(detail::send_shared(core)); });
  });
  m.def("_send_copy_within", [](std::size_t most_waiting, Window& window) {
    auto const core = window.live();
    auto const range = window.range();
    look_out_on_host(*core, range, Intent::read);
    return unlocked([&]() -> std::optional<std::string> {
      auto const id = detail::send_copy_within(most_waiting, *core, range);
      if (!id) return std::nullopt;
      return to_string(*id);
    });
  });
  m.def("_withdraw_sent", [](std::string const& text) {
    auto const id = checked_id(text);
    unlocked([&] { detail::withdraw_sent(id); });
  });
  m.def("_sent_and_not_received", [] {
    auto const waiting = unlocked([] { return detail::sent_and_not_received(); });
    return std::tuple(waiting.buffers, waiting.copied_bytes);
  });
  m.def("_hand_over_sent", [](int socket) { return unlocked([&] { return detail::hand_over_sent(socket); }); });
  m.def("_running_process", [](std::uint32_t pid) -> std::optional<std::tuple<std::uint32_t, std::uint64_t>> {
    auto const found = unlocked([&] { return detail::running_process(pid); });
    if (!found) return std::nullopt;
    return std::tuple(found->pid, found->started);
  });
  m.def("_dtype_of_id", [](std::string const& text) {
    auto const id = checked_id(text);
    return dtype_of(unlocked([&] { return registry().element_of(id); }));
  });
  m.def("_refer", [](std::string const& text, std::size_t offset, std::size_t count) {
    auto const id = checked_id(text);
    auto const ref = unlocked([&] { return registry().refer(id, offset, count); });
    return nb::make_tuple(ref.offset, ref.count, static_cast<int>(ref.element));
  });
  m.def("_resolve",
        [](nb::handle type, std::string const& text, std::size_t offset, std::size_t count, int tag, nb::object dtype) {
          BufferRef const ref{checked_id(text), offset, count, tag_of(tag)};
          auto const element = element_of(dtype);
          auto found = unlocked([&] { return registry().resolve_core(ref, &element); });
          auto const elements = found.range.size() / element.bytes;
          return window_of(type, std::move(found.core), found.range.begin, {elements}, std::move(dtype), false);
        });
  m.def("_release_id", [](std::string const& text) {
    auto const id = checked_id(text);
    unlocked([&] { registry().release(id); });
  });
  m.def("_find_id", [](std::string const& name) { return unlocked([&] { return to_string(registry().find(name)); }); });
  m.def("_contains_id", [](std::string const& text) {
    auto const id = id_from(text);
    return static_cast<bool>(id) && unlocked([&] { return registry().contains(id); });
  });
  m.def("_published", [] { return unlocked([] { return registry().size(); }); });
  m.def("_list_published", [] {
    auto const all = unlocked([] { return registry().list(); });
    nb::list result;
    for (auto const& one : all) {
      result.append(nb::make_tuple(to_string(one.id), one.name, one.buffer, one.element, extents_of(one.shape),
                                   one.bytes, one.opened, one.holders));
    }
    return result;
  });
  m.def("_shared_on_this_host", [] {
    auto const all = unlocked([] { return shared_on_this_host(); });
    nb::list buffers, sent, unanswered;
    for (auto const& one : all.buffers) buffers.append(listed(one));
    for (auto const& [pid, command, copies, copied_bytes, shared, shared_bytes] : all.sent) {
      sent.append(nb::make_tuple(pid, text_of(command), copies, copied_bytes, shared, shared_bytes));
    }
    for (auto const& one : all.unanswered) unanswered.append(text_of(one));
    return nb::make_tuple(buffers, sent, nb::tuple(unanswered));
  });
  nb::class_<PeerDeathSubscription>(m, "_PeerDeathSubscription")
      .def(
          "end", [](PeerDeathSubscription& self) { unlocked([&] { self.end(); }); },
          "Waits for a call that is going on, but for one that it is ended from.");
  m.def(
      "_on_peer_death",
      [](nb::object const& callback) {
        auto call = told_of_deaths(callback);
        return unlocked(
            [&] { return std::make_unique<PeerDeathSubscription>(registry().on_peer_death(std::move(call))); });
      },
      nb::arg("callback"));
  m.def("_tell_of_the_end", [] { unlocked([] { detail::tell_of_the_end(); }); });
  m.def("_ref_to_wire", [](std::string const& text, std::size_t offset, std::size_t count, int tag) {
    auto const wire = BufferRef{checked_id(text), offset, count, tag_of(tag)}.to_wire();
    return nb::bytes(reinterpret_cast<char const*>(wire.data()), wire.size());
  });
  m.def("_ref_from_wire", [](nb::bytes const& bytes) {
    auto const ref = BufferRef::from_wire({reinterpret_cast<std::byte const*>(bytes.c_str()), bytes.size()});
    return nb::make_tuple(to_string(ref.id), ref.offset, ref.count, static_cast<int>(ref.element));
  });
}

}  // namespace unimem::python
