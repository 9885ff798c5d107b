#include <unimem/stream/stream_kernel.hpp>

#include "stream/chunk_work.hpp"

#include <utility>

namespace unimem {

StreamKernel::StreamKernel(Kernel const& kernel) : StreamKernel(mapping(kernel)) {}

StreamKernel::StreamKernel(std::shared_ptr<detail::ChunkWork const> work, std::optional<ElementType> element)
    : work_(std::move(work)), element_(element) {}

StreamKernel::StreamKernel(StreamKernel const&) noexcept = default;
StreamKernel::StreamKernel(StreamKernel&&) noexcept = default;
StreamKernel& StreamKernel::operator=(StreamKernel const&) noexcept = default;
StreamKernel& StreamKernel::operator=(StreamKernel&&) noexcept = default;
StreamKernel::~StreamKernel() = default;

std::string_view StreamKernel::name() const noexcept {
  return work_ ? work_->name() : std::string_view{};
}

bool StreamKernel::maps() const noexcept {
  return work_ && work_->maps();
}

}  // namespace unimem
