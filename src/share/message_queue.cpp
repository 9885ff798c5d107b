#include <unimem/core/error.hpp>
#include <unimem/share/message_queue.hpp>

namespace unimem::detail {

void check_queue_capacity(std::size_t capacity) {
  if (capacity == 0) throw InvalidArgument("capacity", "0", "at least 1: nothing would ever arrive");
}

}  // namespace unimem::detail
