#pragma once

#include "file/retries.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>

namespace unimem::detail {

/// The terms of a read besides its range.
struct ReadTerms {
  std::string_view doing;  ///< for errors

  /// Asked now and then, maybe by several threads at once, whether to give up: fewer bytes have come then.
  std::function<bool()> stop{};

  /// Told of the bytes as they come, in the file's order, from one thread at a time: while they are in the processor's
  /// cache, and others are under way.
  std::function<void(std::span<const std::byte>)> arrived{};

  /// For failures that may pass; null: the first is thrown.
  Retries* retries = nullptr;

  /// These bytes have been read before, so the page cache is to have them.
  bool comes_again = false;
};

}  // namespace unimem::detail
