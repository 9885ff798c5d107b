#include "file/digest.hpp"
#include "fuzz/target.hpp"
#include "stream/journal.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace unimem::fuzz {
namespace {

using detail::Journal;

std::string const path = "a.unimem-journal";
Journal::Identity const identity{{"kernel", "affine"}, {"input", "a: 12 bytes"}};

/// Every whole line with its checksum before it, which no random change of the text would have.
std::string sealed(std::string_view text) {
  std::string all;
  for (auto end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    auto const line = text.substr(0, end);
    auto const digest = detail::digest_of(Checksum::xxh3, bytes_of(line));
    all += fmt::format("{} {}\n", detail::digest_text(Checksum::xxh3, digest), line);
    text.remove_prefix(end + 1);
  }
  return all + std::string(text);
}

auto lines_of(std::string_view text, Journal::Identity const& of = identity) {
  return taken_of_file(path, [&] { return detail::parse_journal(text, path, of); });
}

/// What counts is the first lines, each of a chunk behind the one before; and is the same when it is written anew.
bool run_text(std::string_view text) {
  auto const found = lines_of(text);
  if (!found) return false;
  auto const& [chunks, ends] = *found;
  if (ends.empty()) {
    require(chunks.empty() && detail::journal_line(identity).starts_with(text), "what was never begun is a journal");
    return true;
  }
  require(ends.size() == chunks.size() + 1, "there are other lines than chunks");
  std::uint64_t at = 0, end = 0;
  for (auto const line : ends) {
    require(line > at && line <= text.size() && text.find('\n', at) == line - 1, "a line ends elsewhere");
    at = line;
  }
  auto written = std::string(text.substr(0, ends.front()));
  for (auto const& chunk : chunks) {
    require(chunk.end > end, "a chunk ends before it begins");
    end = chunk.end;
    written += detail::journal_line(chunk);
  }
  auto const again = lines_of(written);
  require(again && again->chunks == chunks && again->ends.back() == written.size(), "what is written anew differs");

  auto const cut = lines_of(std::string_view(written).substr(0, written.size() - 1));
  require(!cut || cut->chunks.size() == (chunks.empty() ? 0 : chunks.size() - 1), "a line that was cut off counts");
  written += detail::journal_line(Journal::Chunk{end, 1, {}});
  require(lines_of(written)->chunks == chunks, "a chunk counts that ends where it begins");
  return true;
}

/// A run goes on with its own journal, whatever files are called, and with no other.
void check_identity(std::string_view name) {
  Journal::Identity const own{{"kernel", "k"}, {"input", std::string(name)}};
  auto const text = detail::journal_line(own) + detail::journal_line(Journal::Chunk{1, 2, {3}});
  auto const found = lines_of(text, own);
  require(found && found->chunks == std::vector{Journal::Chunk{1, 2, {3}}}, "a run does not know its own journal");
  auto other = own;
  other.back().second += '.';
  require(!lines_of(text, other), "another run's journal is taken");
}

/// The input is a journal, as it is and with the checksums of its lines; and what a file is called.
bool run_journal(std::string_view input) {
  bool const raw = run_text(input);
  bool const with_checksums = run_text(sealed(input));
  check_identity(input);
  return raw || with_checksums;
}

Enlisted const journal_target{{"journal", run_journal}};

}  // namespace
}  // namespace unimem::fuzz
