#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace unimem {

/// The keys of an object, in their order.
[[nodiscard]] inline std::vector<std::string> keys_of(nlohmann::ordered_json const& json) {
  std::vector<std::string> keys;
  for (auto const& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

}  // namespace unimem
