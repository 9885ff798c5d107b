#pragma once

#include <unimem/stream/file_buffer.hpp>

#include "file/file.hpp"
#include "manager/backing_file.hpp"

#include <memory>
#include <string>

namespace unimem::detail {

/// A buffer over a part of a file that is open for the mode of `options`, whose offset and count are not looked at.
/// `name`: of the buffer where `options` has none. `elements`: what it is of.
[[nodiscard]] std::shared_ptr<BufferCore> make_backed_core(std::shared_ptr<File const> file, BackingFile::Part part,
                                                           FileOptions const& options, std::string const& name,
                                                           BufferElements elements);

}  // namespace unimem::detail
