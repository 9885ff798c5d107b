#include "stream/byte_source.hpp"

#include <unimem/core/error.hpp>

#include "file/file.hpp"

#include <fmt/format.h>

namespace unimem::detail {

ByteSource ByteSource::of(File const& file) {
  auto const size = static_cast<std::uint64_t>(file.status("cannot look at it").st_size);
  return {file.name(), size, [&file](std::uint64_t offset, std::span<std::byte> to) {
            auto const found = file.read(offset, to, "cannot read");
            if (found == to.size()) return;
            throw IoError(file.name(), 0,
                          fmt::format("shrank while its header was read: bytes [{}, {}) end at {}", offset,
                                      offset + to.size(), offset + found));
          }};
}

}  // namespace unimem::detail
