#include "fuzz/target.hpp"
#include "kernel/included_text.hpp"
#include "kernel/source_lines.hpp"

#include <algorithm>

namespace unimem::fuzz {
namespace {

/// A source, and two headers behind zero bytes.
KernelSource source_from(std::string_view input) {
  auto const next = [&] {
    auto const part = std::string(input.substr(0, input.find('\0')));
    input.remove_prefix(std::min(part.size() + 1, input.size()));
    return part;
  };
  KernelSource source{.text = next()};
  source.headers["a.h"] = next();
  source.headers["b.h"] = next();
  return source;
}

/// The lines are those of the text, and what is said of one is a part of it.
bool has_directives(std::string_view text) {
  bool result = false;
  std::string together;
  detail::SourceLines lines{text};
  for (std::string_view line; lines.next(line);) {
    together.append(line).append("\n");
    auto const& include = lines.include();
    if (!include) continue;
    result = true;
    for (auto const part : {include->before, include->name, include->after}) {
      require(line.find(part) != std::string_view::npos, "a directive has what its line has not");
    }
    require(line.find('#') != std::string_view::npos, "a directive without its sign");
  }
  require(together.starts_with(text) && together.size() <= text.size() + 1, "the lines are not those of the text");
  return result;
}

/// What is included is in the place of every directive that names it, and all else stays.
bool run_included_text(std::string_view input) {
  auto const source = source_from(input);
  bool any = has_directives(source.text);
  for (auto const& [name, text] : source.headers) has_directives(text);
  auto const whole = taken<InvalidArgument>([&] { return detail::included_text(source); });
  if (!whole) return false;
  if (!any) {
    auto plain = "#line 1 \"source\"\n" + source.text;
    if (!source.text.empty() && !source.text.ends_with('\n')) plain += '\n';
    require(*whole == plain, "a text that includes nothing was changed");
  }
  detail::SourceLines lines{*whole};
  for (std::string_view line; lines.next(line);) {
    auto const& include = lines.include();
    require(!include || (!include->is_once() && !include->is_quoted && !source.headers.contains(include->name)),
            "a directive is left that names a header");
  }
  return any;
}

Enlisted const included_text_target{{"included_text", run_included_text}};

}  // namespace
}  // namespace unimem::fuzz
