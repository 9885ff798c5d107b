#pragma once

#include <optional>
#include <string_view>

namespace unimem::detail {

/// A line that includes a file, or says that its own is to be included once.
struct IncludeLine {
  std::string_view before;  ///< the end of a comment that began on an earlier line
  std::string_view name;    ///< of the file; empty: `#pragma once`
  bool is_quoted = false;   ///< "name", not <name>
  std::string_view after;   ///< a comment that is not at its end yet

  [[nodiscard]] bool is_once() const noexcept { return name.empty(); }
};

/// The lines of a source, one after the other, as the preprocessor takes them: it knows what is comment or literal.
class SourceLines {
 public:
  explicit SourceLines(std::string_view text) : left_(text) {}

  /// False at the end. A line is without its newline.
  [[nodiscard]] bool next(std::string_view& line);
  /// What the line that `next` gave last includes; nothing if it is no such line.
  [[nodiscard]] std::optional<IncludeLine> const& include() const noexcept { return include_; }
  /// Whether the last line ended within a comment.
  [[nodiscard]] bool in_comment() const noexcept { return in_ == In::block_comment; }

 private:
  enum class In : unsigned char { code, line_comment, block_comment, literal };

  [[nodiscard]] std::optional<IncludeLine> find_include(std::string_view line) const;
  void read_over(std::string_view text);

  std::string_view left_;
  std::optional<IncludeLine> include_;
  In in_ = In::code;
  char quote_ = '"';
  bool goes_on_ = false;  ///< the line before ended with a backslash
};

}  // namespace unimem::detail
