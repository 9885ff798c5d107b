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
  std::map<Device const*, std::shared_ptr<Program const>> programs;
};

Kernel::Kernel(std::string name) : definition_(std::make_shared<Definition>()) {
  definition_->forms.name = std::move(name);
}

Kernel::Definition& Kernel::definition() const {
  if (!definition_) detail::throw_empty_handle("kernel");
  return *definition_;
}

Kernel& Kernel::source(std::string text) {
  definition().forms.source = std::move(text);
  return *this;
}

Kernel& Kernel::set_host(HostLoop loop, std::vector<KernelParameter> parameters) {
  auto& own = definition();
  own.forms.host = std::move(loop);
  own.parameters = std::move(parameters);
  return *this;
}

std::string_view Kernel::name() const noexcept {
  return definition_ ? std::string_view{definition_->forms.name} : std::string_view{};
}

bool Kernel::has_source() const noexcept {
  return definition_ && !definition_->forms.source.empty();
}

bool Kernel::has_host() const noexcept {
  return definition_ && definition_->forms.host != nullptr;
}

std::vector<KernelParameter> const& Kernel::parameters() const noexcept {
  static std::vector<KernelParameter> const none;
  return definition_ ? definition_->parameters : none;
}

ProgramSource const& Kernel::forms() const {
  return definition().forms;
}

std::shared_ptr<Program const> Kernel::program(Device& device) const {
  auto& own = definition();
  // Held while compiling: a second launch of the same kernel waits for the program instead of building it twice.
  std::lock_guard const lock{own.mutex};
  auto& program = own.programs[&device];
  if (!program) program = device.compile(own.forms);
  return program;
}

Kernel const& Kernel::build(Device& device) const {
  static_cast<void>(program(device));
  return *this;
}

bool Kernel::is_built(Device const& device) const {
  auto& own = definition();
  std::unique_lock const lock{own.mutex, std::try_to_lock};
  if (!lock) return false;  // who builds keeps it
  auto const known = own.programs.find(&device);
  return known != own.programs.end() && known->second != nullptr;
}

}  // namespace unimem
