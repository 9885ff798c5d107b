#include "device/opencl/opencl_graph.hpp"

#include "device/opencl/opencl_device.hpp"

namespace unimem::detail::opencl {

OpenClGraph::OpenClGraph(OpenClDevice const& device, std::span<const ProgramRun> runs) : context_(device.context()) {
  runs_.reserve(runs.size());
  for (auto const& [program, range, arguments] : runs) {
    auto const& ours = own_program(device, program.get());
    runs_.push_back({program, ours, range, ours.ready(range, arguments)});
  }
}

void OpenClGraph::enqueue(Command& command, cl_command_queue queue) const {
  for (auto const& run : runs_) run.program.enqueue(command, queue, run.range, run.ready);
}

}  // namespace unimem::detail::opencl
