#pragma once

#include <filesystem>

namespace unimem::detail {

/// The files that go with an output: where it is put in the end, and what stands beside that place while a stream that
/// another may go on with is under way.
class OutputPaths {
 public:
  /// Follows `output` where it is a symbolic link, also to where nothing is yet. Throws IoError: links in a circle, or
  /// one that cannot be read.
  explicit OutputPaths(std::filesystem::path const& output);

  /// The output itself.
  [[nodiscard]] std::filesystem::path const& target() const noexcept { return target_; }
  /// The unfinished output of a stream with `resume`.
  [[nodiscard]] std::filesystem::path unfinished() const { return beside(".unimem-part"); }
  /// The journal of its chunks.
  [[nodiscard]] std::filesystem::path journal() const { return beside(".unimem-journal"); }

 private:
  [[nodiscard]] std::filesystem::path beside(char const* ending) const;

  std::filesystem::path target_;
};

/// Whether both lead to one file, or would if something was there. Throws IoError as OutputPaths does.
[[nodiscard]] bool is_one_file(std::filesystem::path const& a, std::filesystem::path const& b);

}  // namespace unimem::detail
