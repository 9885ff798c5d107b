#pragma once

#include <unimem/file/checksum.hpp>
#include <unimem/manager/file_access.hpp>
#include <unimem/stream/element_type.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace unimem::cli {

/// The command line itself is wrong: exit code 2. The message is one line and names the value.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Help or the version number was asked for; this is the answer.
struct PrintText {
  std::string text;
};

struct DevicesCommand {
  bool verbose = false;
  bool links = false;
  bool json = false;
};

struct PsCommand {
  bool json = false;
};

struct VersionCommand {
  bool json = false;
};

/// Histogram of the bytes.
struct HistogramKernel {};
/// Count, extremes, mean and deviation of the elements.
struct StatisticsKernel {};
/// y = scale · x + offset.
struct AffineKernel {
  double scale = 1;
  double offset = 0;
};
/// A kernel from a file of the user's.
struct SourceKernel {
  std::filesystem::path file;
  std::string entry;
  /// What it accumulates into; nothing: it maps.
  struct Reduction {
    ElementType element = ElementType::u8;
    std::size_t count = 1;
  };
  std::optional<Reduction> reduction{};
};

struct RunCommand {
  std::vector<std::filesystem::path> files;  ///< at least one
  std::variant<HistogramKernel, StatisticsKernel, AffineKernel, SourceKernel> kernel;
  std::optional<ElementType> element;       ///< nothing: what the file says, else u8
  std::filesystem::path output;             ///< empty: none
  std::optional<std::string> device;        ///< nothing: chosen by `run`
  std::optional<std::size_t> chunk_bytes;   ///< nothing: the library's default, or what fits
  std::optional<std::size_t> buffers;       ///< likewise
  std::optional<std::size_t> memory_limit;  ///< likewise
  std::optional<Checksum> checksum;
  std::filesystem::path manifest;   ///< empty: none
  std::filesystem::path verify;     ///< likewise
  std::optional<unsigned> retries;  ///< nothing: the library's default
  bool resume = false;
  FileAccess access = FileAccess::automatic;
  bool progress = true;
  bool json = false;
};

/// What `unimem bench` measures.
enum class Benchmark : std::uint8_t { allocation, transfer, coherence, launch, stream, eviction };

[[nodiscard]] std::string_view to_string(Benchmark benchmark) noexcept;

struct BenchCommand {
  std::vector<Benchmark> only;        ///< at least one, none twice, in the order of the enumeration
  std::optional<std::string> device;  ///< nothing: the default device
  bool quick = false;
  bool json = false;
};

struct ReplayCommand {
  std::filesystem::path trace;
  std::string device = "cpu";
  std::optional<std::size_t> capacity;  ///< nothing: the device's own
  bool json = false;
};

using Command =
    std::variant<PrintText, BenchCommand, DevicesCommand, PsCommand, ReplayCommand, RunCommand, VersionCommand>;

/// What the arguments ask for, checked as far as that goes without looking at a file or a device: every spelling is
/// read, every required combination is there. Throws UsageError. Pure: touches nothing outside.
[[nodiscard]] Command parse_command_line(int argc, char const* const* argv);

}  // namespace unimem::cli
