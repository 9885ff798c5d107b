#pragma once

#include <unimem/device/device.hpp>
#include <unimem/device/program.hpp>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unimem::detail {

/// A kernel on a device whose memory the host can address: its host form.
class HostProgram final : public Program {
 public:
  /// Throws KernelError if `source` has no host form, naming `device`, which needs it.
  HostProgram(ProgramSource const& source, Device const& device);

  [[nodiscard]] std::string const& name() const noexcept { return name_; }

  /// Runs all of `range` and returns. Spread over the shared thread pool when the arguments' memory is large enough
  /// that waking other threads pays; the loop then sees disjoint parts. Throws what the loop throws.
  void run(Range range, std::span<const KernelArgument> arguments) const;

  void check_range(Range range) const override;

 private:
  std::string name_;
  HostLoop loop_;
  bool takes_groups_;
};

/// `program` as the host program it must be; throws KernelError for a program of another kind of device.
[[nodiscard]] std::shared_ptr<HostProgram const> as_host_program(std::shared_ptr<Program const> const& program,
                                                                 Device const& device);

}  // namespace unimem::detail
