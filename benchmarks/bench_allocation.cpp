// What an allocation costs: our pool of host memory beside the allocators of this system, in one run. Every workload
// and allocator gets a process of its own, in turns; the figures are medians over all of them with the quartiles.
//
//     bench_allocation [--quick] [--only WORKLOAD,…] [--rounds N] [--umf LIBUMF.so.1]
//
// Allocators that are not installed have a line that says so. --quick measures next to nothing: it shows that the
// program runs. What a process of its own does: bench_allocation --measure WORKLOAD --allocator NAME.

#include "allocation_workloads.hpp"
#include "host_allocators.hpp"
#include "spread.hpp"

#include <unimem/core/size.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace unimem;
using namespace unimem::bench;

struct Options {
  bool quick = false;
  int rounds = 5;
  std::string only, umf, workload, allocator;
};

// ---- One workload on one allocator
// ------------------------------------------------------------------------------------

/// A second thread, asleep: an allocator that spares its locks while there is one thread is not measured by that.
class Company {
 public:
  Company() : thread_([this] { here_.arrive_and_wait(), over_.arrive_and_wait(); }) { here_.arrive_and_wait(); }
  ~Company() { over_.arrive_and_wait(); }

 private:
  std::barrier<> here_{2}, over_{2};
  std::jthread thread_;
};

int measure_here(Options const& options) {
  Company const company;
  auto const extent = options.quick ? Extent::quick() : Extent{};
  try {
    with_host_allocator(options.allocator, options.umf, [&](auto& allocator) {
      fmt::print("version {}\n", allocator.version());
      measure(options.workload, allocator, extent);
    });
  } catch (Unavailable const& error) {
    fmt::print("unavailable {}\n", error.what());
  }
  std::fflush(stdout);
  std::_Exit(0);  // an allocator is not asked to tidy up
}

// ---- All of them
// ------------------------------------------------------------------------------------------------------

