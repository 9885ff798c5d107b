#include "device/source_words.hpp"

#include <algorithm>

namespace unimem::detail {
namespace {

bool continues_word(char c) {
  return SourceWords::begins_word(c) || (c >= '0' && c <= '9');
}

}  // namespace

std::string on_whole_lines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  while (!source.empty()) {
    auto const line = source.substr(0, source.find('\n'));
    source.remove_prefix(std::min(line.size() + 1, source.size()));
    auto const last = line.find_last_not_of(" \t\r\v\f");  // compilers look past blanks at the end
    bool const goes_on = last != std::string_view::npos && line[last] == '\\';
    text += goes_on ? line.substr(0, last) : line;
    if (!goes_on) text += '\n';
  }
  return text;
}

bool SourceWords::begins_word(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

std::string_view SourceWords::next() {
  skip_blanks_and_comments();
  if (left_.empty()) return {};
  if (left_.front() == '"' || left_.front() == '\'') return take(literal_length());
  if (!continues_word(left_.front())) return take(1);
  bool const is_number = !begins_word(left_.front());
  std::size_t count = 1;
  // C++ has digits apart: 1'000.
  while (count < left_.size() &&
         (continues_word(left_[count]) ||
          (is_number && left_[count] == '\'' && count + 1 < left_.size() && continues_word(left_[count + 1]))))
    ++count;
  return take(count);
}

std::string_view SourceWords::take(std::size_t count) {
  auto const word = left_.substr(0, count);
  left_.remove_prefix(word.size());
  return word;
}

void SourceWords::skip_past(std::string_view end) {
  auto const at = left_.find(end);
  left_.remove_prefix(at == std::string_view::npos ? left_.size() : at + end.size());
}

void SourceWords::skip_blanks_and_comments() {
  constexpr std::string_view blanks = " \t\r\n\v\f";
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

std::size_t SourceWords::literal_length() const {
  for (std::size_t i = 1; i < left_.size() && left_[i] != '\n'; ++i) {
    if (left_[i] == left_.front()) return i + 1;
    if (left_[i] == '\\') ++i;
  }
  return 1;  // unfinished: the compiler's business
}

}  // namespace unimem::detail
