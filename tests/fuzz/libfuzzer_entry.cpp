#include "fuzz/target.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  auto const& target = unimem::fuzz::targets().front();
  try {
    target.run({reinterpret_cast<char const*>(data), size});
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s: %s\n", target.name, error.what());
    std::abort();
  }
  return 0;
}
