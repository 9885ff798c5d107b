#include "device/source_groups.hpp"

#include <unimem/core/error.hpp>

#include "device/group_words.hpp"
#include "device/source_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
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

bool is_name(std::string_view word) {
  return !word.empty() && SourceWords::begins_word(word.front());
}

bool goes_on(std::string_view word) {
  constexpr std::array keywords{"if", "else", "for", "while", "do", "switch", "return", "goto"};
  return std::ranges::find(keywords, word) != keywords.end();
}

/// The words of the statement that begins here: a block, or up to a semicolon outside of parentheses. None where the
/// preprocessor has a say in where it ends. Two names that no statement has side by side, as in `NAME(a) b` and
/// `NAME b`, end it between them: the first may be a macro and a whole statement.
std::vector<std::string_view> statement(SourceWords& words) {
  std::vector<std::string_view> all, callers;  // callers: what stands before each parenthesis that is open
  int braces = 0;
  std::string_view last, called;
  for (auto after = words;; words = after) {
    auto const word = after.next();
    if (word.empty() || (braces == 0 && callers.empty() && is_name(word) && is_name(called) && !goes_on(called))) break;
    if (word == "#") return {};
    braces += word == "{" ? 1 : word == "}" ? -1 : 0;
    called = word;
    if (word == "(") callers.push_back(last);
    if (word == ")" && !callers.empty()) {
      called = callers.back();
      callers.pop_back();
    }
    last = word;
    all.push_back(word);
    if (braces <= 0 && callers.empty() && (word == ";" || word == "}")) {
      words = after;
      break;
    }
  }
  return all;
}

/// Whether a call of a function with this body waits at one of `waits`: it stands in the body itself, under nothing
/// that may pass it by.
bool always_waits(std::span<const std::string_view> body, std::set<std::string_view> const& waits) {
  constexpr std::array may_pass{"if", "else", "for", "while", "do", "switch", "?", "&", "|", "goto"};
  int braces = 0, parentheses = 0;
  bool is_sure = true;
  for (auto const word : body) {
    if (word == "return") return false;
    braces += word == "{" ? 1 : word == "}" ? -1 : 0;
    parentheses += word == "(" ? 1 : word == ")" ? -1 : 0;
    if (braces == 1 && is_sure && waits.contains(word)) return true;
    if (std::ranges::find(may_pass, word) != may_pass.end()) is_sure = false;
    if (braces == 1 && parentheses == 0 && (word == ";" || word == "}")) is_sure = true;
  }
  return false;
}

/// What each item of a group waits at: the portable names, and the functions of a text without macros that always
/// come to one. Of a function that is there twice, or where a condition of the preprocessor is open, nothing is known.
std::set<std::string_view> waits_in(std::string_view text) {
  std::set<std::string_view> waits{waits_for_group.begin(), waits_for_group.end()};
  std::map<std::string_view, std::vector<std::string_view>> bodies;
  std::set<std::string_view> unknown;
  SourceWords words{text};
  std::string_view last;
  for (auto word = words.next(); !word.empty(); last = word, word = words.next()) {
    if (word == "#") return waits;
    if (word != "(" || !is_name(last)) continue;
    auto const name = last;
    words_to_end(words);
    auto after = words;
    if (after.next() != "{") continue;
    auto body = statement(words);
    if (body.empty()) return waits;
    if (!bodies.try_emplace(name, std::move(body)).second) unknown.insert(name);
  }
  for (bool more = true; more;) {
    more = false;
    for (auto const& [name, body] : bodies) {
      if (unknown.contains(name) || waits.contains(name) || !always_waits(body, waits)) continue;
      waits.insert(name);
      more = true;
    }
  }
  return waits;
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
  auto const waits = waits_in(text);
  int conditions = 0;  // in what may not be compiled
  std::string_view last;
  visit_words(text, entry, [&](std::string_view word, SourceWords after) {
    if (std::exchange(last, word) == "#") conditions += word.starts_with("if") ? 1 : word == "endif" ? -1 : 0;
    if (conditions > 0 || word != "if" || after.next() != "(") return true;
    auto const condition = words_to_end(after);
    auto const is_wait = [&](std::string_view each) { return waits.contains(each); };
    bool const is_of_group = std::ranges::any_of(condition, is_wait) || is_any_in(condition, places_in_range);
    if (is_of_group || !is_any_in(condition, places_in_group)) return true;
    for (bool more = true; more; more = skip_else(after)) {
      auto const branch = statement(after);
      auto const wait = std::ranges::find_if(branch, is_wait);
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
