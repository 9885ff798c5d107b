#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>
#include <unimem/kernel/detail/host_form.hpp>
#include <unimem/kernel/kernel_source.hpp>
#include <unimem/kernel/work_group.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace unimem {

/// A kernel in up to two forms: source, for devices that compile (docs/kernels.md), and a callable, for cpu and sim.
///
///     Kernel scale = Kernel("scale")
///         .source(R"(UNIMEM_KERNEL scale(UNIMEM_BUFFER(float, x), float a) {
///           UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] *= a;
///         })")
///         .host([](WorkItem i, std::span<float> x, float a) { x[i.x] *= a; });
///
/// A handle: copies are the same kernel. Built once per device, by `build` or at the first launch there, and kept. Set
/// both forms, and the group, before that; building and launching are thread-safe. Using a moved-from kernel throws
/// InvalidArgument, asking what it has gives nothing.
class UNIMEM_API Kernel {
 public:
  /// `name` is the entry point of the source form, and what errors call it.
  explicit Kernel(std::string name);

  /// Compiled as it stands.
  Kernel& source(std::string text);

  /// With headers, macros, fast mathematics. What it includes is read now, and not later. Throws InvalidArgument naming
  /// the macro, the header or the folder that cannot be, or what makes the text longer than 16 MiB; IoError where a
  /// file that is there cannot be read. An `#include` of what there is not is the compiler's KernelError, where it is
  /// compiled. A host form has nothing of these: it is compiled with the program.
  Kernel& source(KernelSource const& source);

  /// The same kernel with constants: macros that its source has by these names, in the place of `defines`. Those it
  /// defines by itself it defines where they are not (#ifndef), so that it has a default. The host form stays as it is.
  ///
  ///     launch(sums.specialize({{"TILE", 16}}), Range{n}.group({16}), read(x), write(sum));
  ///
  /// The 64 used last are kept, each with what was built of it: with the same constants this gives the same kernel, and
  /// is a look into a list. Set forms and group before. Thread-safe. Throws InvalidArgument for a name that the source
  /// does not have, or defines in any case, and for those that no macro can have.
  [[nodiscard]] Kernel specialize(KernelConstants const& constants) const;

  /// In groups of which size it is launched where its range says nothing else. Throws InvalidArgument where a dimension
  /// is 0.
  Kernel& group(GroupSize size);

  /// `callable(WorkItem, std::span<T>… or scalars…)`, called once per work item, from several threads: it may touch
  /// what other items do not. The loop around it is compiled together with it. Generic lambdas are not accepted: the
  /// parameter types are checked against each launch, and so is what they may write. A `std::span<const T>` takes
  /// `read` or `readwrite`, a `std::span<T>` takes `write` or `readwrite`.
  ///
  /// `callable(WorkGroup const&, …)` is called once per group instead: where items share memory, or wait for each
  /// other.
  template <class F>
  Kernel& host(F callable) {
    using Parameters = typename detail::CallableParameters<std::decay_t<F>>::type;
    using First = std::remove_cvref_t<std::tuple_element_t<0, Parameters>>;
    constexpr bool takes_groups = std::is_same_v<First, WorkGroup>;
    static_assert(std::is_same_v<First, WorkItem> || takes_groups, "the first parameter is the WorkItem, or WorkGroup");
    Parameters* const deduction = nullptr;
    return set_host(detail::host_loop(std::move(callable), deduction), detail::kernel_parameters(deduction),
                    takes_groups);
  }

  [[nodiscard]] std::string_view name() const noexcept;
  [[nodiscard]] bool has_source() const noexcept;
  [[nodiscard]] bool has_host() const noexcept;
  /// What `group` has set; 0 × 0 × 0 before.
  [[nodiscard]] GroupSize group_size() const noexcept;
  /// Whether the two handles are of one kernel; those that were moved from are of none.
  [[nodiscard]] bool is_same_as(Kernel const& other) const noexcept {
    return definition_ != nullptr && definition_ == other.definition_;
  }

  /// What the host form takes; empty without one.
  [[nodiscard]] std::vector<KernelParameter> const& parameters() const noexcept;

  /// Both forms as they were given, an empty text or function for the one that is missing; they stand as long as the
  /// kernel. Throws InvalidArgument if it was moved from.
  [[nodiscard]] ProgramSource const& forms() const;

  /// Makes the kernel ready for a device, so that no launch there calls a compiler, which may take a second. A host
  /// form needs none, and neither does a kernel that has been built there. Touches no buffer. Threads that need the
  /// kernel on that device meanwhile wait for it; on other devices they do not. Returns the kernel. What a driver
  /// leaves to the first run of a program (docs/kernels.md) stays there: the launch does not wait for that, its event
  /// does.
  ///
  /// Throws what a launch would: KernelError where it lacks the form that the device needs, or does not build (with the
  /// log; the next call tries again), UnsupportedOperation where there is no compiler, DeviceError where the driver
  /// refuses. InvalidArgument if it was moved from. A forked child builds what it inherits anew.
  Kernel const& build(Device& device) const;

  /// Whether that has been done. False also while it is being done, for which this does not wait. Throws
  /// InvalidArgument if it was moved from.
  [[nodiscard]] bool is_built(Device const& device) const;

  /// The program for a device, built at the first call for it. Throws KernelError, with the compiler's log where there
  /// is one.
  [[nodiscard]] std::shared_ptr<Program const> program(Device& device) const;

 private:
  Kernel& set_host(HostLoop loop, std::vector<KernelParameter> parameters, bool takes_groups);

  struct Definition;
  [[nodiscard]] Definition& definition() const;

  std::shared_ptr<Definition> definition_;
};

}  // namespace unimem
