#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace unimem::detail {

/// A source as a compiler takes its lines: one that ends with a backslash goes on with the next, in the middle of a
/// word or a comment, too.
[[nodiscard]] std::string on_whole_lines(std::string_view source);

/// The words and the signs of a kernel source on whole lines, one after the other, without blanks, comments and the
/// insides of literals. Follows no macro.
class SourceWords {
 public:
  explicit SourceWords(std::string_view source) : left_(source) {}

  /// Empty at the end.
  [[nodiscard]] std::string_view next();

  [[nodiscard]] static bool begins_word(char c) noexcept;

 private:
  std::string_view take(std::size_t count);
  void skip_past(std::string_view end);
  void skip_blanks_and_comments();
  [[nodiscard]] std::size_t literal_length() const;

  std::string_view left_;
};

}  // namespace unimem::detail
