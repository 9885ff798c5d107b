#include <unimem/core/error.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/stream/checksum_mismatch.hpp>
#include <unimem/stream/save.hpp>

#include "buffer/named_buffers.hpp"
#include "core/quoted.hpp"
#include "device/watched_wait.hpp"
#include "file/digest.hpp"
#include "file/file.hpp"
#include "stream/named_once.hpp"
#include "stream/safetensors.hpp"
#include "stream/saved_state.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unimem {

using detail::File;
using detail::SavedBuffer;
using detail::SavedState;

namespace {

using Buffers = std::vector<std::shared_ptr<BufferCore>>;
using Block = std::span<const std::byte>;

constexpr std::string_view saved_checksums = "those it was saved with";

/// Reads all of `to`, of a file that has it unless it was cut meanwhile.
void read(File const& file, std::uint64_t offset, std::span<std::byte> to) {
  auto const bytes = file.read(offset, to, "cannot read");
  if (bytes == to.size()) return;
  throw IoError(file.name(), 0, fmt::format("ends at byte {} by now, and it had more", offset + bytes));
}

SavedState read_state(File const& file) {
  auto const size = static_cast<std::uint64_t>(file.status("cannot look at it").st_size);
  std::array<std::byte, detail::safetensors_prefix_bytes> prefix{};
  if (size >= prefix.size()) read(file, 0, prefix);
  std::string header(prefix.size() + detail::safetensors_header_bytes(prefix, size, file.name()), '\0');
  read(file, 0, std::as_writable_bytes(std::span(header)));
  return detail::parse_saved_state(header, size - header.size(), file.name());
}

/// A buffer, and what the file has for it.
struct Pair {
  std::shared_ptr<BufferCore> core;
  SavedBuffer const* saved = nullptr;
};

void check_alike(BufferCore const& core, SavedBuffer const& saved, bool checked, std::string const& path) {
  auto const what = fmt::format("restoring {} of '{}'", detail::quoted(saved.name), path);
  if (core.size_bytes() != saved.bytes) throw SizeMismatch(what, core.size_bytes(), saved.bytes, "bytes");
  auto const& elements = core.options().elements;
  bool const is_opaque = !elements || elements->dtype.empty();
  if (is_opaque && (!checked || !elements)) return;  // bytes are bytes
  auto const element = detail::element_text(elements->dtype, elements->bytes);
  if (detail::may_hold(element, saved.element)) return;
  throw InvalidArgument(fmt::format("element type of buffer {}", detail::quoted(saved.name)), element,
                        fmt::format("{}, as '{}' has it", detail::quoted(saved.element), path));
}

/// Each buffer with its part of the file. Throws where they are not the same ones, or not to be filled.
std::vector<Pair> matched(Buffers const& buffers, SavedState const& state, std::string const& path) {
  std::vector<Pair> pairs;
  std::vector<SavedBuffer const*> saved;
  saved.reserve(state.buffers.size());
  for (auto const& one : state.buffers) saved.push_back(&one);
  std::ranges::sort(saved, {}, &SavedBuffer::name);
  for (auto const* const one : saved) {
    auto const found = std::ranges::lower_bound(buffers, std::string_view(one->name), {},
                                                [](auto const& core) { return core->name(); });
    if (found == buffers.end() || (*found)->name() != one->name) {
      throw NotFound("buffer", one->name, detail::names_of(buffers), fmt::format("for a tensor of '{}'", path));
    }
    pairs.push_back({*found, one});
  }
  for (auto const& core : buffers) {
    auto const found =
        std::ranges::lower_bound(saved, core->name(), {}, [](auto const* one) { return std::string_view(one->name); });
    if (found != saved.end() && (*found)->name == core->name()) continue;
    std::vector<std::string> names;
    names.reserve(std::min<std::size_t>(saved.size(), 16));
    for (auto const* const one : std::span(saved).first(std::min<std::size_t>(saved.size(), 16))) {
      names.push_back(one->name);
    }
    throw NotFound("tensor", std::string(core->name()), std::move(names),
                   fmt::format("in '{}', for the live buffer of that name", path));
  }
  for (auto const& [core, one] : pairs) {
    check_alike(*core, *one, state.checked, path);
    if (one->has_bytes) core->require_writable("restoring it");
  }
  return pairs;
}

/// Reads the bytes of a buffer block by block, and hands each to `use` with its place. Returns the checksums that are
/// not what the file says.
std::vector<ChecksumMismatch::Chunk> read_blocks(File const& file, SavedState const& state, SavedBuffer const& saved,
                                                 std::vector<std::byte>& block,
                                                 std::function<void(std::size_t, Block)> const& use) {
  detail::BlockDigests digests(Checksum::xxh3, state.block_bytes);
  for (std::size_t begin = 0; begin < saved.bytes; begin += block.size()) {
    auto const part = std::span(block).first(std::min<std::size_t>(block.size(), saved.bytes - begin));
    read(file, saved.offset + begin, part);
    if (state.checked) digests.add(part);
    use(begin, part);
  }
  std::vector<ChecksumMismatch::Chunk> differ;
  if (!state.checked) return differ;
  digests.finish();
  auto const found = digests.take();
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == saved.digests[i]) continue;
    auto const offset = i * state.block_bytes;
    differ.push_back(
        {fmt::format("{}#{}", file.name(), saved.name), i, offset, std::min(state.block_bytes, saved.bytes - offset),
         detail::digest_text(Checksum::xxh3, saved.digests[i]), detail::digest_text(Checksum::xxh3, found[i])});
  }
  return differ;
}

