#include "stream/manifest.hpp"

#include <unimem/core/error.hpp>

#include "core/quoted.hpp"
#include "file/digest.hpp"
#include "file/file.hpp"
#include "stream/utf8.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace unimem::detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view format_name = "unimem manifest";
constexpr std::uint64_t version = 1;
constexpr std::size_t largest_manifest_bytes = std::size_t{256} << 20;
constexpr int deepest = 4;  // an array of texts, in an object, in an array, in an object

constexpr std::string_view hexadecimal = "0123456789abcdef";

/// Of the bytes of a name that is no UTF-8, which JSON alone has.
std::string to_hexadecimal(std::string_view bytes) {
  std::string digits;
  for (auto const c : bytes) {
    auto const byte = static_cast<unsigned char>(c);
    digits += hexadecimal[byte / 16U];
    digits += hexadecimal[byte % 16U];
  }
  return digits;
}

std::optional<std::string> from_hexadecimal(std::string_view digits) {
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    auto const high = hexadecimal.find(digits[i]), low = hexadecimal.find(digits[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    bytes += static_cast<char>(16 * high + low);
  }
  return bytes;
}

/// Reads the parts of a manifest; every complaint names its file.
class Reader {
 public:
  explicit Reader(std::string const& path) : path_(path) {}

  [[nodiscard]] Manifest read(Json const& json) const {
    if (!json.is_object()) malformed("it is no object");
    if (text(json, "format") != format_name) malformed("its \"format\" is another");
    if (auto const found = number(json, "version"); found != version) {
      malformed(fmt::format("version {} is not known", found));
    }
    Manifest manifest;
    auto const& algorithm = text(json, "checksum");
    if (algorithm != "xxh3" && algorithm != "crc32c")
      malformed(fmt::format("unknown checksum {}", detail::quoted(algorithm)));
    manifest.checksum = parse_checksum(algorithm);
    manifest.chunk_bytes = number(json, "chunk_bytes");
    if (manifest.chunk_bytes == 0) malformed("chunks of no bytes");
    auto const& files = member(json, "files");
    if (!files.is_array()) malformed("\"files\" is no list");
    for (auto const& file : files) manifest.files.push_back(read_file(file, manifest));
    return manifest;
  }

  [[noreturn]] void malformed(std::string_view what) const {
    throw IoError(path_, 0, fmt::format("no manifest that can be used: {}", what));
  }

 private:
  [[nodiscard]] Json const& member(Json const& json, char const* name) const {
    auto const found = json.find(name);
    if (found == json.end()) malformed(fmt::format("there is no \"{}\"", name));
    return *found;
  }
  [[nodiscard]] std::string const& text(Json const& json, char const* name) const {
    auto const& value = member(json, name);
    if (!value.is_string()) malformed(fmt::format("\"{}\" is no text", name));
    return value.get_ref<std::string const&>();
  }
  [[nodiscard]] std::uint64_t number(Json const& json, char const* name) const {
    auto const& value = member(json, name);
    if (!value.is_number_unsigned()) malformed(fmt::format("\"{}\" is no whole number of 64 bits", name));
    return value.get<std::uint64_t>();
  }
  [[nodiscard]] std::uint64_t digest(Json const& json, Checksum algorithm) const {
    auto const value = json.is_string() ? parse_digest(algorithm, json.get_ref<std::string const&>()) : std::nullopt;
    if (!value) malformed(fmt::format("{} is no {}", detail::quoted(json.dump()), to_string(algorithm)));
    return *value;
  }

  [[nodiscard]] std::string name_of_bytes(std::string const& digits) const {
    auto const name = from_hexadecimal(digits);
    if (!name || is_utf8(*name)) {
      malformed(fmt::format("\"name_bytes\" {} are no bytes, or such as \"name\" would hold", detail::quoted(digits)));
    }
    return *name;
  }

  [[nodiscard]] Manifest::File read_file(Json const& json, Manifest const& manifest) const {
    if (!json.is_object()) malformed("one of \"files\" is no object");
    Manifest::File file;
    file.name = json.contains("name_bytes") ? name_of_bytes(text(json, "name_bytes")) : text(json, "name");
    file.bytes = number(json, "bytes");
    if (json.contains("header")) file.header = digest(json["header"], manifest.checksum);
    auto const& chunks = member(json, "chunks");
    if (!chunks.is_array()) malformed("\"chunks\" is no list");
    auto const wanted = file.bytes / manifest.chunk_bytes + (file.bytes % manifest.chunk_bytes != 0 ? 1 : 0);
    if (chunks.size() != wanted) {
      malformed(fmt::format("{} chunks of {} bytes are {}, and {} has {} checksums", file.bytes, manifest.chunk_bytes,
                            wanted, detail::quoted(file.name), chunks.size()));
    }
    file.chunks.reserve(chunks.size());
    for (auto const& chunk : chunks) file.chunks.push_back(digest(chunk, manifest.checksum));
    return file;
  }

  std::string const& path_;
};

Json parse(std::string_view text, Reader const& reader) {
  // The parser takes it for the end of the text.
  if (auto const nul = text.find('\0'); nul != std::string_view::npos)
    reader.malformed(fmt::format("a NUL at byte {}", nul + 1));
  auto const shallow = [&](int depth, Json::parse_event_t event, Json&) {
    bool const begins = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (begins && depth >= deepest) reader.malformed(fmt::format("nested deeper than {}", deepest));
    return true;
  };
  try {
    return Json::parse(text, shallow);
  } catch (Json::parse_error const& error) {
    reader.malformed(fmt::format("no JSON at byte {}", error.byte));
  } catch (Json::out_of_range const&) {
    reader.malformed("a number is beyond what numbers can be");
  }
}

/// How many names two paths have in common, counted from their ends.
std::ptrdiff_t names_alike(std::filesystem::path const& a, std::filesystem::path const& b) {
  std::vector<std::filesystem::path> const left(a.begin(), a.end()), right(b.begin(), b.end());
  return std::mismatch(left.rbegin(), left.rend(), right.rbegin(), right.rend()).first - left.rbegin();
}

}  // namespace

