#include "device/source_kernels.hpp"
#include "device/source_words.hpp"
#include "fuzz/target.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace unimem::fuzz {

bool check_source(std::string_view input) {
  // Every word and sign is a piece of the source, in order, and nothing is empty before the end.
  std::size_t words = 0, at = 0;
  detail::SourceWords left{input};
  for (auto word = left.next(); !word.empty(); word = left.next(), ++words) {
    auto const begin = static_cast<std::size_t>(word.data() - input.data());
    expect(begin >= at && begin + word.size() <= input.size(), "a word that is no part of the source");
    at = begin + word.size();
  }
  expect(words <= input.size(), "more words than characters");
  auto const kernels = detail::kernels_in(input);
  for (auto const& list : {kernels.portable, kernels.plain}) {
    for (auto const& name : list) {
      expect(!name.empty() && detail::SourceWords::begins_word(name[0]), "a name that is no word");
      expect(input.find(name) != std::string_view::npos, "a name that does not stand in the source");
      expect(kernels.has(name), "a kernel that is listed and not there");
    }
  }
  for (auto const& name : kernels.portable) {
    expect(kernels.names_portable_form, "a portable kernel without the word");
    auto const parameters = detail::portable_parameters(input, name);
    if (!parameters) continue;
    for (auto const& one : *parameters) expect(one.is_buffer || !one.is_const, "a scalar that is a const buffer");
    constexpr std::array<std::string_view, 2> wanted{"barrier", "get_local_id"};
    auto const found = detail::find_word(input, name, wanted);
    expect(found.empty() || std::ranges::find(wanted, found) != wanted.end(), "a word that was not asked for");
    expect(found.empty() || input.find(found) != std::string_view::npos, "a word that does not stand in the source");
  }
  return !kernels.portable.empty() || !kernels.plain.empty();
}

}  // namespace unimem::fuzz
