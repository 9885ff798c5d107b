#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unimem {

/// The world a command line finds itself in.
struct Surroundings {
  std::filesystem::path directory{};                               ///< working directory; empty: the test's
  std::vector<std::pair<std::string, std::string>> environment{};  ///< added to the test's own
  bool ordinary_user = false;                                      ///< root becomes nobody
  std::optional<std::size_t> file_size_limit{};                    ///< RLIMIT_FSIZE, bytes
  bool no_threads = false;                                         ///< RLIMIT_NPROC; holds for an ordinary user alone
  std::vector<int> ignored_signals{};                              ///< as nohup leaves SIGHUP
  bool no_unnamed_files = false;                                   ///< O_TMPFILE is refused, as FAT does
  std::filesystem::path standard_output{};                         ///< a file instead of the capture
  bool standard_output_closed = false;
  std::optional<unsigned short> terminal_columns{};  ///< standard error is a terminal this wide
};

/// What became of a command.
struct Outcome {
  int exit_code = -1;  ///< 128 + signal when a signal ended it, as shells say
  bool ended_by_signal = false;
  bool timed_out = false;               ///< it had to be killed
  std::size_t peak_resident_bytes = 0;  ///< most physical memory it held at once
  std::string out;
  std::string err;
};

/// The built command line as a child process. Its output goes to memory files, so it never waits for the test to read;
/// a terminal is read while waiting. Killed when it is still running at the end of the test.
class CliProcess {
 public:
  explicit CliProcess(std::vector<std::string> const& arguments, Surroundings const& surroundings = {});
  CliProcess(CliProcess const&) = delete;
  CliProcess& operator=(CliProcess const&) = delete;
  ~CliProcess();

  [[nodiscard]] pid_t id() const noexcept { return id_; }
  void send(int signal) const;

  /// Whether it has not ended yet.
  [[nodiscard]] bool running() const;

  /// Bytes it has got from the system by reading, of files and everything else.
  [[nodiscard]] std::size_t bytes_read() const;

  /// Whether it has an output open in `folder` that is not finished: without a name, or with one that says so.
  [[nodiscard]] bool writes_in(std::filesystem::path const& folder) const;

  /// Waits for the end; kills it, and fails the test, when that takes longer than `most`.
  Outcome wait(std::chrono::seconds most = std::chrono::seconds(120));

 private:
  void read_terminal();

  pid_t id_ = -1;
  int end_ = -1;  ///< a pidfd: readable when the child has ended
  int out_ = -1;  ///< memory file
  int err_ = -1;  ///< memory file, or the terminal's master side
  bool terminal_ = false;
  bool reaped_ = false;
  std::string seen_;  ///< what the terminal has shown
};

/// Runs it to its end.
[[nodiscard]] Outcome run_cli(std::vector<std::string> const& arguments, Surroundings const& surroundings = {});

/// Words between blanks.
[[nodiscard]] std::vector<std::string> words_of(std::string const& command);

/// Whether the command line lists a device with this id.
[[nodiscard]] bool has_device(std::string const& id);

/// Looks at `condition` until it holds, as fast as it can; false when it did not within `most`, or the process ended.
template <class Condition>
[[nodiscard]] bool reaches(CliProcess const& process, Condition condition,
                           std::chrono::seconds most = std::chrono::seconds(60)) {
  auto const deadline = std::chrono::steady_clock::now() + most;
  while (!condition()) {
    if (!process.running() || std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

}  // namespace unimem
