#pragma once

#include "device/cuda_standin/streams.hpp"

namespace unimem::standin {

struct EventState {
  std::shared_ptr<ContextState> context;
  unsigned flags = 0;
  std::shared_ptr<Completion> last;      ///< of the newest record, or null: an event never recorded is complete
  std::weak_ptr<Capture> capture;        ///< it was recorded into, the newest time
  bool captured = false;                 ///< the newest record went into a capture
  std::map<Stream, std::size_t> joined;  ///< captured commands of each stream that come before it
};

}  // namespace unimem::standin
