#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/stream/stream_file.hpp>

#include "core/disk_cache.hpp"
#include "kernel/known_answer.hpp"
#include "stream/chunk_ring.hpp"
#include "stream/chunk_work.hpp"
#include "stream/input_file.hpp"
#include "stream/npy.hpp"
#include "stream/output_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>

namespace unimem {

StreamCancelled::StreamCancelled(std::string path_, std::uint64_t bytes_done_, std::uint64_t bytes_total_)
    : RuntimeError(fmt::format("{}: cancelled after {} of {} bytes", path_, bytes_done_, bytes_total_)),
      path(std::move(path_)),
      bytes_done(bytes_done_),
      bytes_total(bytes_total_) {}
StreamCancelled::~StreamCancelled() = default;

namespace {

/// Chunks under way beyond this number wait for one another all the same.
constexpr std::size_t most_slots = 64;

/// Smaller chunks cost more by their number than fewer buffers do.
constexpr std::size_t least_fitted_chunk = std::size_t{64} << 10;

void check_options(StreamKernel const& kernel, StreamOptions const& options) {
  if (!kernel.work()) detail::throw_empty_handle("kernel");
  if (options.buffers == 0) throw InvalidArgument("buffers", "0", "at least 1");
  if (options.chunk_bytes == 0) throw InvalidArgument("chunk_bytes", "0", "at least one element");
  if (!options.output.empty() && !kernel.maps()) {
    throw InvalidArgument("output", options.output.string(), fmt::format("empty: {} has no output", kernel.name()));
  }
  if (kernel.element() && options.element && *kernel.element() != *options.element) {
    throw InvalidArgument("element", std::string(to_string(*options.element)),
                          fmt::format("{}, as the kernel was made for", to_string(*kernel.element())));
  }
}

ElementType element_of(StreamKernel const& kernel, StreamOptions const& options, detail::InputFile const& input) {
  auto const asked = kernel.element() ? kernel.element() : options.element;
  if (asked && input.element() && *asked != *input.element()) {
    throw IoError(input.path(), 0, fmt::format("it holds {}, not {}", to_string(*input.element()), to_string(*asked)));
  }
  auto const element = asked ? *asked : input.element().value_or(ElementType::u8);
  auto const size = element_size(element);
  if (input.bytes() % size != 0) {
    throw IoError(
        input.path(), 0,
        fmt::format("its {} bytes are no multiple of the {} of an {}", input.bytes(), size, to_string(element)));
  }
  if (options.chunk_bytes % size != 0) {
    throw InvalidArgument("chunk_bytes", fmt::format("{}", options.chunk_bytes),
                          fmt::format("a multiple of {}, the size of an {}", size, to_string(element)));
  }
  return element;
}

detail::ReadWay way_of(FileAccess access) noexcept {
  switch (access) {
    case FileAccess::automatic:
      return detail::ReadWay::by_residency;
    case FileAccess::direct:
      return detail::ReadWay::direct;
    default:
      return detail::ReadWay::cached;
  }
}

/// The device memory one slot is reckoned at. A window of a mapped file takes none, but a limit below it is still one
/// below a chunk.
std::size_t slot_bytes(detail::ChunkPlan const& plan, std::size_t result_bytes) {
  if (plan.mapped) return std::max(plan.chunk_bytes, result_bytes);
  return checked_add(plan.chunk_bytes, result_bytes, "chunk_bytes");
}

/// How many slots the options and the file ask for, whatever memory there is.
std::size_t slots_wanted(StreamOptions const& options, Device& device, detail::ChunkRun const& run,
                         detail::ChunkPlan const& plan, std::uint64_t file_bytes) {
  auto const chunks = (file_bytes + plan.chunk_bytes - 1) / plan.chunk_bytes;
  auto const slots = static_cast<std::size_t>(std::min<std::uint64_t>({options.buffers, most_slots, chunks}));
  // Where nothing is shared, results of their own are a third chunk to a slot (host, device, device): two slots take
  // what three did, so that the bound on resident memory holds.
  bool const third_chunk =
      !plan.reduces && run.result_bytes(plan.chunk_bytes) != 0 && !device.shares_storage_with_host();
  return third_chunk ? std::max<std::size_t>(1, slots * 2 / 3) : slots;
}

/// Decides how large the chunks are and how many slots there may be, the file and the memory limit considered.
void divide(detail::ChunkPlan& plan, StreamOptions const& options, Device& device, detail::ChunkRun const& run,
            std::uint64_t file_bytes, std::size_t element_bytes) {
  auto const limit = std::min(options.memory_limit, device.info().total_bytes);
  std::size_t slots = 0, result_bytes = 0, each = 0;
  for (auto most = options.chunk_bytes;; most = most / 2 / element_bytes * element_bytes) {
    plan.chunk_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(most, file_bytes));
    slots = slots_wanted(options, device, run, plan, file_bytes);
    result_bytes = run.result_bytes(plan.chunk_bytes);
    each = slot_bytes(plan, result_bytes);
    bool const fewer_would_do = each <= limit && most / 2 < least_fitted_chunk;
    if (!options.fit_chunk || slots <= limit / each || fewer_would_do || most / 2 < element_bytes) break;
  }
  if (each > limit) {
    OutOfMemory::Facts facts;
    facts.where = fmt::format("{} device", device.id());
    facts.requested = each;
    facts.limit = limit;
    facts.device_free = device.memory_info().free_bytes;
    facts.reason = fmt::format("the limit is below one chunk: {} and {} of results", format_size(plan.chunk_bytes),
                               format_size(result_bytes));
    throw OutOfMemory(std::move(facts));
  }
  plan.slots = std::min(slots, limit / each);
}

void write_npy_header(detail::OutputFile& output, ElementType element, detail::InputFile const& input) {
  std::array const flat{input.bytes() / element_size(element)};
  auto const header =
      input.shape() ? detail::format_npy_header(element, *input.shape()) : detail::format_npy_header(element, flat);
  output.write(std::as_bytes(std::span{header}));
}

Location location_on(Device const& device) {
  return device.reaches_host_memory()        ? Location::host
         : device.shares_storage_with_host() ? Location::unified
                                             : Location::device;
}

/// Bytes that a manager of its own may take besides the one that was given, whose limit bounds both.
std::size_t room_beside(MemoryManager& given, Device& device, Location location) {
  auto const limit = given.limit(device, location);
  auto const live = given.pool(device, location).statistics().active_bytes;
  return std::min(limit - std::min(limit, live), device.memory_info().free_bytes);
}

/// A kernel of the library that the device's driver compiles is tried before it is given anything of the user's, and
/// before the stream takes memory. What that takes comes from a manager of its own, so that a first stream's statistics
/// are those of the next; where there is no room beside the one given, from that, which can ask residents to make room.
void check_known_answer(detail::ChunkRun const& run, Device& device, StreamOptions const& options) {
  static auto& answers = *new detail::KnownAnswers(detail::user_cache_directory("answers-v1"));  // kept for good
  if (device.info().runs_host_form) return;  // compiled with the library, and not by a driver
  auto const location = location_on(device);
  MemoryManager own;
  auto& given = options.manager != nullptr ? *options.manager : own;
  auto const answer = run.known_answer(std::min(options.memory_limit, given.limit(device, location)));
  if (!answer) return;
  std::size_t bytes = 0;
  for (auto const& each : answer->runs) bytes += each.bytes;
  answers.check(*answer, device, bytes <= room_beside(given, device, location) ? own : given, location);
}

/// Whether chunks are windows of the file itself: which they can be where kernels read the host's memory (a header of
/// an odd length leaves elements where none may), and are unless bytes are to go past the page cache, to memory there
/// is.
bool reads_in_place(StreamOptions const& options, Device& device, detail::InputFile const& input, ElementType element) {
  bool const aligned = input.data_offset() % element_size(element) == 0;
  bool const can = device.reaches_host_memory() && aligned;
  if (options.access == FileAccess::mapped && !can) {
    throw UnsupportedOperation("reading a file in place",
                               aligned ? std::string(device.id()) : fmt::format("'{}'", input.path()),
                               aligned ? "the device does not reach the host's memory"
                                       : "its header leaves the elements where no kernel may read them");
  }
  if (!can || options.access == FileAccess::direct) return false;
  if (options.access != FileAccess::automatic || !input.goes_direct()) return true;
  auto const chunk = std::min<std::uint64_t>(options.chunk_bytes, input.bytes());
  auto const needed = 2 * chunk * std::min<std::uint64_t>(options.buffers, most_slots);
  MemoryManager own;
  auto& given = options.manager != nullptr ? *options.manager : own;
  return needed > std::min(options.memory_limit, room_beside(given, device, Location::host));
}

/// The way that most of a file came.
FileAccess access_of(detail::InputFile const& input, detail::ChunkPlan const& plan) noexcept {
  if (plan.mapped) return FileAccess::mapped;
  return input.bytes_read_directly() > input.bytes_read() / 2 ? FileAccess::direct : FileAccess::cached;
}

/// Sends the chunks of a file that has any.
void run_chunks(StreamResult& result, detail::InputFile const& input, detail::ChunkRun& run,
                detail::ChunkPlan const& plan, std::optional<detail::OutputFile>& output, StreamOptions const& options,
                Device& device) {
  auto const location = location_on(device);
  std::optional<MemoryManager> own;
  auto& manager = options.manager != nullptr ? *options.manager : own.emplace();
  if (own && location != Location::host && options.memory_limit < device.info().total_bytes) {
    own->set_limit(device, location, options.memory_limit);
  }
  {
    detail::ChunkRing ring(manager, device, input, run, plan);
    ring.run(output ? &*output : nullptr, options.progress, options.cancel);
    result.buffers = ring.slots();
    result.host_to_device_bytes = ring.moved().host_to_device_bytes;
    result.device_to_host_bytes = ring.moved().device_to_host_bytes;
  }
  result.chunks = (input.bytes() + plan.chunk_bytes - 1) / plan.chunk_bytes;
  result.chunk_bytes = plan.chunk_bytes;
  result.pool = manager.pool(device, location).statistics();
  result.peak_device_bytes = result.pool.peak_reserved_bytes;
}

}  // namespace

