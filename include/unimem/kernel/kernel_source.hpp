#pragma once

#include <unimem/core/export.hpp>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace unimem {

/// A number that a kernel has when it is compiled, as a literal of its own type in OpenCL C and CUDA C++: 16, 16U, 16L,
/// 16UL, 0.5F, 0.5; a boolean as 1 or 0, which #if takes too.
class UNIMEM_API KernelConstant {
 public:
  /// Any integer of up to 64 bits, bool, float or double. Throws InvalidArgument if it is infinite or no number, for
  /// which the languages have no literal.
  template <class T>
    requires std::is_arithmetic_v<T> && (!std::same_as<T, long double>)
  KernelConstant(T value) : literal_(literal_of(value)) {}  // NOLINT(google-explicit-constructor): numbers are given

  [[nodiscard]] std::string const& literal() const noexcept { return literal_; }

 private:
  template <class T>
  static std::string literal_of(T value) {
    if constexpr (std::is_floating_point_v<T>) {
      return text_of(value);
    } else if constexpr (std::is_signed_v<T> || (sizeof(T) < sizeof(int) && !std::same_as<T, bool>)) {
      return text_of(static_cast<std::int64_t>(value), sizeof(T) == sizeof(std::int64_t));
    } else {
      return text_of(static_cast<std::uint64_t>(value), sizeof(T) == sizeof(std::uint64_t), std::is_same_v<T, bool>);
    }
  }
  static std::string text_of(float value);
  static std::string text_of(double value);
  static std::string text_of(std::int64_t value, bool is_long);
  static std::string text_of(std::uint64_t value, bool is_long, bool is_boolean);

  std::string literal_;
};

/// Constants by the names that the source has for them.
using KernelConstants = std::map<std::string, KernelConstant, std::less<>>;

/// A kernel's source with what it is compiled with. A value: several kernels may be made of one, which OpenCL compiles
/// together then (docs/kernels.md).
struct KernelSource {
  std::string text;             ///< as `Kernel::source` takes it
  std::string name = "source";  ///< what compilers' logs call it
  /// Preprocessor macros that are defined before it: a value for each name, or an empty text.
  std::map<std::string, std::string, std::less<>> defines{};
  /// Texts by the names that `#include` has for them: "shapes.h", "maths/power.h".
  std::map<std::string, std::string, std::less<>> headers{};
  /// Where else `#include` looks, in this order.
  std::vector<std::filesystem::path> folders{};
  /// Trades exact rounding, infinities and NaN for speed, as the compiler's own option of that name does. The source
  /// sees UNIMEM_FAST_MATH defined.
  bool fast_math = false;
};

}  // namespace unimem
