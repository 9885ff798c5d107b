#include <unimem/manager/resident.hpp>

namespace unimem {

Resident::~Resident() = default;

}  // namespace unimem
