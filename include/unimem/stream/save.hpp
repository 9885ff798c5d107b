#pragma once

#include <unimem/core/export.hpp>

#include <filesystem>

namespace unimem {

class MemoryManager;

/// Writes every live buffer of the manager that a program has given a name (`BufferOptions::name`, `NameUse::saving`)
/// to a `.safetensors`, each as a tensor of its name: with its dtype and shape where the element type has a dtype
/// there, and else as bytes. Handles and slices of one buffer are that buffer. Left out are buffers without a name,
/// those of files that have the file's for want of another, and the library's own.
///
/// Bytes come from where they are, the host, a file or a device, in blocks of 4 MiB, so that no buffer needs memory for
/// it, and what is current on a device alone is all that is downloaded. States stay as they are. A buffer that
/// nothing has used yet is listed without bytes; of any other all bytes are saved, as reading it gives them: what of it
/// was never written is what its first use found there.
///
/// The file appears whole, synced, or not at all: an older one stays until then. `__metadata__` has a checksum (XXH3)
/// of every 64 MiB of every tensor, computed on the way, and one of the header; docs/decisions/saving.md tells the
/// keys.
///
/// Waits for the work on the buffers. Concurrent writers need the caller's lock, as for any read: each block is of one
/// moment, all of them are not. A buffer whose last owner goes meanwhile lives until the end of the call, and one over
/// borrowed memory makes that owner wait for it.
///
/// Throws, with no file changed, InvalidArgument if there is no such buffer, two of them have one name, or one has none
/// that the format takes (UTF-8, no NUL, no more than 65535 bytes, not `__metadata__`), and for an empty path; IoError;
/// what reading a buffer throws; and WaitInterrupted where the process's WaitWatch wants an end. Thread-safe.
UNIMEM_API void save(MemoryManager& manager, std::filesystem::path const& path);

/// Fills the named buffers of the manager with what a `.safetensors` has. They must be the very ones that it has: each
/// tensor one live buffer of its name, and each named buffer (as `save` counts them) one tensor, of equal bytes and
/// element type. Shapes may differ. A buffer that was listed without bytes stays as it is.
///
/// A file of `save` is read twice: all checksums are looked at before a buffer changes, and again on the way. A file of
/// another origin has none; it restores if names, sizes and dtypes agree.
///
/// Where a buffer has memory on one device, with nothing current on the host, its bytes go there in blocks of 4 MiB;
/// any other is written on the host, and devices get it when they use it. Work on a buffer is waited for.
///
/// Throws, with no buffer changed: NotFound for a tensor without a buffer and a buffer without a tensor; SizeMismatch;
/// InvalidArgument for another element type, two buffers of one name, and an empty path; UnsupportedOperation for a
/// buffer that is not to be written (FileMode::read, or captured), BufferNotAllocated for a strict one;
/// ChecksumMismatch, whose chunks name the buffer as "path#name"; IoError for a file that is missing, damaged or
/// malformed; WaitInterrupted. What fails afterwards (memory for a buffer, a device, a file that is changed under it)
/// leaves some buffers restored and others not. Thread-safe; the buffers need the caller's lock, as for any write.
UNIMEM_API void restore(MemoryManager& manager, std::filesystem::path const& path);

}  // namespace unimem
