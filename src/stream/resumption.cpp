#include "stream/resumption.hpp"

#include "file/digest.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace unimem::detail {

Resumption::Resumption(OutputFile& output, std::string_view header, Journal::Identity const& identity,
                       std::uint64_t block_bytes)
    : output_(output), journal_(output.journal(), identity) {
  auto const& chunks = journal_.chunks();
  std::size_t whole = 0;    // chunks that are there
  std::size_t through = 0;  // of them, those after which the stream can go on
  if (begins_with(header)) {
    std::uint64_t end = 0;
    for (; whole < chunks.size(); ++whole) {
      auto const& chunk = chunks[whole];
      if (!has(header.size() + end, chunk.end - end, chunk.output_digest)) break;
      end = chunk.end;
      if (end % block_bytes == 0) {
        through = whole + 1;
        begin_ = end;
      }
    }
  }
  journal_.keep(through);
  if (through == 0) {
    output_.go_on_at(0);
    output_.write(std::as_bytes(std::span{header}));
  } else {
    output_.go_on_at(header.size() + begin_);
  }
  end_ = begin_;
}

bool Resumption::begins_with(std::string_view header) const {
  std::string there(header.size(), '\0');
  return output_.read(0, std::as_writable_bytes(std::span{there})) == header.size() && there == header;
}

bool Resumption::has(std::uint64_t offset, std::uint64_t bytes, std::uint64_t digest) const {
  constexpr std::uint64_t step = std::uint64_t{1} << 20;
  Digest found(Checksum::xxh3);
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(step, bytes)));
  while (bytes != 0) {
    auto const part = std::span{block}.first(static_cast<std::size_t>(std::min(step, bytes)));
    if (output_.read(offset, part) != part.size()) return false;
    found.add(part);
    offset += part.size();
    bytes -= part.size();
  }
  return found.take() == digest;
}

std::vector<std::uint64_t> Resumption::input_digests() const {
  std::vector<std::uint64_t> all;
  for (auto const& chunk : journal_.chunks()) all.insert(all.end(), chunk.input.begin(), chunk.input.end());
  return all;
}

void Resumption::give_up() {
  output_.keep_no_longer();
  journal_.remove();
}

void Resumption::wrote(std::span<const std::byte> output, std::vector<std::uint64_t> input_digests) {
  end_ += output.size();
  journal_.add({end_, digest_of(Checksum::xxh3, output), std::move(input_digests)});
}

}  // namespace unimem::detail
