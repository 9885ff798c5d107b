#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <string>
#include <vector>

namespace unimem::testing {

/// What the tool at `library` (nvtx_tool.cpp) has been told so far, by all threads: "push NAME" and "pop".
inline std::vector<std::string> told_to_tool(char const* library) {
  auto* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return {};
  auto const entry = reinterpret_cast<char const* (*)(std::size_t)>(dlsym(handle, "unimem_nvtx_tool_record"));
  std::vector<std::string> all;
  while (auto const* const text = entry(all.size())) all.emplace_back(text);
  return all;
}

}  // namespace unimem::testing
