#include "device/sim/fault_plan.hpp"

#include <utility>

namespace unimem::detail {

bool NthCall::begins(std::uint64_t number) {
  if (fired_) return false;
  if (number != failing_) {
    if (number > failing_) begun_.insert(number);
    return false;
  }
  fired_ = true;
  begun_.clear();
  return true;
}

void NthCall::skipped(std::uint64_t number) noexcept {
  if (fired_ || number > failing_) return;
  // The next one, but for those that it is too late for.
  do ++failing_;
  while (begun_.erase(failing_) != 0);
}

FaultScript::FaultScript(SimOptions const& options)
    : lose_after_(options.lose_after),
      allocations_(options.fail_allocation),
      uploads_(options.fail_upload),
      downloads_(options.fail_download),
      runs_(options.fail_run),
      calls_(options.fail_call) {}

bool FaultScript::lost() const noexcept {
  std::lock_guard const lock{mutex_};
  return lost_;
}

SimVerdict FaultScript::next_allocation() {
  std::lock_guard const lock{mutex_};
  if (lost_) return SimVerdict::lost;
  bool const call_fails = calls_.begins(calls_.made());
  bool const allocation_fails = allocations_.begins(allocations_.made());
  return allocation_fails || call_fails ? SimVerdict::fail : SimVerdict::succeed;
}

NthCall* FaultScript::of_kind(SimCommand command) noexcept {
  switch (command) {
    case SimCommand::upload:
      return &uploads_;
    case SimCommand::download:
      return &downloads_;
    case SimCommand::run:
      return &runs_;
    case SimCommand::copy:
    case SimCommand::fill:
      break;
  }
  return nullptr;
}

FaultScript::Call::Call(std::shared_ptr<FaultScript> script, SimCommand command)
    : script_(std::move(script)), command_(command) {
  std::lock_guard const lock{script_->mutex_};
  if (++script_->commands_ == script_->lose_after_) script_->lost_ = true;
  total_ = script_->calls_.made();
  if (auto* const kind = script_->of_kind(command_)) number_ = kind->made();
  lost_ = script_->lost_;
}

FaultScript::Call::~Call() {
  if (begun_) return;
  std::lock_guard const lock{script_->mutex_};
  script_->calls_.skipped(total_);
  if (auto* const kind = script_->of_kind(command_)) kind->skipped(number_);
}

SimVerdict FaultScript::Call::verdict() {
  begun_ = true;
  std::lock_guard const lock{script_->mutex_};
  bool fails = script_->calls_.begins(total_);
  if (auto* const kind = script_->of_kind(command_)) fails = kind->begins(number_) || fails;
  if (lost_) return SimVerdict::lost;
  return fails ? SimVerdict::fail : SimVerdict::succeed;
}

void FaultPlan::replace(SimOptions const& options) {
  auto script = std::make_shared<FaultScript>(options);
  std::lock_guard const lock{mutex_};
  script_ = std::move(script);
}

}  // namespace unimem::detail
