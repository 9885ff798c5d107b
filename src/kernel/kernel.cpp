#include <unimem/core/detail/lazy.hpp>
#include <unimem/core/error.hpp>
#include <unimem/kernel/kernel.hpp>

#include "core/fork.hpp"
#include "kernel/source_form.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace unimem {

struct Kernel::Definition {
  struct Variant {
    std::string constants;
    Kernel kernel;
  };
  struct Programs {
    std::mutex mutex;  ///< of the map and the list alone, and not held while a compiler runs
    std::map<Device const*, detail::Lazy<std::shared_ptr<Program const>>> by_device;
    std::vector<Variant> variants;  ///< the one used last comes first
  };

  Definition() = default;
  Definition(Definition const&) = delete;
  Definition& operator=(Definition const&) = delete;
  ~Definition() { programs.end(); }

  void set(detail::SourceForm form) {
    forms.source = form.whole();
    source = std::move(form);
  }

  detail::SourceForm source;
  ProgramSource forms;
  std::vector<KernelParameter> parameters;
  GroupSize group{0, 0, 0};
  detail::PerProcess<Programs> programs;  ///< a forked child's are built anew
};

Kernel::Kernel(std::string name) : definition_(std::make_shared<Definition>()) {
  definition_->forms.name = std::move(name);
}

Kernel::Definition& Kernel::definition() const {
  if (!definition_) detail::throw_empty_handle("kernel");
  return *definition_;
}

Kernel& Kernel::source(std::string text) {
  return definition().set(detail::SourceForm{std::move(text)}), *this;
}

Kernel& Kernel::source(KernelSource const& source) {
  return definition().set(detail::SourceForm{source}), *this;
}

Kernel Kernel::specialize(KernelConstants const& constants) const {
  constexpr std::size_t most_variants = 64;
  auto& own = definition();
  std::string key;
  for (auto const& [name, constant] : constants) key += name + ' ' + constant.literal() + '\n';
  auto& programs = own.programs.get();
  std::lock_guard const lock{programs.mutex};
  auto& variants = programs.variants;
  auto found = std::ranges::find(variants, key, &Definition::Variant::constants);
  if (found == variants.end()) {
    Kernel variant{own.forms.name};
    auto& its = *variant.definition_;
    its.forms = own.forms;
    its.parameters = own.parameters;
    its.group = own.group;
    its.set(own.source.with(constants));
    if (variants.size() == most_variants) variants.pop_back();
    found = variants.insert(variants.end(), {std::move(key), std::move(variant)});
  }
  std::rotate(variants.begin(), found, found + 1);
  return variants.front().kernel;
}

Kernel& Kernel::group(GroupSize size) {
  static_cast<void>(Range{size.x, size.y, size.z}.group(size));  // refuses what is none
  definition().group = size;
  return *this;
}

Kernel& Kernel::set_host(HostLoop loop, std::vector<KernelParameter> parameters, bool takes_groups) {
  auto& own = definition();
  own.forms.host = std::move(loop);
  own.forms.host_takes_groups = takes_groups;
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

GroupSize Kernel::group_size() const noexcept {
  return definition_ ? definition_->group : GroupSize{0, 0, 0};
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
  auto& programs = own.programs.get();
  auto& place = [&]() -> auto& {
    std::lock_guard const lock{programs.mutex};
    return programs.by_device[&device];
  }();
  // What needs it meanwhile on this device waits for it instead of compiling it twice; other devices do not.
  return place.get([&] { return std::make_unique<std::shared_ptr<Program const>>(device.compile(own.forms)); });
}

Kernel const& Kernel::build(Device& device) const {
  static_cast<void>(program(device));
  return *this;
}

bool Kernel::is_built(Device const& device) const {
  auto& programs = definition().programs.get();
  std::lock_guard const lock{programs.mutex};
  auto const known = programs.by_device.find(&device);
  return known != programs.by_device.end() && known->second.find() != nullptr;
}

}  // namespace unimem
