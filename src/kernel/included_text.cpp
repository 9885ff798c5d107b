#include "kernel/included_text.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "kernel/source_lines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_bytes = std::size_t{16} << 20;
constexpr std::size_t most_files_deep = 64;

/// One text that is included, or the first.
struct File {
  std::string name;  ///< as compilers are to call it
  std::string text;
  fs::path folder{};        ///< where names in it are looked for first
  bool is_on_disk = false;  ///< else it is a header, and the folder is part of its name
  bool once = false;        ///< it says #pragma once
  std::size_t number = 0;
};

bool says_once(std::string_view text) {
  SourceLines lines{text};
  for (std::string_view line; lines.next(line);) {
    if (lines.include() && lines.include()->is_once()) return true;
  }
  return false;
}

/// As a string literal has it.
std::string escaped(std::string_view name) {
  std::string result;
  for (auto const letter : name) {
    if (letter == '"' || letter == '\\') result += '\\';
    result += letter == '\n' ? ' ' : letter;
  }
  return result;
}

void check_size(std::uintmax_t bytes, std::string_view of) {
  if (bytes <= most_bytes) return;
  throw InvalidArgument("source", fmt::format("{} with {}", format_size(bytes), of),
                        "at most 16 MiB with all that it includes");
}

class Expansion {
 public:
  explicit Expansion(KernelSource const& source) : source_(source) {}

  std::string run() {
    put({source_.name, std::string(without_mark(source_.text))});
    return std::move(text_);
  }

 private:
  /// Where the text is: a file, and the line there that includes the next.
  struct Link {
    File const* file;
    std::size_t line;
  };

  void put(File const& file) {
    chain_.push_back({&file, 1});
    put_line_directive();
    SourceLines lines{file.text};
    for (std::string_view line; lines.next(line); ++chain_.back().line) {
      auto const& include = lines.include();
      bool const names_file = include && !include->is_once();
      auto const* const found = names_file ? find(*include, file) : nullptr;
      if (!include || (names_file && found == nullptr && !include->is_quoted)) {
        text_.append(line).append("\n");
      } else if (!names_file) {
        text_.append(include->before).append(include->after).append("\n");
      } else {
        if (!include->before.empty()) text_.append(include->before).append("\n");
        put_included(found, include->name);
        put_line_directive();
        text_.append(include->after).append("\n");
      }
      check_size(text_.size(), file.name);
    }
    if (chain_.size() > 1) put_end(lines.in_comment());
    chain_.pop_back();
  }

  void put_included(File const* file, std::string_view name) {
    if (file == nullptr) return put_error(name, "is among neither headers nor folders");
    // With a guard it includes itself, too, but not in the second one, where the guard is defined.
    auto const times = std::ranges::count(chain_, file, &Link::file);
    if (times > 0 && file->once) return;
    if (times > 1) return put_error(name, "includes itself");
    if (chain_.size() > most_files_deep) {
      return put_error(name, fmt::format("is included more than {} files deep", most_files_deep));
    }
    if (file->once) text_ += fmt::format("#ifndef UNIMEM_ONCE_{0}\n#define UNIMEM_ONCE_{0}\n", file->number);
    put(*file);
    if (file->once) text_ += "#endif\n";
  }

  /// No line and no comment of an included file goes on in the file that includes it.
  void put_end(bool in_comment) {
    if (text_.ends_with("\\\n")) text_ += '\n';
    if (!in_comment) return;
    text_ += "*/\n";
    put_error(chain_.back().file->name, "ends within a comment");
  }

  void put_line_directive() {
    text_ += fmt::format("#line {} \"{}\"\n", chain_.back().line, escaped(chain_.back().file->name));
  }

  void put_error(std::string_view name, std::string_view what) {
    put_line_directive();
    text_ += fmt::format("#error \"{}\" {}: ", escaped(name), what);
    for (auto link = chain_.rbegin(); link != chain_.rend(); ++link) {
      text_ += fmt::format("{}{}:{}", link == chain_.rbegin() ? "" : ", included from ", escaped(link->file->name),
                           link->line);
    }
    text_ += '\n';
  }

  File const* find(IncludeLine const& include, File const& from) {
    fs::path const name{std::string(include.name)};
    if (include.is_quoted) {
      auto const beside = from.folder / name;
      if (auto const* const found = from.is_on_disk ? on_disk(beside) : header(beside)) return found;
    }
    if (auto const* const found = header(name)) return found;
    for (auto const& folder : source_.folders) {
      if (auto const* const found = on_disk(folder / name)) return found;
    }
    return nullptr;
  }

  File const* header(fs::path const& name) {
    auto const there = source_.headers.find(name.lexically_normal().generic_string());
    if (there == source_.headers.end()) return nullptr;
    if (auto const known = files_.find(there->first); known != files_.end()) return &known->second;
    return keep(there->first,
                {there->first, std::string(without_mark(there->second)), name.lexically_normal().parent_path()});
  }

  File const* on_disk(fs::path const& path) {
    std::error_code none;
    auto const whole = fs::weakly_canonical(path, none);
    if (none || !fs::is_regular_file(whole, none)) return nullptr;
    if (auto const known = files_.find(whole.string()); known != files_.end()) return &known->second;
    auto const name = path.lexically_normal().string();
    auto const bytes = fs::file_size(whole, none);
    if (none) throw IoError(name, none.value(), "reading what a kernel includes");
    check_size(bytes, name);
    std::string text(bytes, '\0');
    errno = 0;
    if (!std::ifstream{whole, std::ios::binary}.read(text.data(), static_cast<std::streamsize>(bytes))) {
      throw IoError(name, errno, "reading what a kernel includes");
    }
    return keep(whole.string(), {name, std::string(without_mark(text)), whole.parent_path(), true});
  }

  File const* keep(std::string const& key, File file) {
    file.number = files_.size();
    file.once = says_once(file.text);
    return &files_.insert_or_assign(key, std::move(file)).first->second;
  }

  KernelSource const& source_;
  std::string text_;
  std::vector<Link> chain_;            ///< the files that are open; the last is read
  std::map<std::string, File> files_;  ///< by the names of headers, and by whole paths: no header's name begins with /
};

}  // namespace

std::string_view without_mark(std::string_view text) {
  constexpr std::string_view mark = "\xEF\xBB\xBF";
  return text.starts_with(mark) ? text.substr(mark.size()) : text;
}

std::string included_text(KernelSource const& source) {
  return Expansion{source}.run();
}

}  // namespace unimem::detail
