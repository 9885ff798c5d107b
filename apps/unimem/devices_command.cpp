#include "commands.hpp"
#include "standard_streams.hpp"

#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/report/json.hpp>
#include <unimem/report/text.hpp>

namespace unimem::cli {

int run(PrintText const& text) {
  write_standard_output(text.text);
  return 0;
}

int run(DevicesCommand const& command) {
  auto& manager = default_manager();
  auto list = list_devices(manager);
  if (command.links) list.links = manager.links().among(devices());
  auto const detail = command.verbose ? ReportDetail::full : ReportDetail::brief;
  // A program that reads the list gets the JSON of the contract without asking; a person gets a table.
  bool const json = command.json || !standard_output_is_terminal();
  write_standard_output(json ? to_json(list, detail) + '\n' : to_text(list, detail));
  return 0;
}

}  // namespace unimem::cli
