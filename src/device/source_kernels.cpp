#include "device/source_kernels.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace unimem::detail {
namespace {

/// The name of the function whose declaration goes on with `words`: the word before its parameters. A kernel of the
/// portable form that begins before them is left to be read: what stood before it, as in a macro, declares none.
std::string_view function_name(SourceWords& words) {
  constexpr std::array with_list{"__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__",
                                 "__attribute__",     "__declspec",       "alignas"};
  std::string_view last;
  int depth = 0;  // in the list of an attribute
  for (auto after = words;; words = after) {
    auto const word = after.next();
    if (word.empty() || word == "UNIMEM_KERNEL") return {};
    if (depth > 0) {
      depth += word == "(" ? 1 : word == ")" ? -1 : 0;
    } else if (word == "(") {
      if (std::ranges::find(with_list, last) == with_list.end()) {
        words = after;
        return last;
      }
      depth = 1;
    } else if (word == ";" || word == "{" || word == "}" || word == "#") {
      words = after;
      return {};
    }
    if (depth == 0) last = word;
  }
}

/// Reads on to the end of what `open` has begun.
void skip_to_end(SourceWords& words, std::string_view open, std::string_view close) {
  int depth = 1;
  for (auto word = words.next(); !word.empty() && depth > 0; word = words.next()) {
    depth += word == open ? 1 : word == close ? -1 : 0;
    if (depth == 0) return;
  }
}

/// Reads on to the end of a body, each branch of an #if for itself. False if there is no telling where it is: macros
/// have braces of their own.
bool skip_body(SourceWords& words) {
  int depth = 1;
  std::vector<int> at_if;
  for (auto word = words.next(); !word.empty(); word = words.next()) {
    if (word == "#") {
      auto const directive = words.next();
      if (directive.starts_with("if")) at_if.push_back(depth);
      if (directive.starts_with("el") && !at_if.empty()) depth = at_if.back();
      if (directive == "endif" && !at_if.empty()) at_if.pop_back();
    } else if (word == "UNIMEM_KERNEL" || word == "UNIMEM_FUNCTION" || word == "__kernel" || word == "__global__") {
      return false;
    }
    depth += word == "{" ? 1 : word == "}" ? -1 : 0;
    if (depth == 0) return true;
  }
  return false;
}

bool begins_kernel(std::string_view word) {
  return word == "UNIMEM_KERNEL" || word == "__kernel" || word == "kernel" || word == "__global__";
}

/// The names of a source's kernels, and of them those that another function calls, or may call.
struct KernelNames {
  explicit KernelNames(std::string_view text) {
    std::map<std::string_view, int> times;  // before a parenthesis, apart from where the kernel itself is
    std::set<char const*> places;
    SourceWords words{text};
    std::string_view last;
    for (auto word = words.next(); !word.empty(); last = word, word = words.next()) {
      if (word == "(") ++times[last];
      if (!begins_kernel(word)) continue;
      auto after = words;
      auto const name = function_name(after);
      if (name.empty()) continue;
      all.insert(name);
      if (places.insert(name.data()).second) --times[name];
    }
    for (auto const name : all) {
      if (times[name] > 0) called.insert(name);
    }
  }

  std::set<std::string_view> all, called;
};

void add(std::vector<std::string>& names, std::string_view name) {
  if (name.empty() || !SourceWords::begins_word(name.front())) return;
  if (std::ranges::find(names, name) == names.end()) names.emplace_back(name);
}

/// From the words of "UNIMEM_BUFFER ( T , x )" or "T x", less each const: one at least.
TextParameter parameter_from(std::vector<std::string> words) {
  TextParameter result;
  bool const is_macro = words.size() >= 6 && words[1] == "(" && words.back() == ")";
  if (is_macro && (words[0] == "UNIMEM_BUFFER" || words[0] == "UNIMEM_CONST_BUFFER")) {
    result.is_buffer = true;
    result.is_const = words[0] == "UNIMEM_CONST_BUFFER";
    words.erase(words.begin(), words.begin() + 2);
    words.pop_back();
    result.name = std::move(words.back());
    words.resize(words.size() - 2);  // the name, and the comma before it
  } else {
    result.name = std::move(words.back());
    words.pop_back();
  }
  result.type = fmt::format("{}", fmt::join(words, " "));
  return result;
}

/// The function's own name: what a template's instance is of, without its namespaces.
std::string_view own_name(std::string_view entry) {
  entry = entry.substr(0, entry.find('<'));
  auto const scope = entry.rfind("::");
  return scope == std::string_view::npos ? entry : entry.substr(scope + 2);
}

}  // namespace

