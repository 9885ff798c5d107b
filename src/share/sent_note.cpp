#include "share/sent_note.hpp"

#include <charconv>
#include <memory>
#include <system_error>

namespace unimem::detail {
namespace {

constexpr std::string_view words[] = {"copy ", "device ", "shared "};  // by kind

}  // namespace

std::string SentNote::encode() const {
  auto text = std::string(words[static_cast<std::size_t>(kind)]) + std::to_string(bytes);
  if (kind == Kind::on_device) text += ' ' + hardware_id;
  return text;
}

std::optional<SentNote> SentNote::decode(std::string_view text) noexcept try {
  SentNote note;
  for (auto const kind : {Kind::copy, Kind::on_device, Kind::shared}) {
    auto const word = words[static_cast<std::size_t>(kind)];
    if (!text.starts_with(word)) continue;
    note.kind = kind;
    text.remove_prefix(word.size());
    auto const* const end = std::to_address(text.end());
    auto const [read, error] = std::from_chars(std::to_address(text.begin()), end, note.bytes);
    if (error != std::errc{}) return std::nullopt;
    std::string_view const rest(read, end);
    if (kind != Kind::on_device) return rest.empty() ? std::optional{note} : std::nullopt;
    if (rest.size() < 2 || rest.front() != ' ') return std::nullopt;
    note.hardware_id = rest.substr(1);
    return note;
  }
  return std::nullopt;
} catch (std::bad_alloc const&) {
  return std::nullopt;
}

}  // namespace unimem::detail
