#pragma once

#include <unimem/core/export.hpp>

#include <cstddef>
#include <string_view>

namespace unimem {

class MemoryManager;

/// Gives back the device memory of all buffers of the manager that the tag names, and of those devices what pools have
/// cached, to the drivers. Contents stay: what only a device has is saved first, to the host, or where that has no room
/// for all of it, to the folder the manager spills to. Returns how many bytes of device memory the buffers had.
///
/// A tag names a buffer if it is the buffer's name, or what that begins with in front of a '/' or a '.': "model" names
/// "model", "model/embedding" and "model.0.weight". The empty one names every buffer that has a name. Those count whose
/// `BufferOptions::name_use` is `place` or `saving`.
///
/// A buffer may be used while it sleeps, on the host and on devices, and comes back then as any that was evicted does.
/// Buffers that are made meanwhile are awake, whatever they are called. Waits for the work on the buffers. Does not
/// concern memory that a device shares with the host.
///
/// Throws, with nothing changed, NotFound if the tag names no buffer; InvalidArgument if it sleeps already, or one that
/// covers it or that it covers, and if a lease, a mapping on a device or a capture holds device memory of one. What
/// saving throws (OutOfMemory, IoError, DataLost) leaves the tag awake and every content whole; what had left a device
/// by then is on the host. Thread-safe.
UNIMEM_API std::size_t sleep(MemoryManager& manager, std::string_view tag);

/// Brings back what `sleep` of the same tag took away: the bytes that were up to date on each device then, as they are
/// now, to where they were. What is there again by then does not move. Returns how many bytes were copied, once all
/// have arrived. The host's copies stay.
///
/// Throws, with nothing moved, NotFound if the tag is not asleep; InvalidArgument while another thread puts it to sleep
/// or wakes it; OutOfMemory if it does not fit a device beside what is live there, of which nothing is evicted for it.
/// What a copy throws leaves the tag asleep: calling it again brings the rest. Thread-safe.
UNIMEM_API std::size_t wake(MemoryManager& manager, std::string_view tag);

}  // namespace unimem