/// What the process of one workload and allocator printed, and whether it came to its end.
std::string output_of(Options const& options, std::string_view workload, std::string_view allocator, bool& ended) {
  std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe").string(),
                                 "--measure",
                                 std::string(workload),
                                 "--allocator",
                                 std::string(allocator),
                                 "--umf",
                                 options.umf};
  if (options.quick) words.emplace_back("--quick");
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  int const failure = ::posix_spawn(&child, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> piece{};
  for (ssize_t count = 0; (count = ::read(ends[0], piece.data(), piece.size())) > 0;) {
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  if (failure != 0) throw std::runtime_error("cannot start a process");
  int status = 0;
  ::waitpid(child, &status, 0);
  ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return text;
}

/// Figures by allocator and key.
using Figures = std::map<std::string, std::map<std::string, std::vector<double>>, std::less<>>;

class Run {
 public:
  explicit Run(Options const& options) : options_(options) {}

  void measure(std::string_view workload) {
    for (int round = 0; round < options_.rounds; ++round) {
      for (auto const name : host_allocators) {
        auto const allocator = std::string(name);
        bool ended = false;
        std::istringstream lines(output_of(options_, workload, allocator, ended));
        for (std::string key; lines >> key;) {
          std::string rest;
          std::getline(lines >> std::ws, rest);
          if (key == "version") {
            versions_[allocator] = rest;
          } else if (key == "unavailable") {
            versions_[allocator] = "not measured: " + rest;
          } else {
            figures_[allocator][key].push_back(std::stod(rest));
          }
        }
        if (!ended) versions_[allocator] += "; its process did not come to an end in " + std::string(workload);
      }
    }
  }

  /// One line an allocator, one column a key.
  void print(std::string const& title, std::vector<std::pair<std::string, std::string>> const& columns) const {
    fmt::print("\n{}\n  {:<14}", title, "");
    for (auto const& [key, name] : columns) fmt::print(" {:>23}", name);
    fmt::print("\n");
    for (auto const allocator : host_allocators) {
      if (!figures_.contains(allocator)) continue;
      fmt::print("  {:<14}", allocator);
      for (auto const& [key, name] : columns) fmt::print(" {:>23}", cell(allocator, key));
      fmt::print("\n");
    }
  }

  /// The same by block size, the keys being the workload's name and the size.
  void print_sizes(std::string const& title, std::string_view workload) const {
    std::vector<std::pair<std::string, std::string>> columns;
    for (auto const bytes : block_sizes)
      columns.emplace_back(fmt::format("{}/{}", workload, bytes), format_size(bytes));
    print(title, columns);
    if (workload != "threads") print_ratios(columns, workload == "passing");
  }

  void judge(std::string const& what, std::string const& key, bool at_most, double target) const {
    auto const ours = values("unimem", key);
    if (ours.empty() || options_.quick) return;
    auto const median = spread(ours).median;
    bool const met = at_most ? median <= target : median >= target;
    fmt::print("  {:<58} {:>9.3g}, {} {:g} wanted: {}\n", what, median, at_most ? "at most" : "at least", target,
               met ? "met" : "MISSED");
  }

  /// What was measured of nothing in the processes of all allocators: what the machine has to give.
  [[nodiscard]] Spread of_nothing(std::string const& key) const {
    std::vector<double> all;
    for (auto const allocator : host_allocators) {
      auto const some = values(allocator, key);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all.empty() ? Spread{} : spread(all);
  }

  void print_versions() const {
    fmt::print("\nallocators\n");
    for (auto const& [allocator, version] : versions_) fmt::print("  {:<14} {}\n", allocator, version);
  }

 private:
  [[nodiscard]] std::vector<double> values(std::string_view allocator, std::string const& key) const {
    auto const of_allocator = figures_.find(allocator);
    if (of_allocator == figures_.end()) return {};
    auto const found = of_allocator->second.find(key);
    return found == of_allocator->second.end() ? std::vector<double>{} : found->second;
  }

  [[nodiscard]] std::string cell(std::string_view allocator, std::string const& key) const {
    auto const found = values(allocator, key);
    if (found.empty()) return "-";
    auto const [low, median, high] = spread(found);
    return fmt::format("{:.3g} ({:.3g} to {:.3g})", median, low, high);
  }

  /// What the others take of what ours takes, the best and the worst of them, by column.
  void print_ratios(std::vector<std::pair<std::string, std::string>> const& columns, bool more_is_better) const {
    fmt::print("  {:<14}", "best / ours");
    for (auto const& [key, name] : columns) {
      auto const ours = values("unimem", key);
      std::string best = "-";
      double best_ratio = 0;
      for (auto const allocator : host_allocators) {
        auto const theirs = values(allocator, key);
        if (allocator == "unimem" || ours.empty() || theirs.empty()) continue;
        auto const ratio = spread(theirs).median / spread(ours).median;
        if (best != "-" && (more_is_better ? ratio <= best_ratio : ratio >= best_ratio)) continue;
        best_ratio = ratio;
        best = fmt::format("{:.2f} {}", ratio, allocator);
      }
      fmt::print(" {:>23}", best);
    }
    fmt::print("\n");
  }

  Options const& options_;
  Figures figures_;
  std::map<std::string, std::string> versions_;
};

void print_results(Run const& run, std::string_view workload) {
  auto const mebi = std::size_t{1} << 20;
  if (workload == "pair") {
    run.print_sizes("a warm block taken and given back at once: ns a pair", workload);
    for (auto const bytes : block_sizes)
      run.judge("pair of " + format_size(bytes), fmt::format("pair/{}", bytes), true, 12);
  } else if (workload == "instructions") {
    run.print_sizes("the same: instructions a pair, those of the loop included", workload);
  } else if (workload == "queue") {
    run.print_sizes("64 blocks in use, the oldest given back before the next is taken: ns a pair", workload);
    for (auto const bytes : block_sizes) {
      run.judge("64-deep queue of " + format_size(bytes), fmt::format("queue/{}", bytes), true,
                bytes <= mebi ? 20 : 60);
    }
  } else if (workload == "threads") {
    run.print_sizes("pairs on two threads: speed-up over that of an empty loop", workload);
    auto const [low, median, high] = run.of_nothing("threads/empty");
    fmt::print("  the empty loop's own speed-up: {:.2f} ({:.2f} to {:.2f})\n", median, low, high);
    if (median < 1.5)
      fmt::print("  which says that this machine is busy, or has less than two cores: little is to be learnt\n");
    for (auto const bytes : block_sizes) {
      run.judge("two threads, " + format_size(bytes), fmt::format("threads/{}", bytes), false, 0.9);
    }
  } else if (workload == "passing") {
    run.print_sizes("one thread takes, another gives back: million pairs/s", workload);
    fmt::print("  the ring between them, with nothing in it:");
    for (auto const bytes : block_sizes) {
      auto const [low, median, high] = run.of_nothing(fmt::format("ring/{}", bytes));
      fmt::print(" {:.3g} ({:.3g} to {:.3g})", median, low, high);
    }
    fmt::print("\n");
    for (auto const bytes : block_sizes) {
      run.judge("producer and consumer, " + format_size(bytes), fmt::format("passing/{}", bytes), false, 4);
    }
  } else if (workload == "mixed") {
    run.print("1,000,000 operations, log-uniform 256 B to 64 MiB, 4 GiB live, untouched",
              {{"mixed/ns", "ns an operation"},
               {"mixed/processor", "of them the processor's"},
               {"mixed/reserved", "reserved / live"},
               {"mixed/writable", "writable / live"}});
    run.judge("mixed trace, ns an operation", "mixed/ns", true, 100);
    run.judge("mixed trace, reserved / live", "mixed/reserved", true, 1.10);
  } else if (workload == "touched") {
    run.print("4,000 operations of that kind, 1 GiB live, every page touched",
              {{"touched/resident", "resident / live"}, {"touched/seconds", "seconds"}});
    run.judge("touched trace, resident / live", "touched/resident", true, 1.10);
  } else {
    run.print("64 MiB taken and written whole, the block being warm",
              {{"write/ms", "ms"}, {"write/gain", "times as fast as fresh"}});
  }
}

Options options_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string_view const word = argv[i];
    auto const value = [&]() -> std::string {
      if (i + 1 == argc) throw std::invalid_argument(fmt::format("{} needs a value", word));
      return argv[++i];
    };
    if (word == "--quick") {
      options.quick = true;
      options.rounds = 1;
    } else if (word == "--only") {
      options.only = value();
    } else if (word == "--rounds") {
      options.rounds = std::max(1, std::stoi(value()));
    } else if (word == "--umf") {
      options.umf = value();
    } else if (word == "--measure") {
      options.workload = value();
    } else if (word == "--allocator") {
      options.allocator = value();
    } else {
      throw std::invalid_argument(fmt::format("unknown argument {}", word));
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto const options = options_of(argc, argv);
    if (!options.workload.empty()) return measure_here(options);
    // jemalloc asks for more thread-local room than a library that is loaded later is given by default.
    ::setenv("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384", 1);
    fmt::print("medians of processes of their own, in turns, and the quartiles\n");
    if (options.quick) fmt::print("quick: far less of everything, no figure means anything\n");
    Run run(options);
    for (auto const workload : workloads) {
      if (!options.only.empty() && ("," + options.only + ",").find(fmt::format(",{},", workload)) == std::string::npos)
        continue;
      run.measure(workload);
      print_results(run, workload);
      std::fflush(stdout);
    }
    run.print_versions();
    return 0;
  } catch (std::exception const& error) {
    fmt::print(stderr, "bench_allocation: {}\n", error.what());
    return 1;
  }
}
