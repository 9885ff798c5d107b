#include <unimem/core/error.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/stream/stream_kernel.hpp>

#include "stream/affine_loop.hpp"
#include "stream/chunk_work.hpp"
#include "stream/element_source.hpp"
#include "stream/known_runs.hpp"

#include <fmt/format.h>

#include <cmath>

namespace unimem {
namespace {

// affine_value (affine_loop.hpp) in the portable source form. $VALUE is one of the two below it.
constexpr std::string_view affine_source = R"(
UNIMEM_FUNCTION $T unimem_affine_value($T x, unimem_f64 scale, unimem_f64 offset) {
  const unimem_f64 y = scale * (unimem_f64)x + offset;
$VALUE
}
UNIMEM_KERNEL unimem_affine_$E(UNIMEM_CONST_BUFFER($T, in), UNIMEM_BUFFER($T, out),
                               unimem_f64 scale, unimem_f64 offset) {
  const unimem_u64 i = UNIMEM_ITEM_X;
  UNIMEM_DATA($T, out)[i] = unimem_affine_value(UNIMEM_DATA(const $T, in)[i], scale, offset);
}
UNIMEM_KERNEL unimem_affine_in_place_$E(UNIMEM_BUFFER($T, data), unimem_f64 scale, unimem_f64 offset) {
  const unimem_u64 i = UNIMEM_ITEM_X;
  UNIMEM_DATA($T, data)[i] = unimem_affine_value(UNIMEM_DATA($T, data)[i], scale, offset);
}
)";
constexpr std::string_view floating_value = "  return ($T)y;";
constexpr std::string_view integer_value = R"(  const unimem_f64 rounded = rint(y);
  return rounded >= $ABOVE ? ($T)$MAX : rounded <= $LOWEST ? ($T)$MIN : ($T)rounded;)";

template <class T>
std::string source_of(ElementType element) {
  std::string source(affine_source);
  if constexpr (std::floating_point<T>) {
    source = detail::with_replaced(std::move(source), "VALUE", floating_value);
  } else {
    using Limits = std::numeric_limits<T>;
    // Hexadecimal for what no decimal literal of the language can spell; powers of two for the doubles.
    auto const bits = [](T value) { return fmt::format("0x{:x}UL", std::make_unsigned_t<T>(value)); };
    source = detail::with_replaced(std::move(source), "VALUE", integer_value);
    source = detail::with_replaced(std::move(source), "ABOVE", fmt::format("{:.1f}", std::ldexp(1.0, Limits::digits)));
    source =
        detail::with_replaced(std::move(source), "LOWEST", fmt::format("{:.1f}", static_cast<double>(Limits::min())));
    source = detail::with_replaced(std::move(source), "MAX", bits(Limits::max()));
    source = detail::with_replaced(std::move(source), "MIN", bits(Limits::min()));
  }
  source = detail::with_replaced(std::move(source), "E", to_string(element));
  return detail::with_replaced(std::move(source), "T", detail::source_type(element));
}

/// Two kernels: into an output of its own where the chunk is a mapped file, and over the chunk, which spares a discrete
/// device half the memory, everywhere else.
template <class T>
class AffineRun final : public detail::ChunkRun {
 public:
  AffineRun(Kernel const& kernel, bool keep_input, double scale, double offset)
      : kernel_(kernel), keep_input_(keep_input), scale_(scale), offset_(offset) {}

  [[nodiscard]] static Kernel const& kernel_for(ElementType element, bool keep_input) {
    static Kernel const apart =
        Kernel("unimem_affine_" + std::string(to_string(element)))
            .source(source_of<T>(element))
            .host([](WorkItem item, std::span<const T> in, std::span<T> out, double scale, double offset) {
              out[item.x] = detail::affine_value(in[item.x], scale, offset);
            });
    static Kernel const in_place = Kernel("unimem_affine_in_place_" + std::string(to_string(element)))
                                       .source(source_of<T>(element))
                                       .host([](WorkItem item, std::span<T> data, double scale, double offset) {
                                         data[item.x] = detail::affine_value(data[item.x], scale, offset);
                                       });
    return keep_input ? apart : in_place;
  }

