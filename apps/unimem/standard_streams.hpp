#pragma once

#include <string>
#include <string_view>

namespace unimem::cli {

/// Puts /dev/null where standard input, output or error is closed, opened so that writing an answer still fails:
/// without it the next file opened would become standard output, and a result would be written into it. Also turns the
/// signals of a vanished reader and of a file at its size limit into errors that write() returns, which leave time to
/// clean up.
void secure_standard_streams();

/// Writes all of `text` to standard output. Throws IoError when that is closed, full, or has no reader any more.
void write_standard_output(std::string_view text);

/// Writes one line to standard error, where control characters of `text` are shown as \xNN: a file may be called
/// anything, and the reason is one line. What cannot be written there is lost.
void complain(std::string_view text) noexcept;

/// Writes `text` to standard error as it is: a compiler's log.
void complain_verbatim(std::string_view text) noexcept;

/// While it lives, what the rest of the process writes to standard error is held back: compilers inside drivers write
/// there themselves, and the reason of a failure comes first. `complain` is not held. Made and destroyed by one thread.
class HeldStandardError {
 public:
  HeldStandardError();
  HeldStandardError(HeldStandardError const&) = delete;
  HeldStandardError& operator=(HeldStandardError const&) = delete;
  /// Lets out what was not taken.
  ~HeldStandardError();

  /// What has been written so far.
  [[nodiscard]] std::string take();

 private:
  int held_;  ///< a memory file, or -1 where there is none to be had: then nothing is held
};

/// Whether a person looks at it.
[[nodiscard]] bool standard_output_is_terminal() noexcept;
[[nodiscard]] bool standard_error_is_terminal() noexcept;

}  // namespace unimem::cli
