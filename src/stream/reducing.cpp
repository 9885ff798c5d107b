#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/stream/stream_kernel.hpp>

#include "file/digest.hpp"
#include "stream/chunk_work.hpp"
#include "stream/typed_operand.hpp"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace unimem {
namespace {

/// What the user's kernel accumulates into.
struct Accumulator {
  ElementType element;
  std::size_t count;

  [[nodiscard]] std::size_t bytes() const noexcept { return count * element_size(element); }
};

/// One launch after the other adds to one small buffer; the queues' order is that of the file.
class ReducingRun final : public detail::ChunkRun {
 public:
  ReducingRun(Kernel kernel, ElementType element, Accumulator result, Device& device)
      : kernel_(std::move(kernel)), element_(element), result_(result), device_(device) {}

  [[nodiscard]] std::size_t result_bytes(std::size_t /*bytes*/) const noexcept override { return 0; }
  [[nodiscard]] std::size_t kept_bytes() const noexcept override { return result_.bytes(); }

  Event launch(Queue& queue, UnifiedBuffer<std::byte>& chunk, UnifiedBuffer<std::byte>& /*results*/,
               std::size_t bytes) override {
    if (!sums_) make_sums(chunk.core().manager());
    auto const count = bytes / element_size(element_);
    auto in = read(chunk, 0, bytes), sums = readwrite(*sums_);
    detail::take_as(in, element_);
    detail::take_as(sums, result_.element);
    auto const first = std::exchange(next_, next_ + count);
    return unimem::launch(queue, kernel_, Range{result_.count}, in, sums, std::uint64_t{count},
                          std::uint64_t{result_.count}, first);
  }

  void combine(std::span<const std::byte> /*results*/, std::size_t /*bytes*/) override {}

  [[nodiscard]] decltype(StreamResult::result) finish(std::uint64_t /*elements*/) const override {
    auto const bytes = sums_ ? sums_->to_vector() : std::vector<std::byte>(result_.bytes());
    return detail::with_element_type(result_.element, [&]<class T>(std::type_identity<T>) {
      ReductionResult result{result_.element, {}};
      result.values.reserve(result_.count);
      for (std::size_t i = 0; i < result_.count; ++i) {
        T value;
        std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
        result.values.push_back(detail::widest(value));
      }
      return decltype(StreamResult::result)(std::move(result));
    });
  }

 private:
  void make_sums(MemoryManager& manager) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &device_;
    options.name = "stream sums";
    sums_.emplace(Shape(result_.bytes()), std::move(options)).fill(std::byte{0});
  }

  Kernel kernel_;
  ElementType element_;
  Accumulator result_;
  Device& device_;
  std::uint64_t next_ = 0;  ///< element of the input; of the thread that launches
  std::optional<UnifiedBuffer<std::byte>> sums_;
};

class ReducingWork final : public detail::ChunkWork {
 public:
  ReducingWork(Kernel kernel, Accumulator result) : kernel_(std::move(kernel)), result_(result) {}

  [[nodiscard]] std::string_view name() const noexcept override { return kernel_.name(); }
  [[nodiscard]] bool maps() const noexcept override { return false; }
  [[nodiscard]] std::unique_ptr<detail::ChunkRun> start(Device& device, ElementType element,
                                                        bool /*keep_input*/) const override {
    static_cast<void>(kernel_.program(device));
    return std::make_unique<ReducingRun>(kernel_, element, result_, device);
  }

 private:
  Kernel kernel_;
  Accumulator result_;
};

}  // namespace

StreamKernel reducing(Kernel const& kernel, ElementType result, std::size_t count, std::optional<ElementType> element) {
  if (!kernel.has_source() && !kernel.has_host()) {
    throw InvalidArgument("kernel", std::string(kernel.name()), "one with a source form or a host form");
  }
  if (count == 0 || count > most_reduced) {
    throw InvalidArgument("count", fmt::format("{}", count), fmt::format("from 1 to {}", most_reduced));
  }
  return {std::make_shared<ReducingWork const>(kernel, Accumulator{result, count}), element};
}

}  // namespace unimem
