#pragma once

#include <unimem/core/error.hpp>
#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>
#include <unimem/file/checksum.hpp>
#include <unimem/manager/file_access.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/pool/statistics.hpp>
#include <unimem/stream/checksum_mismatch.hpp>
#include <unimem/stream/element_type.hpp>
#include <unimem/stream/stream_kernel.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

namespace unimem {

/// How a file is streamed. Every field has the default most programs want.
struct StreamOptions {
  /// Bytes of a chunk; a multiple of the element's size. A file smaller than this is one chunk of its own size.
  std::size_t chunk_bytes = std::size_t{64} << 20;

  /// Whether `chunk_bytes` is only the most: halved until all buffers fit into the memory limit and the device, down to
  /// 64 KiB, and below that until one does. `StreamResult::chunk_bytes` tells what it came to. Else a chunk is never
  /// made smaller.
  bool fit_chunk = false;

  /// Chunks under way at once, at least 1. Three let reading, computing and writing overlap. Fewer are used when the
  /// memory limit or the file is too small for them, two thirds where each also needs an output on a device with memory
  /// of its own (a mapping kernel of one's own there), and never more than 64.
  std::size_t buffers = 3;

  /// Where to compute; null: default_device().
  Device* device = nullptr;

  /// Where a mapping kernel's elements go, replaced only when everything was written; `.npy` gets a header with the
  /// input's shape. Empty: the elements are computed and dropped. A reducing kernel takes no output.
  std::filesystem::path output{};

  /// What the file holds, where the kernel does not say. Nothing: what its header says, else u8.
  std::optional<ElementType> element{};

  /// Told how many bytes of the input are done, and of how many (0: not known, as of pipes): once at the start and
  /// after each chunk, always from the calling thread, never twice at once. What it throws ends the stream and is
  /// rethrown.
  std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)> progress{};

  /// Asks the program whether the stream is to go on: after each chunk, and ten times a second while none comes, as
  /// from a pipe without a writer; always from the calling thread. What it throws ends the stream and is rethrown. For
  /// programs whose signals are to be looked for, as Python's are.
  std::function<void()> check_interrupt{};

  /// Bound on the device memory in use at any moment, bytes. Too small for all buffers uses fewer (smaller chunks with
  /// `fit_chunk`); too small for one chunk and its results is an OutOfMemory. Windows of a mapped file take no device
  /// memory, yet a limit below one is refused all the same. Default: none but the device's own capacity.
  std::size_t memory_limit = std::numeric_limits<std::size_t>::max();

  /// Asking it to stop ends the stream with StreamCancelled. The default token never does.
  std::stop_token cancel{};

  /// The way the file's bytes come. `automatic`: what is not in the page cache goes past it, into memory of chunks;
  /// what is there is used in place on devices that reach the host's memory, and read from there for others. `direct`:
  /// all goes past it, or UnsupportedOperation where the file system has no such reads. `cached`: all goes by it, in
  /// place where it can. `mapped`: in place, or UnsupportedOperation where it cannot: on devices that do not reach the
  /// host's memory, and where a header leaves the elements where no kernel may read them.
  FileAccess access = FileAccess::automatic;

  /// Where the chunks' memory comes from and returns to, for programs that stream many files: memory touched before is
  /// worth having. Its own limits hold besides, and `pool` and `peak_device_bytes` are then all it has seen. Null: a
  /// manager of the stream's own, whose memory is given back at the end.
  MemoryManager* manager = nullptr;

  /// Computes a checksum of every chunk of each file while it is read: `StreamResult::files` has them. Nothing: none,
  /// unless `manifest` or `verify` needs them (XXH3 for the former, else what the latter has).
  std::optional<Checksum> checksum{};

  /// Where those checksums go when all is done, as JSON (docs/command-line.md), replaced in one step. Empty: nowhere.
  std::filesystem::path manifest{};

