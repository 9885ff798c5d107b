#include "share/sent_note.hpp"

#include <charconv>
#include <memory>
#include <system_error>

namespace unimem::detail {
namespace {

constexpr std::string_view copy = "copy ", shared = "shared ";

}  // namespace

std::string SentNote::encode() const {
  return std::string(kind == Kind::copy ? copy : shared) + std::to_string(bytes);
}

std::optional<SentNote> SentNote::decode(std::string_view text) noexcept {
  SentNote note;
  if (text.starts_with(copy)) {
    text.remove_prefix(copy.size());
  } else if (text.starts_with(shared)) {
    note.kind = Kind::shared;
    text.remove_prefix(shared.size());
  } else {
    return std::nullopt;
  }
  auto const* const end = std::to_address(text.end());
  auto const [read, error] = std::from_chars(std::to_address(text.begin()), end, note.bytes);
  if (error != std::errc{} || read != end) return std::nullopt;
  return note;
}

}  // namespace unimem::detail
