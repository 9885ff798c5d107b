#include <unimem/core/build.hpp>
#include <unimem/core/version.hpp>

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
#if defined(__SANITIZE_ADDRESS__)
         ", address sanitizer"
#elif defined(__SANITIZE_THREAD__)
         ", thread sanitizer"
#endif
#if defined(NDEBUG)
         ", optimized";
#else
         ", debug checks";
#endif
}

}  // namespace unimem
