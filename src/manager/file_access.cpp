#include <unimem/manager/file_access.hpp>

namespace unimem {

std::string_view to_string(FileAccess access) noexcept {
  switch (access) {
    case FileAccess::automatic:
      return "auto";
    case FileAccess::direct:
      return "direct";
    case FileAccess::cached:
      return "cached";
    case FileAccess::mapped:
      return "mapped";
  }
  return "unknown";
}

}  // namespace unimem
