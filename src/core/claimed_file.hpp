#pragma once

#include "core/unique_fd.hpp"

#include <string>
#include <string_view>

namespace unimem::detail {

/// A file that this process writes alone, or why it does not.
struct ClaimedFile {
  UniqueFd file;
  std::string problem;  ///< empty if there is a file
};

/// `%p` in the name of a file, which every process that inherits the environment would write: the id of this one.
[[nodiscard]] std::string name_for_process(std::string_view pattern);

/// An empty file at `path` that is this process's until the descriptor is closed here and in its forked children: whose
/// it is already is named, and keeps it. What an earlier process left there is replaced, but not what another has
/// written since this one began, which may be a child that lives longer. The lock is one of flock(2).
///
/// The file is for its owner alone (0600), whatever it was before. Regular files of this user, with one name, and no
/// links: a process that may write to the folder must not choose what is overwritten. Opening one never waits.
/// Throws std::bad_alloc.
[[nodiscard]] ClaimedFile claim_file(std::string const& path);

}  // namespace unimem::detail
