#include <unimem/manager/memory_manager.hpp>
#include <unimem/report/exit_report.hpp>
#include <unimem/report/json.hpp>
#include <unimem/report/prometheus.hpp>
#include <unimem/report/text.hpp>

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "manager_records.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// What is said of a record, by the library itself: the record is turned back into what it was made from.
template <Recorded S, class F>
auto saying(F say) {
  return [say](nb::handle record) {
    auto const value = value_of<S>(record);
    return unlocked([&] { return say(value); });
  };
}

void bind_texts(nb::module_& m) {
  m.def("_statistics_json", saying<GlobalMemoryStatistics>([](auto const& s) { return to_json(s); }));
  m.def("_statistics_prometheus", saying<GlobalMemoryStatistics>([](auto const& s) { return to_prometheus(s); }));
  m.def("_statistics_text", saying<GlobalMemoryStatistics>([](auto const& s) { return to_text(s); }));
  m.def("_snapshot_json", saying<MemorySnapshot>([](auto const& s) { return to_json(s); }));
  m.def("_snapshot_prometheus", saying<MemorySnapshot>([](auto const& s) { return to_prometheus(s); }));
  m.def("_snapshot_text", saying<MemorySnapshot>([](auto const& s) { return to_text(s); }));
  m.def("_block_statistics_json", saying<PoolStatistics>([](auto const& s) { return to_json(s); }));
  m.def("_usage_json", saying<Usage>([](auto const& u) { return to_json(u); }));
  m.def("_usage_prometheus", saying<Usage>([](auto const& u) { return to_prometheus(u); }));
  m.def("_usage_text", saying<Usage>([](auto const& u) { return to_text(u); }));
  m.def("_leaks_text", [](nb::handle record, std::size_t most) {
    auto const report = value_of<LeakReport>(record);
    return unlocked([&] { return report.text(most); });
  });
  m.def("_decision_why", saying<PlacementDecision>([](auto const& d) { return d.why(); }));
  m.def("_recommendations_text",
        saying<PlacementRecommendations>([](auto const& r) { return std::string(to_string(r)); }));
  m.def("_optimization_text", saying<OptimizationReport>([](auto const& r) { return r.text(); }));
  m.def(
      "describe_address", [](std::uintptr_t address) { return unlocked([&] { return describe_address(address); }); },
      nb::arg("address"), "A call of a captured stack in words, as far as the program's symbols tell.");
  m.def("can_capture_stacks", &can_capture_stacks, "Whether the library was built with what captures stacks.");
  m.def("can_expose_to_prometheus", &can_expose_to_prometheus,
        "Whether the library was built with what writes Prometheus' format.");
}

void bind_looks(nb::class_<MemoryManager>& manager) {
  manager
      .def(
          "_statistics",
          [](MemoryManager const& self) {
            auto const statistics = unlocked([&] { return self.statistics(); });
            return record_of(statistics);
          },
          nb::sig("def _statistics(self) -> unimem._manager_records.GlobalMemoryStatistics"))
      .def(
          "_snapshot",
          [](MemoryManager const& self) {
            auto const snapshot = unlocked([&] { return self.snapshot(); });
            return record_of(snapshot);
          },
          nb::sig("def _snapshot(self) -> unimem._manager_records.MemorySnapshot"))
      .def(
          "_usage",
          [](MemoryManager const& self) {
            auto const usage = unlocked([&] { return self.usage(); });
            return record_of(usage);
          },
          nb::sig("def _usage(self) -> unimem._manager_records.Usage"))
      .def(
          "_live",
          [](MemoryManager const& self) {
            auto const live = unlocked([&] { return self.live(); });
            return Conversion<std::vector<LiveAllocation>>::to(live);
          },
          nb::sig("def _live(self) -> tuple[unimem._manager_records.LiveAllocation, ...]"))
      .def(
          "_leak_report",
          [](MemoryManager const& self) {
            auto const report = unlocked([&] { return self.leak_report(); });
            return record_of(report);
          },
          nb::sig("def _leak_report(self) -> unimem._manager_records.LeakReport"))
      .def(
          "_recommendations",
          [](MemoryManager& self, Device& on) {
            auto const recommendations = unlocked([&] { return self.recommendations(on); });
            return record_of(recommendations);
          },
          nb::sig("def _recommendations(self, on: Device, /) -> unimem._manager_records.PlacementRecommendations"))
      .def(
          "_place",
          [](MemoryManager& self, Device& on, std::size_t bytes, int placement, int access, std::string const& name) {
            PlacementQuestion const question{bytes, static_cast<Placement>(placement),
                                             static_cast<AccessPattern>(access)};
            auto const decision = unlocked([&] { return self.place(on, question, Name(name)); });
            return record_of(decision);
          },
          nb::sig("def _place(self, on: Device, bytes: int, placement: int, access: int, name: str, /) -> "
                  "unimem._manager_records.PlacementDecision"))
      .def(
          "_optimize",
          [](MemoryManager& self, std::size_t max_pinned_bytes, std::size_t max_placed_bytes) {
            auto const report = unlocked([&] { return self.optimize({max_pinned_bytes, max_placed_bytes}); });
            return record_of(report);
          },
          nb::sig("def _optimize(self, max_pinned_bytes: int, max_placed_bytes: int, /) -> "
                  "unimem._manager_records.OptimizationReport"));
}

}  // namespace

void bind_reports(nb::module_& m, nb::class_<MemoryManager>& manager) {
  bind_texts(m);
  bind_looks(manager);
}

}  // namespace unimem::python
