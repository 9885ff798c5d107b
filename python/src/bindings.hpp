#pragma once

#include <nanobind/nanobind.h>

#include "casters.hpp"

namespace unimem {
class MemoryManager;
}

namespace unimem::python {

class Window;

// What each file of this folder adds to the extension module.
void bind_errors(nanobind::module_& m);
void bind_devices(nanobind::module_& m);
void bind_host_arrays(nanobind::module_& m);
void bind_windows(nanobind::module_& m);
void bind_making(nanobind::class_<Window>& window);
void bind_blocks(nanobind::module_& m);
void bind_turns(nanobind::module_& m);
void bind_pools(nanobind::module_& m);
void bind_managers(nanobind::module_& m);
void bind_reports(nanobind::module_& m, nanobind::class_<MemoryManager>& manager);
void bind_signals(nanobind::module_& m, nanobind::class_<MemoryManager>& manager);
void bind_saving(nanobind::class_<MemoryManager>& manager);
void bind_kernels(nanobind::module_& m);
void bind_reductions(nanobind::module_& m);
void bind_sharing(nanobind::module_& m);
void bind_streams(nanobind::module_& m);
void bind_tensors(nanobind::module_& m);
void bind_outside_work(nanobind::module_& m);

}  // namespace unimem::python
