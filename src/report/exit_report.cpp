#include <unimem/report/exit_report.hpp>

#include <unimem/core/environment.hpp>
#include <unimem/core/log.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/report/json.hpp>

#include "core/unique_fd.hpp"
#include "core/write_all.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
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
  pid_t process;
};

Wish const* wish = nullptr;

void write_report() noexcept {
  if (getpid() != wish->process) return;  // the file is the parent's
  auto const& path = wish->path;
  try {
    auto const text = to_json(default_manager().snapshot()) + '\n';
    detail::UniqueFd const file{::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
    auto const problem = file ? detail::write_all(file.get(), text) : std::error_code{errno, std::generic_category()};
    if (problem) complain(path, problem.message());
  } catch (std::exception const& error) {
    complain(path, error.what());
  }
}

[[maybe_unused]] bool const loaded = (report_at_exit(), true);

}  // namespace

void report_at_exit() noexcept {
  [[maybe_unused]] static bool const asked = [] {
    try {
      auto path = environment("UNIMEM_REPORT");
      if (!path) return false;
      wish = new Wish{std::move(*path), getpid()};
      return std::atexit(write_report) == 0;
    } catch (std::exception const&) {  // no memory before the program has begun: it will notice
      return false;
    }
  }();
}

}  // namespace unimem
