#include "device/cuda_standin/faults.hpp"

#include <charconv>
#include <optional>

namespace unimem::standin {
namespace {

using detail::cuda::Result;

std::string_view take_until(std::string_view& text, char separator) {
  auto const at = text.find(separator);
  auto const part = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view{} : text.substr(at + 1);
  return part;
}

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Calls that ask or let go cannot meaningfully fail at "the n-th call of anything".
bool can_fail(std::string_view function) {
  return function != "cuGetErrorName" && function != "cuGetErrorString" && function != "cuCtxPopCurrent" &&
         function != "cuCtxGetCurrent" && function != "cuThreadExchangeStreamCaptureMode" && function != "cuInit" &&
         function != "cuDriverGetVersion";
}

bool is_sticky(Result code) {
  switch (code) {
    case Result::ecc_uncorrectable:
    case Result::nvlink_uncorrectable:
    case Result::illegal_address:
    case Result::launch_timeout:
    case Result::assert_failed:
    case Result::hardware_stack_error:
    case Result::illegal_instruction:
    case Result::misaligned_address:
    case Result::invalid_address_space:
    case Result::invalid_pc:
    case Result::launch_failed:
    case Result::contained:
    case Result::tensor_memory_leak:
    case Result::mps_client_terminated:
    case Result::external_device:
      return true;
    default:
      return false;
  }
}

}  // namespace

FaultKind usual_kind(Result code, std::string_view function) {
  if (!is_sticky(code)) return FaultKind::once;
  auto const has_work = function.ends_with("Async") || function == "cuLaunchKernel" || function == "cuGraphLaunch";
  return has_work ? FaultKind::late : FaultKind::sticky;
}

void Faults::plan(std::string_view function, std::size_t nth, Result code, FaultKind kind, int device) {
  planned_.push_back({std::string{function}, nth, {code, kind}, device});
}

bool Faults::plan_all(std::string_view text) {
  while (!text.empty()) {
    auto entry = take_until(text, ',');
    auto const function = take_until(entry, ':');
    auto const nth = number<std::size_t>(take_until(entry, ':'));
    auto const code = number<int>(take_until(entry, ':'));
    if (!nth || !code || *nth == 0 || *code == 0) return false;
    auto kind = usual_kind(Result{*code}, function);
    if (entry == "once")
      kind = FaultKind::once;
    else if (entry == "sticky")
      kind = FaultKind::sticky;
    else if (entry == "late")
      kind = FaultKind::late;
    else if (!entry.empty())
      return false;
    plan(function == "any" ? std::string_view{} : function, *nth, Result{*code}, kind);
  }
  return true;
}

Faults::Verdict Faults::next_call(std::string_view function, int device) {
  auto found = calls_.find(function);
  if (found == calls_.end()) found = calls_.emplace(std::string{function}, 0).first;
  ++found->second;
  if (can_fail(function)) ++all_calls_;
  Verdict verdict;
  for (auto& planned : planned_) {
    auto const named = planned.function.empty() ? can_fail(function) : planned.function == function;
    auto const there = planned.device == any_device || planned.device == device;
    if (!named || !there || planned.left == 0 || --planned.left > 0) continue;
    if (verdict.code == Result::success) verdict = planned.verdict;
  }
  std::erase_if(planned_, [](Planned const& planned) { return planned.left == 0; });
  return verdict;
}

std::size_t Faults::calls(std::string_view function) const {
  auto const found = calls_.find(function);
  return found == calls_.end() ? 0 : found->second;
}

void Faults::reset() {
  planned_.clear();
  calls_.clear();
  all_calls_ = 0;
}

}  // namespace unimem::standin
