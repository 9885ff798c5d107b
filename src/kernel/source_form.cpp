#include "kernel/source_form.hpp"

#include <unimem/core/error.hpp>

#include "device/fast_math.hpp"
#include "device/source_words.hpp"
#include "kernel/included_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

bool is_identifier(std::string_view name) {
  SourceWords words{name};
  return !name.empty() && SourceWords::begins_word(name.front()) && words.next() == name;
}

/// No line of a source, and no name in one, can have these.
bool breaks_line(std::string_view text) {
  return text.find_first_of(std::string_view{"\n\r\0", 3}) != std::string_view::npos;
}

void check_define(char const* what, std::string const& name, std::string_view value) {
  if (!is_identifier(name) || name == "defined") {
    throw InvalidArgument(what, name, "the name of a macro: letters, digits and _");
  }
  if (name.starts_with("UNIMEM_") || name.starts_with("unimem_")) {
    throw InvalidArgument(what, name, "none of the library's own names");
  }
  auto const last = value.find_last_not_of(" \t\v\f");
  auto const comment = value.rfind("/*");
  bool const is_open = comment != std::string_view::npos && value.find("*/", comment + 2) == std::string_view::npos;
  if (breaks_line(value) || is_open || (last != std::string_view::npos && value[last] == '\\')) {
    throw InvalidArgument(what, fmt::format("{} of {}", value, name), "one line");
  }
}

void check(KernelSource const& source) {
  for (auto const& [name, value] : source.defines) check_define("defines", name, value);
  if (source.name.empty() || breaks_line(source.name)) throw InvalidArgument("name", source.name, "one line of text");
  for (auto const& [name, text] : source.headers) {
    auto const normal = std::filesystem::path(name).lexically_normal().generic_string();
    bool const is_plain = !name.empty() && name == normal && !breaks_line(name) && !name.starts_with('/') &&
                          !name.starts_with("..") && name.find_first_of("\"\\>") == std::string::npos;
    if (!is_plain) throw InvalidArgument("headers", name, "a name as #include has it, without . and .. in it");
  }
  for (auto const& folder : source.folders) {
    std::error_code problem;
    if (!std::filesystem::is_directory(folder, problem)) throw InvalidArgument("folders", folder.string(), "a folder");
  }
}

/// The names of a source on whole lines, and of them those that keep a value of its own whatever is defined before it.
struct Names {
  std::set<std::string_view> all, kept;
};

/// The name of the macro that is not defined where what follows `#directive` is read: #ifndef NAME, #if !defined(NAME).
std::string_view undefined_by(std::string_view directive, SourceWords after) {
  if (directive == "ifndef") return after.next();
  if (directive != "if" || after.next() != "!" || after.next() != "defined") return {};
  auto const name = after.next();
  return name == "(" ? after.next() : name;
}

Names names_in(std::string_view text) {
  Names names;
  SourceWords words{text};
  std::vector<std::string_view> undefined;  // by each condition that is open; empty: nothing that is known
  std::vector<std::string_view> by_else;
  std::string_view before, last;
  for (auto word = words.next(); !word.empty(); before = last, last = word, word = words.next()) {
    if (last != "#") names.all.insert(word);
    if (last == "#" && word.starts_with("if")) {
      undefined.push_back(undefined_by(word, words));
      auto after = words;
      by_else.push_back(word == "ifdef" ? after.next() : std::string_view{});
    } else if (last == "#" && word.starts_with("el") && !undefined.empty()) {
      undefined.back() = word == "else" ? by_else.back() : std::string_view{};
    } else if (last == "#" && word == "endif" && !undefined.empty()) {
      undefined.pop_back();
      by_else.pop_back();
    }
    bool const is_free = last == "define" && std::ranges::find(undefined, word) != undefined.end();
    if (before == "#" && (last == "undef" || (last == "define" && !is_free))) names.kept.insert(word);
  }
  return names;
}

}  // namespace

SourceForm::SourceForm(std::string text) : text_(std::move(text)) {
  text_.erase(0, text_.size() - without_mark(text_).size());
}

SourceForm::SourceForm(KernelSource const& source) : defines_(source.defines), fast_math_(source.fast_math) {
  check(source);
  if (!source.text.empty()) text_ = included_text(source);
}

SourceForm SourceForm::with(KernelConstants const& constants) const {
  auto const text = on_whole_lines(text_);
  auto const names = names_in(text);
  auto result = *this;
  for (auto const& [name, constant] : constants) {
    check_define("constants", name, constant.literal());
    bool const is_there = text_.empty() || names.all.contains(name) || defines_.contains(name);
    if (!is_there) throw InvalidArgument("constants", name, "a name that the source has");
    if (names.kept.contains(name)) {
      throw InvalidArgument(
          "constants", name,
          fmt::format("one that the source defines under #ifndef {} alone, and never undefines", name));
    }
    result.defines_.insert_or_assign(name, constant.literal());
  }
  return result;
}

std::string SourceForm::whole() const {
  if (text_.empty()) return {};
  std::string result{fast_math_ ? fast_math_line : std::string_view{}};
  for (auto const& [name, value] : defines_) result += fmt::format("#define {} {}\n", name, value);
  if (!result.empty()) result += "#line 1\n";
  return result + text_;
}

}  // namespace unimem::detail
