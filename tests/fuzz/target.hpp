#pragma once

#include <unimem/core/error.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::fuzz {

/// What a parser did that it must not.
class Finding : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, char const* what) {
  if (!holds) throw Finding(what);
}

/// A parser of what others wrote, with what has to be so whatever that is.
struct Target {
  char const* name;  ///< its corpus is the folder of this name in corpus/
  /// Whether the parser took the input. Throws Finding, or what the parser must not throw.
  bool (*run)(std::string_view input);
};

/// Those of this program: libFuzzer's have one each, the replay has all.
inline std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

struct Enlisted {
  explicit Enlisted(Target target) { targets().push_back(target); }
};

/// What `parse` returns; nothing where it throws a Refusal, the only way to refuse that its documentation knows.
template <class Refusal, class Parse>
auto taken(Parse parse) -> std::optional<decltype(parse())> {
  try {
    return parse();
  } catch (Refusal const& refusal) {
    require(*refusal.what() != '\0', "a refusal says nothing");
    return std::nullopt;
  }
}

inline std::span<std::byte const> bytes_of(std::string_view text) {
  return {reinterpret_cast<std::byte const*>(text.data()), text.size()};
}

/// A message made from a file's contents, which must not write lines of their own into a log, nor fill it.
inline void require_short_line(std::string_view message) {
  require(message.size() < 400, "a message is longer than 400 bytes");
  for (char const c : message) require(static_cast<unsigned char>(c) >= ' ', "a message has a control character");
}

/// The same of a parser of the file `path`, whose refusals name that and no error of the system's, in one short line.
template <class Parse>
auto taken_of_file(std::string_view path, Parse parse) {
  return taken<IoError>([&] {
    try {
      return parse();
    } catch (IoError const& refusal) {
      require(refusal.path == path && refusal.code == 0, "a refusal names another file");
      require_short_line(refusal.what());
      throw;
    }
  });
}

}  // namespace unimem::fuzz
