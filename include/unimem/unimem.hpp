#pragma once

// Everything public, floor by floor. Programs in a hurry to compile include what they use instead.

#include <unimem/core/build.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/core/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/export.hpp>
#include <unimem/core/lazy.hpp>
#include <unimem/core/log.hpp>
#include <unimem/core/name.hpp>
#include <unimem/core/size.hpp>
#include <unimem/core/stack.hpp>
#include <unimem/core/version.hpp>

#include <unimem/device/advice.hpp>
#include <unimem/device/cuda.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/event_awaiter.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/device/pages.hpp>
#include <unimem/device/program.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/device/timed_wait.hpp>
#include <unimem/device/transfer_meter.hpp>
#include <unimem/device/value_type.hpp>
#include <unimem/device/wait_watch.hpp>

#include <unimem/coherence/coherence.hpp>
#include <unimem/coherence/state.hpp>

#include <unimem/pool/address_book.hpp>
#include <unimem/pool/allocation.hpp>
#include <unimem/pool/allocation_log.hpp>
#include <unimem/pool/cuda_resource.hpp>
#include <unimem/pool/idle_trimmer.hpp>
#include <unimem/pool/memory_pool.hpp>
#include <unimem/pool/pool_resource.hpp>
#include <unimem/pool/replay.hpp>
#include <unimem/pool/statistics.hpp>
#include <unimem/pool/upstream.hpp>

#include <unimem/manager/links.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/manager/optimization.hpp>
#include <unimem/manager/options.hpp>
#include <unimem/manager/placement.hpp>
#include <unimem/manager/pressure.hpp>
#include <unimem/manager/resident.hpp>
#include <unimem/manager/usage.hpp>

#include <unimem/buffer/advised_range.hpp>
#include <unimem/buffer/buffer_core.hpp>
#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/buffer/buffer_slice.hpp>
#include <unimem/buffer/device_lease.hpp>
#include <unimem/buffer/double_buffer.hpp>
#include <unimem/buffer/element_access.hpp>
#include <unimem/buffer/map_mode.hpp>
#include <unimem/buffer/mapping.hpp>
#include <unimem/buffer/options.hpp>
#include <unimem/buffer/shape.hpp>
#include <unimem/buffer/statistics.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/buffer/view.hpp>

#include <unimem/report/device_list.hpp>
#include <unimem/report/exit_report.hpp>
#include <unimem/report/json.hpp>
#include <unimem/report/prometheus.hpp>
#include <unimem/report/text.hpp>

#include <unimem/kernel/graph.hpp>
#include <unimem/kernel/host_form.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/kernel/native.hpp>
#include <unimem/kernel/operand.hpp>
#include <unimem/kernel/orchestrator.hpp>

#include <unimem/share/buffer_id.hpp>
#include <unimem/share/buffer_ref.hpp>
#include <unimem/share/buffer_registry.hpp>
#include <unimem/share/element_tag.hpp>
#include <unimem/share/message_queue.hpp>

#include <unimem/stream/element_type.hpp>
#include <unimem/stream/stream_file.hpp>
#include <unimem/stream/stream_kernel.hpp>
