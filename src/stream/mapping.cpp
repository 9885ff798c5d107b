#include <unimem/core/error.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/stream/stream_kernel.hpp>

#include "file/digest.hpp"
#include "stream/chunk_work.hpp"
#include "stream/typed_operand.hpp"

#include <fmt/format.h>

#include <span>
#include <string>
#include <utility>

namespace unimem {
namespace {

class MappingRun final : public detail::ChunkRun {
 public:
  MappingRun(Kernel kernel, ElementType element) : kernel_(std::move(kernel)), element_(element) {}

  [[nodiscard]] std::size_t result_bytes(std::size_t bytes) const noexcept override { return bytes; }

  Event launch(Queue& queue, UnifiedBuffer<std::byte>& chunk, UnifiedBuffer<std::byte>& results,
               std::size_t bytes) override {
    auto const count = bytes / element_size(element_);
    auto in = read(chunk, 0, bytes), out = write(results, 0, bytes);
    for (auto* const operand : {&in, &out}) detail::take_as(*operand, element_);
    return unimem::launch(queue, kernel_, Range{count}, in, out, std::uint64_t{count});
  }

  void combine(std::span<const std::byte> /*results*/, std::size_t /*bytes*/) override {}

  [[nodiscard]] decltype(StreamResult::result) finish(std::uint64_t elements) const override {
    return MappingResult{elements};
  }

 private:
  Kernel kernel_;
  ElementType element_;
};

class MappingWork final : public detail::ChunkWork {
 public:
  explicit MappingWork(Kernel kernel) : kernel_(std::move(kernel)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return kernel_.name(); }
  [[nodiscard]] bool maps() const noexcept override { return true; }
  [[nodiscard]] std::string identity() const override {
    auto const digest = detail::digest_of(Checksum::xxh3, std::as_bytes(std::span{kernel_.forms().source}));
    auto const [x, y, z] = kernel_.group_size();
    auto const groups = x == 0 ? std::string{} : fmt::format(" in groups of ({}, {}, {})", x, y, z);
    return fmt::format("{}{}, source {}", kernel_.name(), groups, detail::digest_text(Checksum::xxh3, digest));
  }
  [[nodiscard]] std::unique_ptr<detail::ChunkRun> start(Device& device, ElementType element,
                                                        bool /*keep_input*/) const override {
    static_cast<void>(kernel_.program(device));
    return std::make_unique<MappingRun>(kernel_, element);
  }

 private:
  Kernel kernel_;
};

}  // namespace

StreamKernel mapping(Kernel const& kernel, std::optional<ElementType> element) {
  if (!kernel.has_source() && !kernel.has_host()) {
    throw InvalidArgument("kernel", std::string(kernel.name()), "one with a source form or a host form");
  }
  return {std::make_shared<MappingWork const>(kernel), element};
}

}  // namespace unimem
