#include <unimem/manager/resident.hpp>

namespace unimem {

Resident::~Resident() = default;

std::size_t Resident::try_relocate(Queue&, std::size_t) {
  return 0;
}

}  // namespace unimem