  [[nodiscard]] std::size_t result_bytes(std::size_t bytes) const noexcept override { return keep_input_ ? bytes : 0; }

  Event launch(Queue& queue, UnifiedBuffer<std::byte>& chunk, UnifiedBuffer<std::byte>& results,
               std::size_t bytes) override {
    Range const elements{bytes / sizeof(T)};
    if (keep_input_) {
      return unimem::launch(queue, kernel_, elements, read(chunk, 0, bytes), write(results, 0, bytes), scale_, offset_);
    }
    return unimem::launch(queue, kernel_, elements, readwrite(chunk, 0, bytes), scale_, offset_);
  }

  void combine(std::span<const std::byte> /*results*/, std::size_t /*bytes*/) override {}

  /// Whatever the numbers of this run are: two for each kernel that give ties, and saturate at both ends.
  [[nodiscard]] std::optional<detail::KnownAnswer> known_answer(std::size_t room) const override {
    auto const bytes_of = [this](std::size_t count) { return (keep_input_ ? 2 : 1) * count * sizeof(T); };
    auto const count = detail::elements_within(room, detail::known_items, bytes_of);
    auto const with = [&](double scale, double offset) {
      return detail::KnownRun{count, bytes_of(count), [=, keep_input = keep_input_] {
                                using Known = detail::KnownArgument;
                                auto const elements = detail::known_elements<T>(count, 1);
                                auto const role = keep_input ? Known::Role::input : Known::Role::in_place;
                                std::vector arguments{Known::memory(role, std::span{elements})};
                                if (keep_input) arguments.push_back(Known::output<T>(count));
                                arguments.push_back(Known::scalar(scale));
                                arguments.push_back(Known::scalar(offset));
                                return arguments;
                              }};
    };
    return detail::KnownAnswer{kernel_, {with(1.5, -7.5), with(-1.25, 3.0000001)}};
  }

  [[nodiscard]] decltype(StreamResult::result) finish(std::uint64_t elements) const override {
    return MappingResult{elements};
  }

 private:
  Kernel const& kernel_;
  bool keep_input_;
  double scale_;
  double offset_;
};

class AffineWork final : public detail::ChunkWork {
 public:
  AffineWork(double scale, double offset) : scale_(scale), offset_(offset) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "affine"; }
  [[nodiscard]] bool maps() const noexcept override { return true; }
  [[nodiscard]] std::string identity() const override { return fmt::format("affine, {} and {}", scale_, offset_); }
  [[nodiscard]] std::unique_ptr<detail::ChunkRun> start(Device& device, ElementType element,
                                                        bool keep_input) const override {
    if (!device.info().doubles) {
      throw UnsupportedOperation("affine", std::string(device.id()), "its kernels have no 64-bit floating point");
    }
    return detail::with_element_type(element, [&]<class T>(std::type_identity<T>) -> std::unique_ptr<detail::ChunkRun> {
      auto const& kernel = AffineRun<T>::kernel_for(element, keep_input);
      static_cast<void>(kernel.program(device));
      return std::make_unique<AffineRun<T>>(kernel, keep_input, scale_, offset_);
    });
  }

 private:
  double scale_;
  double offset_;
};

void check_finite(std::string_view what, double value) {
  if (!std::isfinite(value)) throw InvalidArgument(std::string(what), fmt::format("{}", value), "a finite number");
}

}  // namespace

StreamKernel affine(std::optional<ElementType> element, double scale, double offset) {
  check_finite("scale", scale);
  check_finite("offset", offset);
  return {std::make_shared<AffineWork const>(scale, offset), element};
}

}  // namespace unimem
