#include <unimem/core/build.hpp>
#include <unimem/core/version.hpp>

#include "core/sanitizers.hpp"

namespace unimem {

std::string_view version() noexcept {
  return UNIMEM_VERSION;
}

std::string_view build_description() noexcept {
#if defined(__clang__)
  return "clang++ " __clang_version__
#elif defined(__GNUC__)
  return "g++ " __VERSION__
#endif
#if defined(UNIMEM_ADDRESS_SANITIZER)
         ", address sanitizer"
#elif defined(UNIMEM_THREAD_SANITIZER)
         ", thread sanitizer"
#endif
#if defined(NDEBUG)
         ", optimized";
#else
         ", debug checks";
#endif
}

}  // namespace unimem
