#include "commands.hpp"
#include "plain_text.hpp"
#include "standard_streams.hpp"

#include <unimem/core/size.hpp>
#include <unimem/share/shared_list.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

namespace unimem::cli {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(SharingProcess const& one) {
  Json json;
  json["pid"] = one.pid;
  json["command"] = one.command;
  json["alive"] = one.alive;
  json["serves"] = one.serves;
  json["reading_bytes"] = one.reading_bytes;
  json["writing_bytes"] = one.writing_bytes;
  return json;
}

Json json_of(SharedWithOthers const& one) {
  Json json;
  json["id"] = to_string(one.id);
  json["name"] = one.name;
  json["buffer"] = one.buffer;
  json["element"] = one.element;
  json["element_bytes"] = one.element_bytes;
  auto& shape = json["shape"] = Json::array();
  for (auto const extent : one.shape.extents()) shape.push_back(extent);
  json["bytes"] = one.bytes;
  auto& holders = json["holders"] = Json::array();
  for (auto const& holder : one.holders) holders.push_back(json_of(holder));
  json["lost_bytes"] = one.lost_bytes;
  json["trouble"] = nullptr;
  if (!one.trouble.empty()) json["trouble"] = one.trouble;
  return json;
}

Json json_of(SentAndNotReceived const& one) {
  Json json;
  json["pid"] = one.pid;
  json["command"] = one.command;
  json["copies"] = one.copies;
  json["copied_bytes"] = one.copied_bytes;
  json["shared"] = one.shared;
  json["shared_bytes"] = one.shared_bytes;
  return json;
}

std::string json_of(SharedOnThisHost const& all) {
  Json json;
  auto& buffers = json["buffers"] = Json::array();
  for (auto const& one : all.buffers) buffers.push_back(json_of(one));
  auto& sent = json["sent"] = Json::array();
  for (auto const& one : all.sent) sent.push_back(json_of(one));
  json["unanswered"] = all.unanswered;
  // Names are other programs', of any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

std::string in_quotes(std::string_view text) {
  return fmt::format("'{}'", plain_text(text));
}

std::string text_of(SharingProcess const& one) {
  std::string does;
  auto const say = [&does](std::string const& what) { does += (does.empty() ? "" : ", ") + what; };
  if (!one.alive) say("has ended");
  if (one.serves) say("serves it");
  if (one.reading_bytes != 0) say("reads " + format_size(one.reading_bytes));
  if (one.writing_bytes != 0) say("writes " + format_size(one.writing_bytes));
  if (does.empty()) say("holds it");
  return fmt::format("  {:<8} {:<16} {}\n", one.pid, plain_text(one.command), does);
}

std::string text_of(SharedWithOthers const& one) {
  auto text = to_string(one.id);
  if (!one.name.empty()) text += ' ' + in_quotes(one.name);
  if (!one.buffer.empty()) text += ", buffer " + in_quotes(one.buffer);
  std::string extents;
  for (auto const extent : one.shape.extents()) extents += fmt::format("{}{}", extents.empty() ? "" : " x ", extent);
  text += fmt::format(": {}, {} of {}\n", format_size(one.bytes), extents, plain_text(one.element));
  for (auto const& holder : one.holders) text += text_of(holder);
  if (one.lost_bytes != 0)
    text += fmt::format("  {} lost with a process that ended while it was writing\n", format_size(one.lost_bytes));
  if (!one.trouble.empty()) text += fmt::format("  not known: {}\n", plain_text(one.trouble));
  return text;
}

std::string text_of(SentAndNotReceived const& one) {
  std::string what;
  auto const say = [&what](std::size_t count, std::size_t bytes, char const* kind) {
    if (count != 0) what += fmt::format("{}{} {} ({})", what.empty() ? "" : ", ", count, kind, format_size(bytes));
  };
  say(one.copies, one.copied_bytes, one.copies == 1 ? "copy" : "copies");
  say(one.shared, one.shared_bytes, "shared");
  return fmt::format("sent by {} {} and not received: {}\n", one.pid, plain_text(one.command), what);
}

std::string text_of(SharedOnThisHost const& all) {
  std::string text;
  for (auto const& one : all.buffers) text += text_of(one);
  for (auto const& one : all.sent) text += text_of(one);
  if (text.empty()) text = "nothing is shared\n";
  for (auto const& one : all.unanswered) text += plain_text(one) + '\n';
  return text;
}

}  // namespace

int run(PsCommand const& command) {
  auto const all = shared_on_this_host();
  write_standard_output(command.json ? json_of(all) : text_of(all));
  return EXIT_SUCCESS;
}

}  // namespace unimem::cli
