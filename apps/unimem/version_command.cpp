#include "commands.hpp"
#include "standard_streams.hpp"

#include <unimem/core/build.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace unimem::cli {

int run(VersionCommand const& command) {
  if (command.json) {
    nlohmann::ordered_json json;
    json["version"] = version();
    json["build"] = build_description();
    write_standard_output(json.dump() + '\n');
  } else {
    write_standard_output(fmt::format("unimem {}\nbuilt with {}\n", version(), build_description()));
  }
  return 0;
}

}  // namespace unimem::cli
