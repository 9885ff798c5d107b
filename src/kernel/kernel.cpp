#include <unimem/core/error.hpp>
#include <unimem/kernel/kernel.hpp>

#include <map>
#include <mutex>
#include <utility>

namespace unimem {

struct Kernel::Definition {
  ProgramSource forms;
  std::vector<KernelParameter> parameters;
  std::mutex mutex;
  std::map<Device*, std::shared_ptr<Program const>> programs;
};

Kernel::Kernel(std::string name) : definition_(std::make_shared<Definition>()) {
  definition_->forms.name = std::move(name);
}

Kernel& Kernel::source(std::string text) {
  definition_->forms.source = std::move(text);
  return *this;
}

Kernel& Kernel::set_host(HostLoop loop, std::vector<KernelParameter> parameters) {
  definition_->forms.host = std::move(loop);
  definition_->parameters = std::move(parameters);
  return *this;
}

std::string_view Kernel::name() const noexcept {
  return definition_->forms.name;
}

bool Kernel::has_source() const noexcept {
  return !definition_->forms.source.empty();
}

bool Kernel::has_host() const noexcept {
  return definition_->forms.host != nullptr;
}

std::vector<KernelParameter> const& Kernel::parameters() const noexcept {
  return definition_->parameters;
}

std::shared_ptr<Program const> Kernel::program(Device& device) const {
  // Held while compiling: a second launch of the same kernel waits for the program instead of building it twice.
  std::lock_guard const lock{definition_->mutex};
  auto& program = definition_->programs[&device];
  if (!program) program = device.compile(definition_->forms);
  return program;
}

}  // namespace unimem
