#include "kernel/source_lines.hpp"

#include "device/source_words.hpp"

#include <algorithm>
#include <cstddef>

namespace unimem::detail {
namespace {

constexpr std::string_view blanks = " \t\r\v\f";

/// Blanks, and comments that end on the line; true if one does not.
bool skip_blanks(std::string_view& text) {
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
    if (!text.starts_with("/*")) return false;
    auto const end = text.find("*/", 2);
    if (end == std::string_view::npos) return true;
    text.remove_prefix(end + 2);
  }
}

/// What goes on after the line of a directive's rest; compilers ignore all else there.
std::string_view comment_in(std::string_view rest) {
  return skip_blanks(rest) || rest.starts_with("//") ? rest : std::string_view{};
}

bool is_letter_or_digit(char c) {
  return SourceWords::begins_word(c) || (c >= '0' && c <= '9');
}

/// Takes `word` from the front, if it stands there as a whole.
bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word) || (text.size() > word.size() && is_letter_or_digit(text[word.size()]))) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

bool SourceLines::next(std::string_view& line) {
  if (left_.empty()) return false;
  line = left_.substr(0, left_.find('\n'));
  left_.remove_prefix(std::min(line.size() + 1, left_.size()));
  include_ = goes_on_ ? std::nullopt : find_include(line);
  if (include_) in_ = In::code;
  auto const rest = include_ ? include_->after : line;
  read_over(rest);
  auto const last = rest.find_last_not_of(blanks);
  goes_on_ = last != std::string_view::npos && rest[last] == '\\';
  if (!goes_on_ && in_ != In::block_comment) in_ = In::code;
  return true;
}

std::optional<IncludeLine> SourceLines::find_include(std::string_view line) const {
  IncludeLine found;
  auto rest = line;
  if (in_ == In::block_comment) {
    auto const end = rest.find("*/");
    if (end == std::string_view::npos) return std::nullopt;
    found.before = rest.substr(0, end + 2);
    rest.remove_prefix(end + 2);
  }
  if (skip_blanks(rest) || !rest.starts_with('#')) return std::nullopt;
  rest.remove_prefix(1);
  if (skip_blanks(rest)) return std::nullopt;
  if (take(rest, "pragma")) {
    if (skip_blanks(rest) || !take(rest, "once")) return std::nullopt;
    found.after = comment_in(rest);
    return found;
  }
  if (!take(rest, "include") || skip_blanks(rest) || rest.empty()) return std::nullopt;
  found.is_quoted = rest.front() == '"';
  if (!found.is_quoted && rest.front() != '<') return std::nullopt;
  auto const end = rest.find(found.is_quoted ? '"' : '>', 1);
  if (end == std::string_view::npos || end == 1) return std::nullopt;
  found.name = rest.substr(1, end - 1);
  found.after = comment_in(rest.substr(end + 1));
  return found;
}

void SourceLines::read_over(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto const two = text.substr(i, 2);
    switch (in_) {
      case In::code: {
        // C++ has digits apart: 1'000.
        bool const parts_digits = text[i] == '\'' && i > 0 && is_letter_or_digit(text[i - 1]);
        if (two == "//") in_ = In::line_comment;
        if (two == "/*") in_ = In::block_comment, ++i;
        if ((text[i] == '"' || text[i] == '\'') && !parts_digits) in_ = In::literal, quote_ = text[i];
        break;
      }
      case In::literal:
        if (text[i] == '\\')
          ++i;
        else if (text[i] == quote_)
          in_ = In::code;
        break;
      case In::block_comment:
        if (two == "*/") in_ = In::code, ++i;
        break;
      case In::line_comment:
        return;
    }
  }
}

}  // namespace unimem::detail