bool SourceKernels::is_portable(std::string_view entry) const {
  if (std::ranges::find(portable, entry) != portable.end()) return true;
  if (std::ranges::find(plain, own_name(entry)) != plain.end()) return false;
  return names_portable_form;
}

bool SourceKernels::has(std::string_view entry) const {
  return std::ranges::find(portable, entry) != portable.end() ||
         std::ranges::find(plain, own_name(entry)) != plain.end();
}

std::string SourceKernels::names() const {
  auto all = portable;
  all.insert(all.end(), plain.begin(), plain.end());
  return fmt::format("{}", fmt::join(all, ", "));
}

SourceKernels kernels_in(std::string_view source) {
  SourceKernels result;
  auto const text = on_whole_lines(source);
  SourceWords words{text};
  for (auto word = words.next(); !word.empty(); word = words.next()) {
    if (word == "UNIMEM_KERNEL") {
      result.names_portable_form = true;
      add(result.portable, function_name(words));
    } else if (word == "__global__" || word == "__kernel") {
      add(result.plain, function_name(words));
    }
  }
  return result;
}

void visit_words(std::string_view source, std::string_view entry, WordVisitor const& visit) {
  auto const text = on_whole_lines(source);
  KernelNames const kernels{text};
  // One that a macro makes may be any of them, or all.
  bool const is_made_by_macro = !kernels.all.contains(own_name(entry));
  SourceWords words{text};
  for (auto word = words.next(); !word.empty(); word = words.next()) {
    if (!visit(word, words)) return;
    if (is_made_by_macro || !begins_kernel(word)) continue;
    // What is no other kernel is read on from here: `kernel` may be a variable, too.
    auto after = words;
    auto const name = function_name(after);
    if (name.empty() || name == own_name(entry) || kernels.called.contains(name)) continue;
    skip_to_end(after, "(", ")");
    if (after.next() == "{" && skip_body(after)) words = after;
  }
}

std::string find_word(std::string_view source, std::string_view entry, std::span<const std::string_view> wanted) {
  std::string found;
  visit_words(source, entry, [&](std::string_view word, SourceWords const& /*after*/) {
    if (std::ranges::find(wanted, word) != wanted.end()) found = word;
    return found.empty();
  });
  return found;
}

std::optional<std::vector<TextParameter>> portable_parameters(std::string_view source, std::string_view entry) {
  auto const text = on_whole_lines(source);
  SourceWords words{text};
  for (auto word = words.next(); !word.empty(); word = words.next()) {
    if (word != "UNIMEM_KERNEL" || function_name(words) != entry) continue;
    std::vector<TextParameter> result;
    std::vector<std::string> part;  // the words of one parameter
    int depth = 1;
    for (word = words.next(); !word.empty(); word = words.next()) {
      depth += word == "(" ? 1 : word == ")" ? -1 : 0;
      if (depth != 0 && !(depth == 1 && word == ",")) {
        part.emplace_back(word);
        continue;
      }
      if (!part.empty()) {
        std::erase(part, "const");
        if (part.empty()) return std::nullopt;
        result.push_back(parameter_from(std::move(part)));
      }
      part.clear();
      if (depth == 0) return result;
    }
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace unimem::detail