StreamResult stream_file(std::filesystem::path const& path, StreamKernel const& kernel, StreamOptions const& options) {
  auto const begin = std::chrono::steady_clock::now();
  check_options(kernel, options);
  auto& device = options.device == nullptr ? default_device() : *options.device;
  detail::InputFile const input(path, way_of(options.access));
  auto const element = element_of(kernel, options, input);

  detail::ChunkPlan plan;
  plan.mapped = reads_in_place(options, device, input, element);
  plan.reduces = !kernel.maps();
  plan.writes = !options.output.empty();
  auto const run = kernel.work()->start(device, element, plan.mapped);
  if (input.bytes() != 0) {
    divide(plan, options, device, *run, input.bytes(), element_size(element));
    check_known_answer(*run, device, options);
  }

  std::optional<detail::OutputFile> output;
  if (plan.writes) {
    output.emplace(options.output, input.descriptor());
    if (options.output.extension() == ".npy") write_npy_header(*output, element, input);
  }
  StreamResult result;
  result.kernel = kernel.name();
  result.device = device.id();
  result.element = element;
  result.bytes = input.bytes();
  result.access = options.access;
  if (input.bytes() != 0) {
    run_chunks(result, input, *run, plan, output, options, device);
    result.access = access_of(input, plan);
    result.direct_bytes = input.bytes_read_directly();
  } else if (options.progress) {
    options.progress(0, 0);
  }
  result.result = run->finish(input.bytes() / element_size(element));
  if (output) output->commit();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace unimem
