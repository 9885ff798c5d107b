#include <unimem/report/exit_report.hpp>

#include <unimem/core/detail/environment.hpp>
#include <unimem/core/log.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/report/json.hpp>

#include "core/claimed_file.hpp"
#include "core/fork.hpp"
#include "core/write_all.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace unimem {
namespace {

void complain(std::string_view path, std::string_view reason) noexcept {
  try {
    log(LogLevel::warning, fmt::format("UNIMEM_REPORT: {}: {}; there is no report", path, reason));
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): no memory for the words
  }
}

/// What was asked for when the process started. Never destroyed: it is needed when statics are.
struct Wish {
  std::string path;
  detail::UniqueFd file;  ///< this process's from its start: its children inherit the variable, and end before it
  detail::MadeHere made{};
};

Wish* wish = nullptr;

void write_report() noexcept {
  auto const& [path, file, made] = *wish;
  if (made.inherited()) return;  // the file is the parent's
  try {
    auto const text = to_json(default_manager().snapshot()) + '\n';
    if (auto const problem = detail::write_all(file.get(), text)) complain(path, problem.message());
  } catch (std::exception const& error) {
    complain(path, error.what());
  }
}

[[maybe_unused]] bool const loaded = (report_at_exit(), true);

}  // namespace

void report_at_exit() noexcept {
  [[maybe_unused]] static bool const asked = [] {
    try {
      auto const pattern = environment("UNIMEM_REPORT");
      if (!pattern) return false;
      auto path = detail::name_for_process(*pattern);
      auto [file, problem] = detail::claim_file(path);
      if (!file) {
        complain(path, problem);
        return false;
      }
      wish = new Wish{std::move(path), std::move(file)};
      // A child that lives longer would keep the file from the next process.
      static detail::Fork::Hook const closes_file{[]() noexcept { wish->file = {}; }};
      return std::atexit(write_report) == 0;
    } catch (std::exception const&) {  // no memory before the program has begun: it will notice
      return false;
    }
  }();
}

}  // namespace unimem
