#pragma once

#include "core/unique_fd.hpp"
#include "file/retries.hpp"

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

namespace unimem::detail {

/// The bytes that come through a pipe (FIFO), in order and once, until the last writer has closed it. Used by one
/// thread at a time.
class PipeInput {
 public:
  /// Whether `path` leads to a pipe.
  [[nodiscard]] static bool is_at(std::filesystem::path const& path) noexcept;

  /// Waits for no writer. Throws IoError.
  explicit PipeInput(std::filesystem::path const& path);

  /// Fills `to`; returns how many bytes that were, fewer only at the end, or when `stop` says so, which is asked ten
  /// times a second while nothing comes. Throws IoError.
  [[nodiscard]] std::size_t read(std::span<std::byte> to, Retries& retries, std::function<bool()> const& stop);

 private:
  std::string path_;
  UniqueFd descriptor_;
};

}  // namespace unimem::detail
