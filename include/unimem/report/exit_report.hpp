#pragma once

#include <unimem/core/export.hpp>

namespace unimem {

/// Has the process write what its default manager's memory has come to when it exits, as `to_json` of its snapshot and
/// a line end, to the file that `UNIMEM_REPORT` names; without it, nothing. More than one call is one.
///
/// Including this header, or <unimem/unimem.hpp>, is a call before `main`, and so is loading the shared library. The
/// report is made by an exit handler that is registered then, so that what static objects of the program held is
/// mostly given back before it. A process that ends without exit handlers writes none, nor does a forked child.
///
/// `%p` in the name is the process's id. The file is this process's from that call on, empty until the report is in it:
/// of several processes with the variable, as a program's children are, the first has it. It is for its owner alone
/// (0600); no link is followed. A file that cannot be had or written is said so to the log, and changes nothing else.
UNIMEM_API void report_at_exit() noexcept;

namespace detail {

/// A static archive gives a program only the objects that it names: this names one.
inline bool const reports_at_exit = (report_at_exit(), true);

}  // namespace detail
}  // namespace unimem
