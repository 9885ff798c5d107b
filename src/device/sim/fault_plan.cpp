#include "device/sim/fault_plan.hpp"

namespace unimem::detail {

void FaultPlan::replace(SimOptions const& options) {
  std::lock_guard const lock{mutex_};
  plan_ = options;
  allocations_ = uploads_ = downloads_ = runs_ = commands_ = calls_ = 0;
  lost_ = false;
}

SimVerdict FaultPlan::next_allocation() {
  std::lock_guard const lock{mutex_};
  if (lost_) return SimVerdict::lost;
  bool const call_fails = ++calls_ == plan_.fail_call;
  return ++allocations_ == plan_.fail_allocation || call_fails ? SimVerdict::fail : SimVerdict::succeed;
}

SimVerdict FaultPlan::next(SimCommand command) {
  std::lock_guard const lock{mutex_};
  if (++commands_ == plan_.lose_after) lost_ = true;
  bool fails = ++calls_ == plan_.fail_call;
  switch (command) {
    case SimCommand::upload:
      fails |= ++uploads_ == plan_.fail_upload;
      break;
    case SimCommand::download:
      fails |= ++downloads_ == plan_.fail_download;
      break;
    case SimCommand::run:
      fails |= ++runs_ == plan_.fail_run;
      break;
    case SimCommand::copy:
    case SimCommand::fill:
      break;
  }
  if (lost_) return SimVerdict::lost;
  return fails ? SimVerdict::fail : SimVerdict::succeed;
}

}  // namespace unimem::detail
