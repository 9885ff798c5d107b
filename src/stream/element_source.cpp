#include "stream/element_source.hpp"

namespace unimem::detail {

std::string source_type(ElementType element) {
  std::string type = "unimem_";
  type += to_string(element);
  return type;
}

std::string with_replaced(std::string text, std::string_view name, std::string_view value) {
  std::string placeholder(1, '$');
  placeholder += name;
  for (auto at = text.find(placeholder); at != std::string::npos; at = text.find(placeholder, at + value.size())) {
    text.replace(at, placeholder.size(), value);
  }
  return text;
}

}  // namespace unimem::detail
