#pragma once

#include <unimem/core/detail/lazy.hpp>
#include <unimem/device/program.hpp>

#include "core/fork.hpp"
#include "device/opencl/handle.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace unimem::detail::opencl {

class OpenClDevice;

/// What the driver's compiler has made for one device: a source is compiled once for all kernels of it, as long as one
/// of them is there. Thread-safe: who needs a source that is being compiled waits for it, others do not.
class BuiltPrograms {
 public:
  BuiltPrograms() = default;
  BuiltPrograms(BuiltPrograms const&) = delete;
  BuiltPrograms& operator=(BuiltPrograms const&) = delete;
  ~BuiltPrograms() { sources_.end(); }

  /// Throws KernelError in the name of that kernel, with the log, if the source does not compile: the next caller tries
  /// again.
  [[nodiscard]] std::shared_ptr<ProgramHandle const> get(OpenClDevice const& device, ProgramSource const& source);

 private:
  struct Sources {
    std::mutex mutex;  ///< not held while the compiler runs
    std::map<std::string, std::weak_ptr<Lazy<ProgramHandle>>> by_text;
  };
  PerProcess<Sources> sources_;
};

}  // namespace unimem::detail::opencl