bool Manifest::has_name_of(std::string const& path) const {
  return std::ranges::any_of(files, [&](File const& file) { return names_alike(file.name, path) > 0; });
}

Manifest::File const* Manifest::find(std::string const& path) const {
  auto const exact = std::ranges::find(files, path, &File::name);
  if (exact != files.end()) return &*exact;
  File const* best = nullptr;
  std::ptrdiff_t most = 0;
  for (auto const& file : files) {
    auto const alike = names_alike(file.name, path);
    if (alike == most) best = nullptr;
    if (alike <= most) continue;
    most = alike;
    best = &file;
  }
  return best;
}

Manifest parse_manifest(std::string_view text, std::string const& path) {
  Reader const reader(path);
  return reader.read(parse(text, reader));
}

Manifest read_manifest(std::filesystem::path const& path) {
  auto const file = File::open_regular(path.string(), O_RDONLY, "cannot open for reading");
  auto const bytes = static_cast<std::uint64_t>(file.status("cannot look at it").st_size);
  if (bytes > largest_manifest_bytes)
    Reader(file.name()).malformed(fmt::format("it has {} bytes, more than {}", bytes, largest_manifest_bytes));
  std::string text(bytes, '\0');
  text.resize(file.read(0, std::as_writable_bytes(std::span{text}), "cannot read"));
  return parse_manifest(text, file.name());
}

std::string to_json(Manifest const& manifest) {
  Json json;
  json["format"] = format_name;
  json["version"] = version;
  json["checksum"] = to_string(manifest.checksum);
  json["chunk_bytes"] = manifest.chunk_bytes;
  auto& files = json["files"] = Json::array();
  for (auto const& file : manifest.files) {
    Json one;
    one["name"] = file.name;
    if (!is_utf8(file.name)) one["name_bytes"] = to_hexadecimal(file.name);
    one["bytes"] = file.bytes;
    if (file.header) one["header"] = digest_text(manifest.checksum, *file.header);
    auto& chunks = one["chunks"] = Json::array();
    for (auto const digest : file.chunks) chunks.push_back(digest_text(manifest.checksum, digest));
    files.push_back(std::move(one));
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace unimem::detail
