// One array, on two sides: who holds the current bytes, and what was copied so that it is so.
//
// The device is a simulated one, with memory of its own, so that every copy is a real one on any machine. Give another
// id as the argument ("cpu", "opencl:0"): on cpu the states are the same, and nothing is ever copied.

#include <unimem/unimem.hpp>

#include <cstdint>
#include <cstdio>
#include <string>

namespace {

void show(char const* what, unimem::UnifiedBuffer<std::int32_t> const& array) {
  auto const moved = array.statistics();
  std::printf("%-34s %-14s %7llu down %7llu up\n", what, std::string(to_string(array.state())).c_str(),
              static_cast<unsigned long long>(moved.host_to_device_bytes),
              static_cast<unsigned long long>(moved.device_to_host_bytes));
}

}  // namespace

int main(int argc, char** argv) {
  auto& device = unimem::device(argc > 1 ? argv[1] : "sim");
  unimem::UnifiedBuffer<std::int32_t> array(1000, {.device = &device, .name = "array"});
  show("made", array);

  for (std::int32_t i = 0; auto& element : array.host()) element = i++;
  show("written on the host", array);

  array.sync_to_device();
  show("brought to the device", array);

  array.fill(-1, 10, 5);  // five elements, where the current bytes are: on the device as well as on the host, so there
  show("five elements filled", array);

  std::printf("element 9 is %d, element 10 is %d\n", array.host_view()[9], array.host_view()[10]);
  show("looked at on the host", array);

  array.fill(-2, 0, 5);
  show("others filled on the device", array);

  array.at(500) = 7;  // other bytes than the device's: each side now holds newer ones than the other
  show("one element written on the host", array);

  array.synchronize();
  show("synchronized", array);
  std::printf("element 0 is %d, element 500 is %d\n", array.host_view()[0], array.host_view()[500]);
  return 0;
}
