#pragma once

#include "file/file.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unimem::detail {

/// The chunks of a stream that are in its unfinished output, so that another process can go on after this one was
/// killed. A line of text for each, with a checksum of its own: a line that was cut off is none.
///
/// Made and destroyed it stays; `remove` takes it away. Locked while it is open: two runs for one output exclude each
/// other. Used by one thread at a time.
class Journal {
 public:
  /// What must be equal in the run that goes on: names and values, in one order.
  using Identity = std::vector<std::pair<std::string, std::string>>;

  struct Chunk {
    std::uint64_t end = 0;             ///< where in the input it ends; it begins where the one before does
    std::uint64_t output_digest = 0;   ///< XXH3 of what was written for it
    std::vector<std::uint64_t> input;  ///< the checksums that were found while it was read

    friend bool operator==(Chunk const&, Chunk const&) = default;
  };

  /// Opens or makes it. Throws IoError: not to be opened, locked by another run, no journal, or one of a run whose
  /// identity differs, which is named.
  Journal(std::filesystem::path const& path, Identity const& identity);

  /// Those that it had when it was opened, or what `keep` left of them.
  [[nodiscard]] std::vector<Chunk> const& chunks() const noexcept { return chunks_; }
  /// Forgets all but the first `count`. Throws IoError.
  void keep(std::size_t count);
  /// Throws IoError.
  void add(Chunk const& chunk);
  /// Throws IoError.
  void remove();

 private:
  File file_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint64_t> ends_;  ///< of the lines in the file: of the first, and of each chunk's
};

/// What counts of a journal's text: its lines as far as each is whole.
struct JournalLines {
  std::vector<Journal::Chunk> chunks;
  std::vector<std::uint64_t> ends;  ///< of the first line, and of each chunk's; none where not even that is whole
};

/// What a journal that is called `path` has in it. Throws IoError, naming that: no journal, or one of a run whose
/// identity differs, which is named.
[[nodiscard]] JournalLines parse_journal(std::string_view text, std::string const& path,
                                         Journal::Identity const& identity);
/// A journal's first line, and that of a chunk.
[[nodiscard]] std::string journal_line(Journal::Identity const& identity);
[[nodiscard]] std::string journal_line(Journal::Chunk const& chunk);

}  // namespace unimem::detail
