#include "stream/journal.hpp"

#include <unimem/core/error.hpp>

#include "core/quoted.hpp"
#include "file/digest.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>

namespace unimem::detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view magic = "unimem journal 1 ";
constexpr std::size_t largest_bytes = std::size_t{256} << 20;
constexpr std::size_t digest_digits = 16;
constexpr auto writing_journal = "cannot write the journal";

std::string line_of(std::string_view text) {
  auto const digest = digest_of(Checksum::xxh3, std::as_bytes(std::span{text}));
  return fmt::format("{} {}\n", digest_text(Checksum::xxh3, digest), text);
}

/// The text of a line without its end; nothing where it is not what was written.
std::optional<std::string_view> text_of(std::string_view line) {
  if (line.size() <= digest_digits || line[digest_digits] != ' ') return std::nullopt;
  auto const text = line.substr(digest_digits + 1);
  auto const digest = digest_of(Checksum::xxh3, std::as_bytes(std::span{text}));
  if (parse_digest(Checksum::xxh3, line.substr(0, digest_digits)) != digest) return std::nullopt;
  return text;
}

std::string text_of(Journal::Chunk const& chunk) {
  return fmt::format("{:x} {:x}{}{:x}", chunk.end, chunk.output_digest, chunk.input.empty() ? "" : " ",
                     fmt::join(chunk.input, " "));
}

/// Nothing where it is no chunk's text.
std::optional<Journal::Chunk> chunk_of(std::string_view text) {
  std::vector<std::uint64_t> numbers;
  while (!text.empty()) {
    std::uint64_t number = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
    if (error != std::errc{}) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.empty()) {
      if (text.front() != ' ') return std::nullopt;
      text.remove_prefix(1);
    }
    numbers.push_back(number);
  }
  if (numbers.size() < 2) return std::nullopt;
  return Journal::Chunk{numbers[0], numbers[1], {numbers.begin() + 2, numbers.end()}};
}

std::string text_of(Journal::Identity const& identity) {
  auto json = Json::object();
  for (auto const& [name, value] : identity) json[name] = value;
  return std::string(magic) + json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

void check_identity(std::string_view text, std::string const& path, Journal::Identity const& identity) {
  auto const json = text.starts_with(magic) ? Json::parse(text.substr(magic.size()), nullptr, false) : Json();
  if (!json.is_object()) throw IoError(path, 0, "no journal of a stream");
  // Values as they would have been written: JSON knows UTF-8 alone.
  auto const own = Json::parse(text_of(identity).substr(magic.size()));
  for (auto const& [name, given] : identity) {
    auto const value = own[name].get<std::string>();
    auto const found = json.find(name);
    auto const shown = found == json.end() || !found->is_string() ? "nothing" : found->get<std::string>();
    if (shown == value) continue;
    auto const before = detail::quoted(shown), now = detail::quoted(value);
    throw IoError(path, 0,
                  before == now
                      ? fmt::format("the journal of another run: the {} has changed since; remove it to begin "
                                    "anew",
                                    name)
                      : fmt::format("the journal of another run: its {} is {}, not {}; remove it to begin anew", name,
                                    before, now));
  }
}

}  // namespace

std::string journal_line(Journal::Identity const& identity) {
  return line_of(text_of(identity));
}

std::string journal_line(Journal::Chunk const& chunk) {
  return line_of(text_of(chunk));
}

JournalLines parse_journal(std::string_view text, std::string const& path, Journal::Identity const& identity) {
  JournalLines lines;
  std::size_t at = 0;
  for (auto end = text.find('\n'); end != std::string_view::npos; end = text.find('\n', at)) {
    auto const line = text_of(text.substr(at, end - at));
    if (!line) break;
    if (lines.ends.empty()) {
      check_identity(*line, path, identity);
    } else {
      auto chunk = chunk_of(*line);
      auto const before = lines.chunks.empty() ? 0 : lines.chunks.back().end;
      if (!chunk || chunk->end <= before) break;
      lines.chunks.push_back(*std::move(chunk));
    }
    at = end + 1;
    lines.ends.push_back(at);
  }
  // A run that was killed before its first line was whole has left the beginning of that.
  if (lines.ends.empty() && !journal_line(identity).starts_with(text))
    throw IoError(path, 0, "no journal of a stream; remove it to begin anew");
  return lines;
}

Journal::Journal(std::filesystem::path const& path, Identity const& identity)
    : file_{UniqueFd{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)}, path.string()} {
  if (file_.descriptor() < 0) throw IoError(path.string(), errno, "cannot open the journal");
  if (::flock(file_.descriptor(), LOCK_EX | LOCK_NB) != 0) {
    throw IoError(path.string(), errno, "another run goes on with this output");
  }
  auto const bytes = static_cast<std::uint64_t>(file_.status("cannot look at it").st_size);
  if (bytes > largest_bytes) {
    throw IoError(file_.name(), 0, fmt::format("no journal: it has {} bytes, more than {}", bytes, largest_bytes));
  }
  std::string all(bytes, '\0');
  all.resize(file_.read(0, std::as_writable_bytes(std::span{all}), "cannot read the journal"));
  auto lines = parse_journal(all, file_.name(), identity);
  chunks_ = std::move(lines.chunks);
  ends_ = std::move(lines.ends);
  if (ends_.empty()) {
    auto const first = journal_line(identity);
    file_.write(0, std::as_bytes(std::span{first}), writing_journal);
    ends_.push_back(first.size());
  }
  keep(chunks_.size());
}

void Journal::keep(std::size_t count) {
  chunks_.resize(count);
  ends_.resize(count + 1);
  if (::ftruncate(file_.descriptor(), static_cast<::off_t>(ends_.back())) != 0) {
    throw IoError(file_.name(), errno, writing_journal);
  }
}

void Journal::add(Chunk const& chunk) {
  auto const line = journal_line(chunk);
  file_.write(ends_.back(), std::as_bytes(std::span{line}), writing_journal);
  ends_.push_back(ends_.back() + line.size());
  chunks_.push_back(chunk);
}

void Journal::remove() {
  if (::unlink(file_.name().c_str()) != 0) throw IoError(file_.name(), errno, "cannot remove the journal");
}

}  // namespace unimem::detail