void verify(File const& file, SavedState const& state, std::vector<std::byte>& block) {
  detail::WatchedWait interrupted("restoring");
  std::vector<ChecksumMismatch::Chunk> differ;
  for (auto const& saved : state.buffers) {
    if (!saved.has_bytes) continue;
    auto found = read_blocks(file, state, saved, block, [&](std::size_t, Block) { interrupted.look(); });
    std::ranges::move(found, std::back_inserter(differ));
  }
  if (!differ.empty()) throw ChecksumMismatch(std::move(differ), saved_checksums);
}

/// The device that alone has memory for the buffer; null where the host is the place to write to.
Device* home_of(BufferCore const& core) {
  auto const devices = core.devices_with_memory();
  bool const alone = devices.size() == 1 && !devices.front()->reaches_host_memory();
  return alone && !core.valid_on_host() ? devices.front() : nullptr;
}

void write_on(Device& device, BufferCore& core, std::size_t begin, Block bytes) {
  Operand const operand{&core, {begin, begin + bytes.size()}, Intent::write};
  auto& queue = device.default_queue();
  use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
    return queue.upload(memory.front(), bytes.data(), bytes.size(), needs);
  }).wait();
}

void fill(Pair const& pair, File const& file, SavedState const& state, std::vector<std::byte>& block) {
  auto& core = *pair.core;
  auto* const home = home_of(core);
  auto differ = read_blocks(file, state, *pair.saved, block, [&](std::size_t begin, Block bytes) {
    home != nullptr ? write_on(*home, core, begin, bytes) : core.write(begin, bytes);
  });
  if (!differ.empty()) throw ChecksumMismatch(std::move(differ), saved_checksums);  // changed under the reading
}

}  // namespace

void restore(MemoryManager& manager, std::filesystem::path const& path) {
  if (path.empty()) throw InvalidArgument("path", "", "the name of a file");
  auto const file = File::open_regular(path.string(), O_RDONLY, "cannot open");
  auto const state = read_state(file);
  auto const pairs = matched(detail::named_once(manager), state, file.name());
  std::vector<std::byte> block(detail::save_block_bytes);
  if (state.checked) verify(file, state, block);
  for (auto const& pair : pairs) {
    if (pair.saved->has_bytes) fill(pair, file, state, block);
  }
}

}  // namespace unimem
