#include "device/numbered_id.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace unimem::detail {

std::string numbered_id(std::string_view backend, std::size_t index) {
  return fmt::format("{}:{}", backend, index);
}

std::string numbered_id(std::string_view backend, std::size_t index, std::string_view options, std::size_t count) {
  auto id = numbered_id(backend, index);
  if (index >= count) {
    std::vector<std::string> available;
    available.reserve(count);
    for (std::size_t i = 0; i < count; ++i) available.push_back(numbered_id(backend, i));
    throw NotFound("device", id, std::move(available));
  }
  return options.empty() ? id : fmt::format("{},{}", id, options);
}

}  // namespace unimem::detail
