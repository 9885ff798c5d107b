#pragma once

#include "core/container_limit.hpp"
#include "core/unique_fd.hpp"

#include <cstddef>
#include <span>
#include <string>

namespace unimem::detail {

/// Memory that several processes map: a file without a name (memfd), which goes with the last process that has it,
/// however that ends. Its size is sealed, so that no holder can take pages away from under another; all of its pages
/// are there from the beginning, so that none is found missing by a write.
class Segment {
 public:
  /// `bytes` of zeros (at least 1), mapped. `name`: as the system shows it in /proc/…/maps, after "/memfd:". Throws
  /// OutOfMemory where the machine has not got them, or the process's container, whose limit it names: it would be
  /// killed. UnsupportedOperation where the kernel knows no such files.
  [[nodiscard]] static Segment make(std::string const& name, std::size_t bytes,
                                    ContainerLimit const& container = ContainerLimit::of_this_process());
  /// The same with these bytes: written to it, which takes half the time of clearing pages and copying to them.
  [[nodiscard]] static Segment make_copy(std::string const& name, std::span<const std::byte> contents,
                                         ContainerLimit const& container = ContainerLimit::of_this_process());
  /// One that another process made, by its descriptor; `from` says whose, for errors. Nothing is copied, and no page
  /// touched. Throws IoError unless it is such a file, with its size sealed, of this very size; OutOfMemory for want of
  /// addresses.
  [[nodiscard]] static Segment adopt(UniqueFd descriptor, std::size_t bytes, std::string const& from);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  /// For whoever is to have it, too.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

 private:
  Segment(UniqueFd descriptor, std::size_t bytes, std::string const& name);

  UniqueFd descriptor_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace unimem::detail
