#include "device/group_words.hpp"
#include "device/opencl/prelude.cl.hpp"

namespace unimem::detail::opencl {

std::string with_prelude(std::string_view source, bool side_by_side) {
  std::string whole{prelude};
  if (source.find(float_addition_word) != std::string_view::npos) whole += float_addition;
  if (calls_group_functions(source)) {
    whole.append(side_by_side ? group_tree : group_loop).append(group_functions).append(strict_pointers);
  }
  return whole.append(source_begin).append(source);
}

}  // namespace unimem::detail::opencl
