#pragma once

#include <unimem/core/export.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

/// One allocation or release of an allocation log.
struct AllocationLogEvent {
  bool allocates = false;    ///< false: releases
  std::uint32_t thread = 0;  ///< by order of appearance in the log
  std::uint32_t stream = 0;  ///< 0: none, or the default stream; others by order of appearance from 1
  /// Which live allocation it is: a number below `AllocationLog::most_live`, given anew once it is released. What the
  /// last one to have it was is the likeliest to be in the processor's cache, as in a program that keeps its handles.
  std::uint32_t slot = 0;
  std::size_t bytes = 0;  ///< the size asked for; of a release: that of its allocation
};

/// What a program once asked of its allocator, in the order in which it did: the columns
/// `Thread,Time,Action,Pointer,Size,Stream` that RMM's logging adaptor writes and `UNIMEM_LOG` too. Read by `replay`
/// without another look at the text: pointers are matched, threads and streams are counted.
struct AllocationLog {
  std::vector<AllocationLogEvent> events;
  std::uint32_t threads = 0;
  std::uint32_t streams = 0;    ///< other than 0
  std::uint32_t most_live = 0;  ///< allocations live at once, and so the number of slots
};

/// Reads a log from a text of comma-separated values (RFC 4180: fields may be quoted, lines may end in CR LF) whose
/// first line names its columns, in any order, and others than those needed: `Thread`, `Action`, `Pointer`, `Size` and
/// `Stream`. Pointers are hexadecimal, with or without `0x`; streams decimal or with `0x`; `(nil)` is 0. Actions are
/// `allocate`, `free` and `allocate failure`; the last took no memory and is left out, and so is what allocates or
/// releases 0 bytes at the null pointer. Empty lines say nothing.
///
/// Throws IoError that names `path`, the line (the first is 1) and the reason: no header, a column missing or twice,
/// too few or too many fields, a quote that does not end, a field that cannot be read, an unknown action, a size that
/// no memory has (8 EiB or more, also in sum), an allocation at a pointer that is live, a release at one that is not or
/// of another size than its allocation's (0 says nothing).
[[nodiscard]] UNIMEM_API AllocationLog parse_allocation_log(std::string_view text, std::string const& path);

/// The same from a file. Throws IoError also if that is missing, unreadable or not a regular file.
[[nodiscard]] UNIMEM_API AllocationLog read_allocation_log(std::filesystem::path const& path);

}  // namespace unimem
