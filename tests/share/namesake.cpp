#include "share/namesake.hpp"

#include <cstddef>
#include <utility>

namespace unimem::testing {
namespace {

struct Pixel {
  float brightness;
};

}  // namespace

BufferId publish_namesake(BufferRegistry& shared, BufferOptions options) {
  return shared.publish(UnifiedBuffer<Pixel>(4, std::move(options)));
}

bool opens_namesake(BufferRegistry& shared, BufferId id) {
  return shared.open<Pixel>(id).size() == 4;
}

}  // namespace unimem::testing
