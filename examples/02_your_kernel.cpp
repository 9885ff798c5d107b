// A kernel of one's own, in two forms: source, for devices that compile it, and a callable, for those that run host
// code. The launch says what the kernel does with each buffer; what has to be copied follows from that.
//
// Runs on the devices named as arguments, or on all there are.

#include <unimem/unimem.hpp>

#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace {

// y = a·x + y. docs/kernels.md explains the words in capitals.
unimem::Kernel axpy() {
  return unimem::Kernel("axpy")
      .source(R"(
        UNIMEM_KERNEL axpy(UNIMEM_CONST_BUFFER(float, x), UNIMEM_BUFFER(float, y), float a) {
          size_t const i = UNIMEM_ITEM_X;
          UNIMEM_DATA(float, y)[i] += a * UNIMEM_DATA(const float, x)[i];
        })")
      .host([](unimem::WorkItem i, std::span<const float> x, std::span<float> y, float a) { y[i.x] += a * x[i.x]; });
}

void run_on(unimem::Device& device, unimem::Kernel const& kernel) {
  std::size_t const count = 1 << 20;
  unimem::UnifiedBuffer<float> x(count, {.device = &device, .name = "x"});
  unimem::UnifiedBuffer<float> y(count, {.device = &device, .name = "y"});
  x.fill(2.0F);
  y.fill(1.0F);

  // Three launches, one after the other on the device: x and y go there once, and nothing comes back in between.
  for (int step = 0; step < 3; ++step) {
    unimem::launch(kernel, unimem::Range{count}, unimem::read(x), unimem::readwrite(y), 0.5F);
  }

  // Looking waits for the kernels and brings y back; x is still the same on both sides.
  auto const result = y.host_view();
  bool right = true;
  for (float const value : result) right = right && value == 4.0F;
  std::printf("%-9s 1 + 3 · 0.5 · 2 = %g in all %zu elements: %s\n",
              std::string(device.id().substr(0, device.id().find(':'))).c_str(), static_cast<double>(result[0]), count,
              right ? "yes" : "no");
}

}  // namespace

int main(int argc, char** argv) {
  auto const kernel = axpy();
  if (argc > 1) {
    for (auto const* id : std::vector<char const*>(argv + 1, argv + argc)) run_on(unimem::device(id), kernel);
  } else {
    for (unimem::Device& device : unimem::devices()) run_on(device, kernel);
  }
  return 0;
}
