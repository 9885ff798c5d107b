#include <unimem/share/element_tag.hpp>

namespace unimem {

std::string_view to_string(ElementTag tag) noexcept {
  switch (tag) {
    case ElementTag::any:
      return "any";
    case ElementTag::byte:
      return "byte";
    case ElementTag::boolean:
      return "boolean";
    case ElementTag::i8:
      return "i8";
    case ElementTag::u8:
      return "u8";
    case ElementTag::i16:
      return "i16";
    case ElementTag::u16:
      return "u16";
    case ElementTag::i32:
      return "i32";
    case ElementTag::u32:
      return "u32";
    case ElementTag::i64:
      return "i64";
    case ElementTag::u64:
      return "u64";
    case ElementTag::f32:
      return "f32";
    case ElementTag::f64:
      return "f64";
    case ElementTag::other:
      return "other";
  }
  return "unknown";
}

}  // namespace unimem
