#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/options.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/core/export.hpp>
#include <unimem/share/buffer_id.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace unimem::detail {

// Buffers in messages from one process to another that are read once: for other languages' ways to send objects, whose
// sender neither knows nor waits for the receiver.

/// Puts a copy of those bytes, the only one there will be, where the process that first asks for the id gets it,
/// without another copy. Until then this process keeps it, whatever becomes of the buffer. It is in the memory of a
/// device where that alone has the bytes, was asked to hand its memory over (`Device::hands_memory_over`), and has room
/// for it; else in the host's. Throws what reading the buffer and making shared memory throw.
[[nodiscard]] UNIMEM_API BufferId send_copy(BufferCore& buffer, ByteRange range);

/// The same, unless copies of this process's wait for their receivers already, and would be more than `most_waiting`
/// bytes with it: then nothing, and whoever sends it goes another way. Of several threads that send at once, what the
/// others are just copying counts, too.
[[nodiscard]] UNIMEM_API std::optional<BufferId> send_copy_within(std::size_t most_waiting, BufferCore& buffer,
                                                                  ByteRange range);

/// The same of a buffer that other processes can have: it is the same one there, and received in this process that one.
[[nodiscard]] UNIMEM_API BufferId send_shared(std::shared_ptr<BufferCore> const& buffer);

/// Takes back what was sent, if nobody has it yet: for a message that could not be made.
UNIMEM_API void withdraw_sent(BufferId id) noexcept;

/// What was sent, of `bytes` bytes. A copy is the receiver's own, over memory that has been wrapped; or, of a device's
/// memory, in memory of that device's. Where it does not come, since its sender has ended before, it has been received
/// already, or this process does not have that device, the buffer's bytes are lost, which whoever
/// reads them is told (DataLost): who unpickles messages often cannot bear an exception. Throws OutOfMemory and
/// WaitInterrupted.
[[nodiscard]] UNIMEM_API std::shared_ptr<BufferCore> receive_sent(BufferId id, std::size_t bytes,
                                                                  BufferOptions&& options);

/// What of this process's waits for its receivers.
struct SentAndWaiting {
  std::size_t buffers = 0;
  std::size_t copied_bytes = 0;
};
[[nodiscard]] UNIMEM_API SentAndWaiting sent_and_not_received();

/// A process that runs, by what tells it from a later one of the same number.
struct RunningProcess {
  std::uint32_t pid = 0;
  std::uint64_t started = 0;  ///< by the system's count
};
/// Nothing: there is none of that number. Throws IoError where the system does not say.
[[nodiscard]] UNIMEM_API std::optional<RunningProcess> running_process(std::uint32_t pid);

/// Has the process at the other end of `socket` (SOCK_SEQPACKET), which calls `keep_sent`, offer what waits for its
/// receivers, in place of this one, which may end then. Returns how many buffers that were. Throws IoError where the
/// other does not answer within ten seconds, or cannot have them: then they wait here as before.
UNIMEM_API std::size_t hand_over_sent(int socket);

/// Offers what the process at the other end of `socket` hands over, until all of it has been received, or none of
/// `receivers` runs any more. For a process of its own, which has nothing else to do: it opens as many descriptors as
/// the system lets it, takes all signals, and closes `socket`. Throws IoError where nothing is handed over within ten
/// seconds.
UNIMEM_API void keep_sent(int socket, std::span<RunningProcess const> receivers);

/// Other processes take the end of this one for no death from now on: for whoever ends it in good order and not by
/// `exit`.
UNIMEM_API void tell_of_the_end() noexcept;

}  // namespace unimem::detail
