#pragma once

/// One suite over Device, Queue, Event and PageSource, run for every backend: what a caller may rely on whatever is
/// behind the interface. A test program includes this header and says which device it means:
///
///     INSTANTIATE_TEST_SUITE_P(Cpu, DeviceConformance, ::testing::Values(DeviceCase{"cpu", [] -> Device& { … }}),
///     case_name);
///
/// The tests are in five headers by what they are about; what all of them need is in conformance_fixture.hpp.

#include "device/conformance_durations.hpp"
#include "device/conformance_events.hpp"
#include "device/conformance_fixture.hpp"
#include "device/conformance_kernels.hpp"
#include "device/conformance_memory.hpp"
#include "device/conformance_pages.hpp"
#include "device/conformance_pieces.hpp"
#include "device/conformance_queues.hpp"
