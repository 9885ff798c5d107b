#include <unimem/core/log.hpp>

#include "stream/stream_outputs.hpp"

#include "stream/npy.hpp"
#include "stream/stream_request.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

namespace unimem::detail {
namespace {

void write_text(OutputFile& file, std::string const& text) {
  if (!text.empty()) file.write(std::as_bytes(std::span{text}));
}

/// What an output begins with.
std::string header_of(StreamRequest const& request) {
  if (request.options.output.extension() != ".npy") return {};
  auto const element = request.element;
  if (auto const shape = request.input.shape()) return format_npy_header(element, *shape);
  std::array const flat{*request.input.bytes() / element_size(element)};
  return format_npy_header(element, flat);
}

/// What a run that goes on must have in common with the one that began.
Journal::Identity identity_of(StreamRequest const& request) {
  auto const& check = request.check;
  auto const checked =
      check ? fmt::format("{} of {} bytes", to_string(check->found().checksum), check->found().chunk_bytes)
            : std::string("none");
  return {{"kernel", request.kernel.work()->identity()},
          {"input", fmt::format("{}", fmt::join(request.input.identities(), ", "))},
          {"element", std::string(to_string(request.element))},
          {"chunk size", fmt::format("{}", request.plan.chunk_bytes)},
          {"output", request.options.output.filename().string()},
          {"checksum", checked},
          {"manifest", request.options.verify.string()}};
}

/// A run that is not to go on leaves alone what an interrupted one has left to go on with, and says so.
void tell_of_unfinished(OutputFile const& output) {
  std::error_code unknown;
  auto const journal = output.journal();
  if (!std::filesystem::exists(journal, unknown)) return;
  log(LogLevel::warning, fmt::format("'{}' and the unfinished output beside it are of an interrupted run that `resume` "
                                     "goes on with; remove them if it is not to",
                                     journal.string()));
}

}  // namespace

StreamOutputs::StreamOutputs(StreamRequest const& request) {
  auto const& options = request.options;
  if (!options.manifest.empty()) manifest_.emplace(options.manifest);
  if (options.output.empty()) return;
  using enum OutputFile::Unfinished;
  output_.emplace(options.output, options.resume ? stays : goes);
  auto const header = header_of(request);
  if (options.resume) {
    auto const block_bytes = request.check ? request.check->found().chunk_bytes : 1;
    resumption_.emplace(*output_, header, identity_of(request), block_bytes);
  } else {
    write_text(*output_, header);
  }
}

void StreamOutputs::commit(StreamRequest const& request) {
  if (manifest_) write_text(*manifest_, to_json(request.check->found()));
  if (output_) output_->commit();
  if (output_ && !resumption_) tell_of_unfinished(*output_);
  if (resumption_) resumption_->end();
  if (manifest_) manifest_->commit();
}

}  // namespace unimem::detail