  /// A manifest that the input is compared with while it is read. All of it is read; what differs is then a
  /// ChecksumMismatch that names every chunk, and no output appears. Files are found in it by their path, else by their
  /// file name alone, a pipe with the only file there is. Its chunks may be of another size than `chunk_bytes`. Empty:
  /// none.
  std::filesystem::path verify{};

  /// How often a read that failed for a reason that may pass (EIO, EAGAIN) is tried again, one time after the other for
  /// the same bytes, a little later each time. Interrupted and short reads go on without a limit.
  unsigned retries = 5;

  /// Goes on where a stream of the same input, kernel and options was interrupted, by a signal, an error or the end of
  /// its process: what it has written stays beside `output`, which it needs (`OUT.unimem-part`), with a journal of the
  /// chunks (`OUT.unimem-journal`), until the output is in place. What is there is compared with the journal's
  /// checksums first, and what differs is computed anew. A journal of another run is an IoError and stays. For one
  /// file; it is taken for the same if its path, inode, size and time of change (ctime) are.
  bool resume = false;
};

/// The stream was asked to stop and did. Nothing was left behind.
class UNIMEM_API StreamCancelled : public detail::RuntimeError {
 public:
  StreamCancelled(std::string path, std::uint64_t bytes_done, std::uint64_t bytes_total);
  ~StreamCancelled() override;

  std::string path;           ///< the input
  std::uint64_t bytes_done;   ///< of the input's data, complete chunks only
  std::uint64_t bytes_total;  ///< the input's data; 0 where that was not known
};

/// A number of an element type, without loss: unsigned and signed elements as 64-bit integers, floating point as
/// double.
using ElementValue = std::variant<std::uint64_t, std::int64_t, double>;

/// What `histogram()` gives.
struct HistogramResult {
  std::array<std::uint64_t, 256> counts{};  ///< by byte value; they sum to the file's bytes
  double entropy_bits_per_byte = 0;         ///< Shannon's, of the byte frequencies: 0 … 8; 0 for an empty file
};

/// What `statistics()` gives. Of nothing: a count of 0, and NaN (a double) for everything else.
struct StatisticsResult {
  std::uint64_t count = 0;  ///< elements
  ElementValue min;         ///< exact
  ElementValue max;         ///< exact
  double mean = 0;
  double standard_deviation = 0;  ///< of the population: divided by count
};

/// What a mapping kernel gives besides its output.
struct MappingResult {
  std::uint64_t elements = 0;  ///< mapped, and written if there is an output
};

/// What a reducing kernel of the user's gives.
struct ReductionResult {
  ElementType element = ElementType::u8;
  std::vector<ElementValue> values;  ///< one for each of its work items; zeros for an empty input
};

/// A file that was streamed.
struct StreamedFile {
  std::filesystem::path path;
  std::uint64_t bytes = 0;  ///< of data
  /// Of every `StreamResult::checksum_bytes` of them, as manifests write it, the last may be shorter; none unless asked
  /// for.
  std::vector<std::string> checksums;
};

/// What was done, and every byte that moved for it.
struct StreamResult {
  std::string kernel;                     ///< StreamKernel::name()
  std::string device;                     ///< the device's id
  ElementType element = ElementType::u8;  ///< what the file was taken to hold
  std::uint64_t bytes = 0;                ///< the input's data, headers and other arrays not counted
  std::uint64_t chunks = 0;
  std::size_t chunk_bytes = 0;  ///< the largest chunk; 0 for an empty file
  std::size_t buffers = 0;      ///< chunks that could be under way at once: fewer than asked for when memory was short
  FileAccess access = FileAccess::automatic;  ///< the way that most of the bytes came; of an empty file, what was asked
  std::uint64_t direct_bytes = 0;             ///< of `bytes`, past the page cache
  double seconds = 0;                         ///< wall time, from opening the file to renaming the output
  std::variant<HistogramResult, StatisticsResult, MappingResult, ReductionResult> result;
  std::uint64_t host_to_device_bytes = 0;  ///< 0 on devices that share the host's memory, else exactly `bytes`
  std::uint64_t device_to_host_bytes = 0;  ///< results and output brought back; 0 where memory is shared
  std::size_t peak_device_bytes = 0;       ///< most device memory reserved at one moment; never above the limit
  PoolStatistics pool;                     ///< of the pool that device memory came from
  std::vector<StreamedFile> files;         ///< the input's, in their order
  std::optional<Checksum> checksum;        ///< that `files` have; nothing: none was asked for
  std::uint64_t checksum_bytes = 0;        ///< of data that each of those is of; 0: none was asked for
  std::uint64_t retries = 0;               ///< reads that failed, were interrupted or came short, and were gone on with
  std::uint64_t resumed_bytes = 0;         ///< of `bytes`, those that an earlier run had done

