#include "device/cuda/source_kernels.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace unimem::detail::cuda {
namespace {

bool begins_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool continues_word(char c) {
  return begins_word(c) || (c >= '0' && c <= '9');
}

/// The words and the signs of a source, one after the other; empty at its end.
class Words {
 public:
  explicit Words(std::string_view source) : left_(source) {}

  std::string_view next() {
    skip_blanks_and_comments();
    if (left_.empty()) return {};
    if (left_.front() == '"' || left_.front() == '\'') return take(literal_length());
    if (!continues_word(left_.front())) return take(1);
    auto const end = std::ranges::find_if_not(left_, continues_word);
    return take(static_cast<std::size_t>(end - left_.begin()));
  }

 private:
  std::string_view take(std::size_t count) {
    auto const word = left_.substr(0, count);
    left_.remove_prefix(word.size());
    return word;
  }

  void skip_past(std::string_view end) {
    auto const at = left_.find(end);
    left_.remove_prefix(at == std::string_view::npos ? left_.size() : at + end.size());
  }

  void skip_blanks_and_comments() {
    constexpr std::string_view blanks = " \t\r\n\v\f\\";
    while (!left_.empty()) {
      if (blanks.find(left_.front()) != std::string_view::npos) {
        left_.remove_prefix(1);
      } else if (left_.starts_with("//")) {
        skip_past("\n");
      } else if (left_.starts_with("/*")) {
        left_.remove_prefix(2);
        skip_past("*/");
      } else {
        return;
      }
    }
  }

  [[nodiscard]] std::size_t literal_length() const {
    for (std::size_t i = 1; i < left_.size() && left_[i] != '\n'; ++i) {
      if (left_[i] == left_.front()) return i + 1;
      if (left_[i] == '\\') ++i;
    }
    return 1;  // unfinished: the compiler's business
  }

  std::string_view left_;
};

/// The name of the function whose declaration goes on with `words`: the word before its parameters.
std::string_view function_name(Words& words) {
  constexpr std::array with_list{"__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__",
                                 "__attribute__",     "__declspec",       "alignas"};
  std::string_view last;
  for (auto word = words.next(); !word.empty(); word = words.next()) {
    if (word == "(") {
      if (std::ranges::find(with_list, last) == with_list.end()) return last;
      for (int depth = 1; depth > 0 && !word.empty();) {
        word = words.next();
        depth += word == "(" ? 1 : word == ")" ? -1 : 0;
      }
    } else if (word == ";" || word == "{" || word == "}" || word == "#") {
      return {};
    }
    last = word;
  }
  return {};
}

void add(std::vector<std::string>& names, std::string_view name) {
  if (name.empty() || !begins_word(name.front())) return;
  if (std::ranges::find(names, name) == names.end()) names.emplace_back(name);
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
  Words words{source};
  for (auto word = words.next(); !word.empty(); word = words.next()) {
    if (word == "UNIMEM_KERNEL") {
      result.names_portable_form = true;
      add(result.portable, function_name(words));
    } else if (word == "__global__") {
      add(result.plain, function_name(words));
    }
  }
  return result;
}

}  // namespace unimem::detail::cuda
