#pragma once

namespace unimem {
class Device;
}

namespace unimem::detail {

struct LinkFigures {
  double bytes_per_second = 0;
  double latency_seconds = 0;
};

/// Times copies of two sizes from one memory to another, of which one may be the host's (null): a few of each after a
/// first one, which pays for what happens once, and takes the median. On a queue of its own between memory of its own,
/// which counts against the devices' capacity as long as it lasts: 4 MiB on each side, less where there is not so much.
///
/// Throws what the devices throw, DataLost excepted: there is no data. Waits for nobody's work but its own.
[[nodiscard]] LinkFigures measure_link(Device* from, Device* to);

}  // namespace unimem::detail
