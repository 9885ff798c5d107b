#pragma once

// What most programs need: errors, devices, pools, managers, buffers and kernels. The other public headers are included
// by name (docs/headers.md).

#include <unimem/core/build.hpp>
#include <unimem/core/error.hpp>

#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/device/sim.hpp>

#include <unimem/pool/memory_pool.hpp>

#include <unimem/manager/memory_manager.hpp>

#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/buffer/double_buffer.hpp>
#include <unimem/buffer/unified_buffer.hpp>

#include <unimem/report/exit_report.hpp>

#include <unimem/kernel/kernel.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/kernel/native.hpp>
#include <unimem/kernel/orchestrator.hpp>
#include <unimem/kernel/reduce.hpp>
#include <unimem/kernel/work_group.hpp>
