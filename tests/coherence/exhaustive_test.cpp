#include "coherence/shadow_model.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace unimem::testing {
namespace {

struct Operation {
  std::string name;
  std::function<void(ShadowModel&)> run;
};

/// Every operation there is on a buffer of `bytes` bytes at `places` places; those that write, once more failing.
std::vector<Operation> every_operation(std::size_t bytes, Place places) {
  std::vector<Operation> all;
  auto const also_failing = [&](std::string const& name, auto start) {
    all.push_back({name, [=](ShadowModel& model) { start(model); }});
    all.push_back({name + " failing", [=](ShadowModel& model) {
                     if (auto const started = start(model)) model.fail(*started);
                   }});
  };
  std::vector<ByteRange> ranges{{0, 0}};
  for (std::size_t begin = 0; begin < bytes; ++begin)
    for (std::size_t end = begin + 1; end <= bytes; ++end) ranges.push_back({begin, end});

  for (Place place = 0; place < places; ++place) {
    for (auto const range : ranges) {
      auto const where = fmt::format("[{}, {}) at {}", range.begin, range.end, place);
      for (auto const& [use, verb] :
           {std::pair{Intent::read, "read "}, {Intent::write, "write "}, {Intent::read_write, "change "}}) {
        also_failing(verb + where,
                     [=, intent = use](ShadowModel& model) { return model.access(place, range, intent); });
      }
      also_failing("mark " + where, [=](ShadowModel& model) { return model.mark(place, range); });
    }
    for (Place to = 0; to < places; ++to) {
      if (to == place) continue;
      also_failing(fmt::format("save {} to {}", place, to),
                   [=](ShadowModel& model) { return model.release(place, to); });
    }
    all.push_back({fmt::format("storage at {} comes or goes", place), [=](ShadowModel& model) {
                     model.has_storage(place) ? model.remove_storage(place) : model.add_storage(place);
                   }});
  }
  for (auto const range : ranges) {
    all.push_back(
        {fmt::format("lose [{}, {})", range.begin, range.end), [=](ShadowModel& model) { model.lose(range); }});
  }
  all.push_back({"discard", [](ShadowModel& model) { model.discard(); }});
  return all;
}

constexpr std::size_t until_nothing_is_new = 1'000;
constexpr ShadowModel::Added in_a_file{{}, true};

/// How far to go on what: all sequences of up to `depth` operations, in long runs (UNIMEM_TEST_OPERATIONS is set) of up
/// to `long_depth`.
struct Reach {
  char const* name;
  std::size_t bytes;
  std::vector<ShadowModel::Added> added;
  std::size_t depth;
  std::size_t long_depth;
};

std::size_t depth_for(Reach const& reach) {
  if (std::getenv("UNIMEM_TEST_OPERATIONS") != nullptr) return reach.long_depth;
#ifdef NDEBUG
  return reach.depth;
#else
  return reach.depth - 1;  // every step takes several times as long where every mutation is validated
#endif
}

void PrintTo(Reach const& reach, std::ostream* out) {
  *out << reach.name;
}

class EveryShortSequence : public ::testing::TestWithParam<Reach> {};

/// Sequences that lead to the same standing have the same future, so each standing is continued once: that is every
/// sequence, in a fraction of the time.
TEST_P(EveryShortSequence, AgreesWithTheShadowModel) {
  struct Node {
    ShadowModel model;
    std::vector<std::size_t> path;
  };
  auto const& reach = GetParam();
  auto const depth_limit = depth_for(reach);
  // Long enough a latency to join two single bytes across a third.
  auto const cost = [](Place from, Place, std::size_t bytes) { return 1.5 + from + static_cast<double>(bytes); };
  ShadowModel const fresh(reach.bytes, reach.added, cost);
  auto const operations = every_operation(reach.bytes, fresh.place_count());

  std::unordered_set<std::string> known{fresh.fingerprint()};
  std::vector<Node> frontier{{fresh, {}}};
  std::size_t carried_out = 0;
  bool found_new = true;
  for (std::size_t depth = 0; depth < depth_limit && found_new; ++depth) {
    bool const last = depth + 1 == depth_limit;
    found_new = false;
    std::vector<Node> next;
    for (auto const& node : frontier) {
      for (std::size_t operation = 0; operation < operations.size(); ++operation) {
        auto model = node.model;
        try {
          operations[operation].run(model);
        } catch (std::exception const& violation) {
          for (auto const step : node.path) std::cout << "  " << operations[step].name << '\n';
          FAIL() << "after these, " << operations[operation].name << ": " << violation.what();
        }
        ++carried_out;
        if (!known.insert(model.fingerprint()).second) continue;
        found_new = true;
        if (last) continue;
        next.push_back({std::move(model), node.path});
        next.back().path.push_back(operation);
      }
    }
    frontier = std::move(next);
  }
  std::cout << fmt::format("{}: {} standings{}, {} operations\n", reach.name, known.size(),
                           found_new ? "" : ", all there are", carried_out);
}

INSTANTIATE_TEST_SUITE_P(Buffers, EveryShortSequence,
                         ::testing::Values(Reach{"one_byte", 1, {{}, {}}, until_nothing_is_new, until_nothing_is_new},
                                           Reach{"two_bytes", 2, {{}, {}}, 4, until_nothing_is_new},
                                           Reach{"three_bytes", 3, {{}, {}}, 3, 5},
                                           Reach{"one_device", 3, {{}}, 5, until_nothing_is_new},
                                           Reach{"shared_with_host", 2, {{host_place}, {}}, 4, until_nothing_is_new},
                                           Reach{"shared_by_devices", 2, {{}, {Place{1}}}, 4, until_nothing_is_new},
                                           Reach{"device_and_file", 2, {{}, in_a_file}, 4, until_nothing_is_new},
                                           Reach{"shared_and_file", 2, {{host_place}, in_a_file}, 4, 6}),
                         [](auto const& reach) { return std::string(reach.param.name); });

}  // namespace
}  // namespace unimem::testing
