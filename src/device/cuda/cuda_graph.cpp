#include "device/cuda/cuda_graph.hpp"

#include <unimem/core/error.hpp>

#include "device/cuda/cuda_program.hpp"
#include "device/process_end.hpp"

#include <fmt/format.h>

namespace unimem::detail::cuda {
namespace {

constexpr int most_captures = 3;

/// For calls that let something go: a refusal that ends nothing is tried again, since it is not tried elsewhere.
template <class Call>
void insist(Health& health, Call const& call) noexcept {
  for (int tries = 0; tries < most_captures; ++tries) {
    auto const code = call();
    health.note(code);
    if (code == Result::success || is_fatal(code)) return;
  }
}

/// A stream that is captured as long as this lives.
class CapturedStream {
 public:
  CapturedStream(Driver const& driver, Health& health) : driver_(driver), health_(health) {
    health_.check(driver_.cuStreamCreate(&stream_, stream_non_blocking), "cuStreamCreate");
    // Relaxed: only this function's calls go into the stream, and what other threads ask of the driver is none of its
    // business.
    auto const code = driver_.cuStreamBeginCapture(stream_, CaptureMode::relaxed);
    if (code != Result::success) destroy();
    health_.check(code, "cuStreamBeginCapture");
    open_ = true;
  }
  CapturedStream(CapturedStream const&) = delete;
  CapturedStream& operator=(CapturedStream const&) = delete;
  ~CapturedStream() {
    if (open_) {
      Graph graph = nullptr;
      insist(health_, [&] { return end_capture(graph); });
      if (graph != nullptr) insist(health_, [&] { return driver_.cuGraphDestroy(graph); });
    }
    destroy();
  }

  [[nodiscard]] Stream get() const noexcept { return stream_; }

  /// What was captured.
  [[nodiscard]] Graph end() {
    Graph graph = nullptr;
    health_.check(end_capture(graph), "cuStreamEndCapture");
    open_ = false;
    return graph;
  }

 private:
  [[nodiscard]] Result end_capture(Graph& graph) noexcept { return driver_.cuStreamEndCapture(stream_, &graph); }
  void destroy() noexcept {
    insist(health_, [&] { return driver_.cuStreamDestroy(stream_); });
  }

  Driver const& driver_;
  Health& health_;
  Stream stream_ = nullptr;
  bool open_ = false;
};

}  // namespace

CudaGraph::CudaGraph(ContextRef const& gpu, Health& health, std::span<const ProgramRun> runs)
    : gpu_(gpu), health_(health) {
  auto const& driver = gpu_.driver;
  programs_.reserve(runs.size());
  CapturedStream stream(driver, health_);
  for (auto const& [program, range, arguments] : runs) {
    auto const* const ours = dynamic_cast<CudaProgram const*>(program.get());
    if (ours == nullptr || ours->context() != gpu_.context) {
      throw KernelError(ours == nullptr ? "program" : ours->name(), fmt::format("was not made by {}", gpu_.device_id));
    }
    try {
      ours->launch(stream.get(), range, arguments);
    } catch (DeviceError const& error) {
      health_.note(static_cast<Result>(error.code));
      throw;
    }
    programs_.push_back(program);
  }
  auto* const graph = stream.end();
  auto const code = driver.cuGraphInstantiateWithFlags(&executable_, graph, 0);
  insist(health_, [&] { return driver.cuGraphDestroy(graph); });
  health_.check(code, "cuGraphInstantiateWithFlags");
}

Result CudaGraph::launch(Stream stream) const noexcept {
  std::lock_guard const lock{launch_mutex_};
  return gpu_.driver.cuGraphLaunch(executable_, stream);
}

CudaGraph::~CudaGraph() {
  if (driver_gone()) return;
  CurrentContext const current{gpu_, std::nothrow};
  if (current.code() != Result::success) {
    health_.note(current.code());  // it is gone with its context
    return;
  }
  insist(health_, [this] { return gpu_.driver.cuGraphExecDestroy(executable_); });
}

}  // namespace unimem::detail::cuda
