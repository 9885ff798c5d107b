// Data is passed by id: the message to a worker names elements of a published buffer, the worker runs a kernel on them
// in place, and the sender sees the result. Passing it copies no byte, which the buffer's own counts show.
//
// The device is a simulated one, with memory of its own; give another id as the argument ("cpu", "opencl:0").

#include <unimem/share/buffer_ref.hpp>
#include <unimem/share/buffer_registry.hpp>
#include <unimem/share/message_queue.hpp>
#include <unimem/unimem.hpp>

#include <cstdint>
#include <cstdio>
#include <thread>

namespace {

struct Request {
  unimem::BufferRef::Wire part;  // forty bytes, as a socket would carry them
  std::int32_t factor;
};

unimem::Kernel scale() {
  return unimem::Kernel("scale")
      .source(R"(
        UNIMEM_KERNEL scale(UNIMEM_BUFFER(int, x), int factor) {
          UNIMEM_DATA(int, x)[UNIMEM_ITEM_X] *= factor;
        })")
      .host([](unimem::WorkItem i, std::span<std::int32_t> x, std::int32_t factor) { x[i.x] *= factor; });
}

void work(unimem::MessageQueue<Request>& requests, unimem::MessageQueue<bool>& replies) {
  auto const kernel = scale();
  while (auto const request = requests.receive()) {
    bool done = false;
    try {
      auto part = unimem::BufferRef::from_wire(request->part).resolve<std::int32_t>();
      unimem::launch(kernel, unimem::Range{part.size()}, unimem::readwrite(part), request->factor);
      done = true;  // the sender may look at once: the buffer itself makes him wait for the kernel
    } catch (unimem::NotFound const& error) {
      std::printf("worker:  refused, %s\n", error.reason.c_str());
    } catch (unimem::InvalidArgument const& error) {
      std::printf("worker:  refused, %s\n", error.argument.c_str());
    }
    if (!replies.send(done)) return;
  }
}

void show(char const* what, unimem::UnifiedBuffer<std::int32_t> const& array) {
  auto const moved = array.statistics();
  std::printf("%-8s %7llu down %7llu up\n", what, static_cast<unsigned long long>(moved.host_to_device_bytes),
              static_cast<unsigned long long>(moved.device_to_host_bytes));
}

}  // namespace

int main(int argc, char** argv) {
  auto& device = unimem::device(argc > 1 ? argv[1] : "sim");
  unimem::UnifiedBuffer<std::int32_t> array(1000, {.device = &device, .name = "array"});
  for (std::int32_t i = 0; auto& element : array.host_overwrite()) element = i++;
  array.sync_to_device();
  show("made:", array);

  unimem::MessageQueue<Request> requests(4);
  unimem::MessageQueue<bool> replies(4);
  std::jthread const worker([&] { work(requests, replies); });
  auto const ask = [&](unimem::BufferRef const& part, std::int32_t factor) {
    return requests.send({part.to_wire(), factor}) && replies.receive().value_or(false);
  };

  auto& registry = unimem::registry();
  auto const id = registry.publish(array);
  bool right = ask(registry.refer(id, 900), 2) && ask({id, 950, 25}, -1);  // from 900 to the end, and some of those
  show("passed:", array);
  std::printf("sender:  element 899 is %d, 900 is %d, 950 is %d\n", array.host_view()[899], array.host_view()[900],
              array.host_view()[950]);
  show("seen:", array);

  right = right && !ask({id, 990, 11}, 2);  // one element too many
  registry.release(id);
  right = right && !ask({id, 0, 10}, 2);
  requests.close();
  return right ? 0 : 1;
}
