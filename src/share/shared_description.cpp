#include "share/shared_description.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "process/peers.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdint>
#include <optional>

namespace unimem::detail {
namespace {

using Json = nlohmann::json;

constexpr int version = 1;

/// The bytes that so many elements take; nothing where that is no size.
std::optional<std::size_t> size_of(SharedDescription const& described) {
  std::size_t bytes = described.element_bytes;
  for (auto const extent : described.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace

std::string SharedDescription::encode() const {
  // CBOR, whose strings may be any bytes, as names may.
  auto const encoded = Json::to_cbor(Json{{"version", version},
                                          {"name", name},
                                          {"buffer", buffer},
                                          {"element", element_name},
                                          {"element_bytes", element_bytes},
                                          {"tag", static_cast<unsigned>(tag)},
                                          {"shape", shape},
                                          {"bytes", bytes}});
  if (encoded.size() > Peers::most_bytes) {
    throw InvalidArgument("names and shape", fmt::format("{} bytes in all", encoded.size()),
                          fmt::format("at most {} for other processes", Peers::most_bytes));
  }
  return {encoded.begin(), encoded.end()};
}

SharedDescription SharedDescription::decode(std::string_view bytes, std::string const& from) {
  auto const refuse = [&](char const* what) { throw IoError(from, EPROTO, what); };
  auto const json = Json::from_cbor(bytes.begin(), bytes.end(), true, false);
  if (!json.is_object()) refuse("what it tells of a buffer is no description");
  SharedDescription described;
  try {
    if (json.at("version") != version) refuse("it tells of a buffer as another version of the library does");
    json.at("name").get_to(described.name);
    json.at("buffer").get_to(described.buffer);
    json.at("element").get_to(described.element_name);
    json.at("element_bytes").get_to(described.element_bytes);
    auto const tag = json.at("tag").get<std::uint64_t>();
    described.tag = static_cast<ElementTag>(tag);
    if (tag > 255 || to_string(described.tag) == "unknown") refuse("it tells of elements that this version knows not");
    json.at("shape").get_to(described.shape);
    json.at("bytes").get_to(described.bytes);
  } catch (Json::exception const& error) {
    throw IoError(from, EPROTO, fmt::format("what it tells of a buffer is incomplete: {}", error.what()));
  }
  if (described.element_bytes == 0 || size_of(described) != described.bytes) {
    refuse("what it tells of a buffer does not add up: shape, elements and size");
  }
  return described;
}

}  // namespace unimem::detail
