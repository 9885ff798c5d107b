#pragma once

#include "coherence/shadow_model.hpp"

#include <rapidcheck.h>

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace unimem::testing {

/// A model to which operations are done, some of which will fail after others have been started, on other bytes and on
/// the same, and while storage comes and goes.
struct FailingLater {
  ShadowModel model;
  std::vector<ShadowModel::Started> started;  ///< will fail, the latest first

  void start(ByteRange range, bool will_fail, std::optional<ShadowModel::Started> operation);
  void fail_latest();
};

struct Operation {
  std::string name;  ///< what a counterexample shows
  std::function<void(FailingLater&)> run;
};

/// A new buffer and what is done to it, as values: of a run that fails, RapidCheck leaves out every operation that it
/// can, and makes the others smaller.
struct RandomRun {
  std::string buffer;
  ShadowModel model;
  std::vector<Operation> operations;

  /// Adds what happened to `tally`. Throws what the model throws.
  void carry_out(ShadowModel::Tally& tally) const;
};

std::ostream& operator<<(std::ostream& out, RandomRun const& run);

constexpr std::size_t operations_per_run = 250;  ///< on average, without those that find nothing to do

/// Buffers of every size, with other devices and other costs.
rc::Gen<RandomRun> any_run();

}  // namespace unimem::testing
