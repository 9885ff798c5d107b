#include "device/source_groups.hpp"

#include <unimem/core/error.hpp>

#include "device/group_words.hpp"
#include "device/source_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

bool is_any_in(std::vector<std::string_view> const& words, std::span<const std::string_view> wanted) {
  return std::ranges::find_first_of(words, wanted) != words.end();
}

/// Behind "(": the words up to its end.
std::vector<std::string_view> words_to_end(SourceWords& words) {
  std::vector<std::string_view> all;
  int depth = 1;
  for (auto word = words.next(); !word.empty(); word = words.next()) {
    depth += word == "(" ? 1 : word == ")" ? -1 : 0;
    if (depth == 0) break;
    all.push_back(word);
  }
  return all;
}

/// A source on whole lines without those of the preprocessor, but its conditions.
std::string without_macros(std::string_view source) {
  auto const whole = on_whole_lines(source);
  std::string text;
  for (std::string_view left = whole; !left.empty();) {
    auto const line = left.substr(0, std::min(left.find('\n'), left.size() - 1) + 1);
    left.remove_prefix(line.size());
    SourceWords words{line};
    bool const is_directive = words.next() == "#";
    auto const directive = is_directive ? words.next() : std::string_view{};
    if (!is_directive || directive.starts_with("if") || directive.starts_with("e")) text += line;
  }
  return text;
}

/// The words of the statement that begins here: a block, or up to a semicolon outside of parentheses. None where the
/// preprocessor has a say in where it ends.
std::vector<std::string_view> statement(SourceWords& words) {
  std::vector<std::string_view> all;
  int braces = 0, parentheses = 0;
  for (auto word = words.next(); !word.empty(); word = words.next()) {
    if (word == "#") return {};
    braces += word == "{" ? 1 : word == "}" ? -1 : 0;
    parentheses += word == "(" ? 1 : word == ")" ? -1 : 0;
    all.push_back(word);
    if (braces <= 0 && parentheses <= 0 && (word == ";" || word == "}")) break;
  }
  return all;
}

/// Whether an `else` comes, which is read.
bool skip_else(SourceWords& words) {
  auto after = words;
  if (after.next() != "else") return false;
  words = after;
  return true;
}

}  // namespace

void refuse_divergent_barriers(std::string_view source, std::string const& entry) {
  auto const text = without_macros(source);
  int conditions = 0;  // in what may not be compiled
  std::string_view last;
  visit_words(text, entry, [&](std::string_view word, SourceWords after) {
    if (std::exchange(last, word) == "#") conditions += word.starts_with("if") ? 1 : word == "endif" ? -1 : 0;
    if (conditions > 0 || word != "if" || after.next() != "(") return true;
    auto const condition = words_to_end(after);
    bool const is_of_group = is_any_in(condition, waits_for_group) || is_any_in(condition, places_in_range);
    if (is_of_group || !is_any_in(condition, places_in_group)) return true;
    for (bool more = true; more; more = skip_else(after)) {
      auto const branch = statement(after);
      auto const wait = std::ranges::find_first_of(branch, waits_for_group);
      if (wait == branch.end()) continue;
      std::string_view const text_of_condition{condition.front().begin(), condition.back().end()};
      throw KernelError(entry, fmt::format("uses {} under if ({}): where some items of a group pass it by, the others "
                                           "wait for them. All must come to it, or none",
                                           *wait, text_of_condition));
    }
    return true;
  });
}

void throw_without_group(std::string const& kernel, std::string_view word) {
  throw KernelError(
      kernel,
      fmt::format("uses {}, and no size of its groups is given: Range{{…}}.group({{…}}), or Kernel::group", word));
}

}  // namespace unimem::detail
