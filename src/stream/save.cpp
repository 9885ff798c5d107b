#include <unimem/stream/save.hpp>

#include <unimem/core/error.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/named_buffers.hpp"
#include "device/watched_wait.hpp"
#include "file/digest.hpp"
#include "stream/named_once.hpp"
#include "stream/output_file.hpp"
#include "stream/saved_state.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace unimem {

using detail::SavedBuffer;
using detail::SavedState;

namespace {

using Buffers = std::vector<std::shared_ptr<BufferCore>>;

SavedBuffer described(BufferCore& core) {
  SavedBuffer saved;
  saved.name = core.name();
  saved.bytes = core.size_bytes();
  auto const& elements = core.options().elements;
  saved.element = elements ? detail::element_text(elements->dtype, elements->bytes) : "uint8";
  if (elements) saved.shape.assign(elements->shape.begin(), elements->shape.end());
  saved.has_bytes = saved.bytes == 0 || core.has_contents();
  return saved;
}

/// The largest elements first, so that each tensor is aligned as its elements are.
std::size_t alignment_of(BufferCore const& core) {
  auto const& elements = core.options().elements;
  return elements && elements->bytes != 0 ? elements->bytes & (~elements->bytes + 1) : 1;
}

/// The whole file as it will be, with zeros for the checksums.
SavedState planned(Buffers const& buffers) {
  SavedState state;
  std::uint64_t offset = 0;
  for (auto const& core : buffers) {
    auto& saved = state.buffers.emplace_back(described(*core));
    if (!saved.has_bytes) continue;
    saved.offset = offset;
    offset += saved.bytes;
    saved.digests.assign(saved.bytes / state.block_bytes + (saved.bytes % state.block_bytes == 0 ? 0 : 1), 0);
  }
  return state;
}

}  // namespace

void save(MemoryManager& manager, std::filesystem::path const& path) {
  if (path.empty()) throw InvalidArgument("path", "", "the name of a file");
  auto buffers = detail::named_once(manager);
  // Written all the same it would be in the place of what was saved earlier.
  if (buffers.empty()) throw InvalidArgument("manager", "no named buffers", "one with a live buffer that has a name");
  std::ranges::stable_sort(buffers, std::ranges::greater{}, [](auto const& core) { return alignment_of(*core); });
  auto state = planned(buffers);
  auto const header = detail::format_saved_state(state);

  detail::WatchedWait interrupted("saving");
  detail::OutputFile file(path);
  file.write(std::as_bytes(std::span(header)));
  std::vector<std::byte> block(detail::save_block_bytes);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    auto& saved = state.buffers[i];
    if (!saved.has_bytes) continue;
    detail::BlockDigests digests(Checksum::xxh3, state.block_bytes);
    for (std::size_t begin = 0; begin < saved.bytes; begin += block.size()) {
      interrupted.look();
      auto const part = std::span(block).first(std::min<std::size_t>(block.size(), saved.bytes - begin));
      buffers[i]->read_in_place(begin, part);
      digests.add(part);
      file.write(part);
    }
    digests.finish();
    saved.digests = digests.take();
  }
  // As long as the first: only digits of checksums differ.
  auto const final_header = detail::format_saved_state(state);
  file.rewrite(0, std::as_bytes(std::span(final_header)));
  file.sync();
  file.commit();
}

}  // namespace unimem
