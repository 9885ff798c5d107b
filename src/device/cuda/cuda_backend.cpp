#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "device/backends.hpp"
#include "device/cuda/cuda_device.hpp"
#include "device/cuda/hardware.hpp"
#include "device/numbered_id.hpp"

#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace unimem::detail {
namespace {

/// Options as in `memory=4GiB,profile=1`, each at most once.
cuda::CudaOptions read_options(std::string_view text) {
  cuda::CudaOptions options;
  std::set<std::string_view> said;
  for (auto rest = text; !text.empty();) {
    auto const comma = rest.find(',');
    auto const option = rest.substr(0, comma);
    auto const equals = option.find('=');
    auto const name = option.substr(0, equals);
    auto const value = equals == std::string_view::npos ? std::string_view{} : option.substr(equals + 1);
    bool const flag = value == "0" || value == "1", yes = value == "1";
    bool known = said.insert(name).second;
    if (name == "memory") {
      options.memory_bytes = parse_size(value, name);
    } else if (name == "pinned") {
      options.pinned_bytes = parse_size(value, name);
    } else if (name == "staging") {
      options.staging_threshold = parse_size(value, name);
    } else if (name == "allocator" && (value == "pages" || value == "plain" || value == "async")) {
      options.source = value == "async" ? cuda::Source::stream_ordered : cuda::Source::plain;
      options.maps_pages = value == "pages";
    } else if (name == "profile" && flag) {
      options.profiles = yes;
    } else if (name == "batches" && flag) {
      options.batches = yes;
    } else if (name == "blocking" && flag) {
      options.blocking = yes;
    } else if (name == "shareable" && flag) {
      options.exports_memory = yes;
    } else if (name == "write_combined" && flag) {
      options.write_combined = yes;
    } else {
      known = false;
    }
    if (!known || (options.memory_bytes && *options.memory_bytes == 0)) {
      throw InvalidArgument("CUDA device options", std::string(text),
                            "memory=SIZE, pinned=SIZE, staging=SIZE, allocator=pages|plain|async, profile=0|1, "
                            "batches=0|1, blocking=0|1, shareable=0|1 and write_combined=0|1, each once");
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return options;
}

}  // namespace

FoundDevices find_cuda_devices() {
  auto const& installation = cuda::installation();
  FoundDevices found{{}, installation.reason};
  for (std::size_t index = 0; index < installation.hardware.size(); ++index) {
    found.devices.push_back(std::make_unique<cuda::CudaDevice>(numbered_id("cuda", index), installation.hardware[index],
                                                               cuda::CudaOptions{}));
  }
  return found;
}

std::unique_ptr<Device> open_cuda_device(std::size_t index, std::string_view options) {
  auto const& installation = cuda::installation();
  auto id = numbered_id("cuda", index, options, installation.hardware.size());
  return std::make_unique<cuda::CudaDevice>(std::move(id), installation.hardware[index], read_options(options));
}

}  // namespace unimem::detail
