#include <unimem/core/error.hpp>

#include "device/source_groups.hpp"
#include "device/source_kernels.hpp"
#include "device/source_words.hpp"
#include "fuzz/target.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

namespace unimem::fuzz {
namespace {

using detail::SourceWords;

std::vector<std::string> words_of(std::string_view source) {
  std::vector<std::string> result;
  SourceWords words{source};
  auto const* from = source.data();
  for (auto word = words.next(); !word.empty(); word = words.next()) {
    require(word.data() >= from && word.data() + word.size() <= source.data() + source.size(),
            "a word is not behind the one before it");
    from = word.data() + word.size();
    result.emplace_back(word);
  }
  require(words.next().empty(), "words go on after their end");
  return result;
}

auto parameters_of(std::string_view source, std::string_view entry) {
  std::optional<std::vector<std::tuple<bool, bool, std::string, std::string>>> result;
  if (auto const found = detail::portable_parameters(source, entry)) {
    result.emplace();
    for (auto const& one : *found) {
      require(!one.name.empty(), "a parameter without a name");
      require(one.is_buffer || !one.is_const, "a scalar is const as a buffer is");
      result->emplace_back(one.is_buffer, one.is_const, one.type, one.name);
    }
  }
  return result;
}

bool has_divergent_barrier(std::string_view source, std::string const& entry) {
  try {
    detail::refuse_divergent_barriers(source, entry);
  } catch (KernelError const&) {
    return true;
  }
  return false;
}

constexpr std::array<std::string_view, 3> wanted{"barrier", "__local", "__shared__"};

/// What is said of a source is said of its words: comments and blanks between them change nothing.
bool run_kernel_source(std::string_view input) {
  auto const whole = detail::on_whole_lines(input);
  require(whole.size() <= input.size() + 1, "whole lines are longer");
  auto const words = words_of(whole);
  std::string spaced;
  for (auto const& word : words) {
    spaced += word + " /* UNIMEM_KERNEL hidden() { a / b; barrier } * __global__ **/ // __kernel unseen() /*\n";
  }
  require(words_of(spaced) == words, "comments between the words change them");

  auto const found = detail::kernels_in(input);
  auto const again = detail::kernels_in(spaced);
  require(found.portable == again.portable && found.plain == again.plain &&
              found.names_portable_form == again.names_portable_form,
          "comments between the words change the kernels");
  require(found.names_portable_form == (std::ranges::find(words, "UNIMEM_KERNEL") != words.end()),
          "the portable form is named and not noticed, or noticed and not named");

  auto names = found.portable;
  names.insert(names.end(), found.plain.begin(), found.plain.end());
  for (auto const& list : {found.portable, found.plain}) {
    require(std::set<std::string>(list.begin(), list.end()).size() == list.size(), "a name is listed twice");
  }
  for (auto const& name : names) {
    require(std::ranges::find(words, name) != words.end(), "a name is no word of the source");
    require(found.has(name) && found.has(name + "<int>") == (std::ranges::find(found.plain, name) != found.plain.end()),
            "what is listed is not there");
  }
  for (auto const& name : found.portable)
    require(found.is_portable(name), "a kernel of the portable form is not portable");
  names.emplace_back("entry");
  for (auto const& name : names) {
    auto const word = detail::find_word(input, name, wanted);
    require(word == detail::find_word(spaced, name, wanted), "comments between the words change what is found");
    require(word.empty() ||
                (std::ranges::find(wanted, word) != wanted.end() && std::ranges::find(words, word) != words.end()),
            "a word was found that is not there");
    require(parameters_of(input, name) == parameters_of(spaced, name),
            "comments between the words change the parameters");
    require(!has_divergent_barrier(input, name) || std::ranges::find(words, "if") != words.end(),
            "a barrier is under an if that is not there");
  }
  return !found.names().empty();
}

Enlisted const kernel_source_target{{"kernel_source", run_kernel_source}};

}  // namespace
}  // namespace unimem::fuzz
