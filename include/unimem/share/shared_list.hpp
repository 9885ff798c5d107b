#pragma once

#include <unimem/buffer/shape.hpp>
#include <unimem/core/export.hpp>
#include <unimem/share/buffer_id.hpp>
#include <unimem/share/element_tag.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace unimem {

/// A process that holds a shared buffer.
struct SharingProcess {
  std::uint32_t pid = 0;
  std::string command;            ///< as the system calls it, whatever bytes that is; empty if it does not say
  bool alive = true;              ///< else it has ended, and none of the others has found that yet
  bool serves = false;            ///< other processes that open the buffer get it from this one
  std::size_t reading_bytes = 0;  ///< that no other process may write to now
  std::size_t writing_bytes = 0;  ///< that no other process may read or write now
};

/// A buffer that processes have published for one another (`SharedOptions::cross_process`). Texts are other processes',
/// of any bytes.
struct SharedWithOthers {
  BufferId id;
  std::string name;     ///< it was published under; empty if under none
  std::string buffer;   ///< the buffer's own name
  std::string element;  ///< the element type, for people
  ElementTag tag = ElementTag::any;
  std::size_t element_bytes = 0;
  Shape shape;
  std::size_t bytes = 0;
  std::vector<SharingProcess> holders{};  ///< by pid
  std::size_t lost_bytes = 0;             ///< that a process was writing when it was killed, and none has written since
  /// Why it is not known who holds it, but for those that serve it, nor what is read, written and lost; empty if it is.
  std::string trouble{};
};

/// What one process has sent by a message that is read once (as multiprocessing sends buffers), and no other process
/// has received yet.
struct SentAndNotReceived {
  std::uint32_t pid = 0;
  std::string command;
  std::size_t copies = 0;  ///< that take memory of their own, of the host or a device
  std::size_t copied_bytes = 0;
  std::size_t shared = 0;  ///< that have the sender's
  std::size_t shared_bytes = 0;
};

struct SharedOnThisHost {
  std::vector<SharedWithOthers> buffers;  ///< by id
  std::vector<SentAndNotReceived> sent;   ///< by pid
  std::vector<std::string> unanswered{};  ///< processes that did not answer in time, or oddly: what is wrong
};

/// Who shares what now, of this user's processes on this host. Asks all of them at the same time, two seconds at most;
/// looks at who holds a buffer and what they do to it, maps no contents, and takes no part in it. What was sent shared
/// and has been received is not listed, unless it was published as well.
///
/// Throws IoError where this process may open no more descriptors, or cannot look for others; WaitInterrupted in a
/// watched thread. Thread-safe.
[[nodiscard]] UNIMEM_API SharedOnThisHost shared_on_this_host();

}  // namespace unimem
