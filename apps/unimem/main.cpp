#include "commands.hpp"
#include "standard_streams.hpp"

#include <unimem/core/error.hpp>
#include <unimem/report/exit_report.hpp>

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <string_view>
#include <variant>

namespace {

constexpr int wrong_command_line = 2;

void complain_of(std::string_view reason) {
  unimem::cli::complain(fmt::format("unimem: {}", reason));
}

}  // namespace

int main(int argc, char** argv) {
  namespace cli = unimem::cli;
  try {
    cli::secure_standard_streams();
    return std::visit([](auto const& command) { return cli::run(command); }, cli::parse_command_line(argc, argv));
  } catch (cli::UsageError const& error) {
    complain_of(error.what());
    return wrong_command_line;
  } catch (unimem::KernelError const& error) {
    complain_of(fmt::format("kernel '{}': {}", error.name, error.reason));
    auto const& log = error.build_log;
    if (!log.empty()) cli::complain_verbatim(log.ends_with('\n') ? log : log + '\n');
  } catch (unimem::OutOfMemory const& error) {
    // The holders listed on further lines are for programs that look for leaks.
    std::string_view const reason = error.what();
    complain_of(reason.substr(0, reason.find('\n')));
  } catch (unimem::Error const& error) {
    complain_of(error.what());
  } catch (std::bad_alloc const&) {
    complain_of("out of host memory");
  } catch (std::exception const& error) {
    complain_of(error.what());
  }
  return EXIT_FAILURE;
}
