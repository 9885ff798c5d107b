#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/options.hpp>
#include <unimem/core/export.hpp>

#include <memory>
#include <string>
#include <vector>

namespace unimem {
class MemoryManager;
}  // namespace unimem

namespace unimem::detail {

/// The live buffers of a manager whose names are for `use`, each held as long as its pointer, in the order of their
/// names. Thread-safe.
[[nodiscard]] UNIMEM_API std::vector<std::shared_ptr<BufferCore>> named_buffers(MemoryManager const& manager,
                                                                                NameUse use);

/// Their names, for messages: the first of them where there are many.
[[nodiscard]] UNIMEM_API std::vector<std::string> names_of(std::vector<std::shared_ptr<BufferCore>> const& buffers);

}  // namespace unimem::detail