  /// 10^9 bytes per second of wall time; 0 when no time was measured.
  [[nodiscard]] double gigabytes_per_second() const noexcept {
    return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0.0;
  }
};

/// Runs `kernel` over a file of any size, chunk by chunk: raw elements, or a `.npy` (by its extension) of format
/// version 1 to 3, C order and the machine's byte order. `FILE.safetensors#NAME` and `FILE.npz#NAME` are one array of
/// such a file (`open_tensors`), where no file is called so as a whole; such a file without a name is its raw bytes,
/// and only where `StreamOptions::element` or the kernel says of what type. What comes through a pipe (FIFO,
/// `/dev/stdin`) is taken raw, until its writers have closed it. Reading, uploading, computing, downloading and writing
/// overlap; chunks are combined and written in file order, so the result does not depend on timing. On a device that
/// reaches the host's memory a file that is in the page cache is mapped, and nothing is copied. Returns when everything
/// is done. Resident memory grows by at most 2 · buffers · chunk whatever the file's size.
///
/// On a device whose driver compiles kernels, the library's own are tried before their first use on a small input with
/// a known answer, once for each driver and version (docs/drivers.md): a wrong answer is a KernelError that names the
/// driver, before anything of the file is read. The device counts the few bytes that are copied for that, the result
/// and the statistics of `manager` do not, unless the device has no room beside it and the manager must make some.
///
/// The file's size is taken when it is opened: bytes appended later are not looked at. The output has no name until it
/// is whole; whatever goes wrong, no part of it stays behind and an older file of that name is untouched, also if the
/// process is killed. On file systems without such files (FAT, some network and overlay ones) it has a name beside its
/// final place meanwhile, and a process that is killed leaves that.
///
/// Throws IoError for a file that is missing, unreadable, a directory, not a regular file, one whose size the system
/// does not know (as under /proc), not a multiple of the element, a malformed or unsupported `.npy`, `.npz` or
/// `.safetensors`, of another element than asked for, or that shrinks meanwhile, and for an output that cannot be
/// written; NotFound for a name that no array of the file has; InvalidArgument for options that make no sense;
/// UnsupportedOperation for an access that is not to be had; OutOfMemory when the limit does not hold one chunk;
/// KernelError, DeviceError, StreamCancelled, and what `progress` and `check_interrupt` throw. Thread-safe: several
/// streams may run at once, on one device too.
UNIMEM_API StreamResult stream_file(std::filesystem::path const& path, StreamKernel const& kernel,
                                    StreamOptions const& options = {});

/// The same over several files and pipes, one after the other as if they were one: one result, and one output. Chunks
/// may reach from one file into the next, and files are read, never mapped. Each must be a multiple of the element;
/// those that say what they hold must agree. An output `.npy` gets one dimension. Throws InvalidArgument for no path.
UNIMEM_API StreamResult stream_files(std::span<const std::filesystem::path> paths, StreamKernel const& kernel,
                                     StreamOptions const& options = {});

/// Removes the unfinished output of every stream that runs in the process: for a program that ends without waiting for
/// its streams, since a kernel cannot be called back from its device. A stream that comes as far as putting its output
/// in place after this ends with an IoError. Thread-safe.
UNIMEM_API void remove_unfinished_outputs() noexcept;

}  // namespace unimem
