#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "core/stack.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

namespace unimem {
namespace {

/// What others gave, in a message of one line, which control characters would end, or change behind the reader's back.
std::string shown(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (char const c : text) {
    auto const byte = static_cast<unsigned char>(c);  // char has no sign on every processor
    bool const is_control = byte < ' ' || byte == 0x7F;
    line += !is_control ? std::string(1, c)
            : c == '\n' ? "\\n"
                        : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return line;
}

}  // namespace

// Destructors are defined here so that each class has its key function, and with it one typeinfo, in the library:
// an exception thrown there is caught by type in the program whatever the visibility settings.
Error::~Error() = default;
detail::RuntimeError::~RuntimeError() = default;
InvalidArgument::~InvalidArgument() = default;
ReleasedTwice::~ReleasedTwice() = default;
SizeMismatch::~SizeMismatch() = default;
BufferNotAllocated::~BufferNotAllocated() = default;
CoherenceConflict::~CoherenceConflict() = default;
OutOfMemory::~OutOfMemory() = default;
DataLost::~DataLost() = default;
DeviceError::~DeviceError() = default;
KernelError::~KernelError() = default;
IoError::~IoError() = default;
UnsupportedOperation::~UnsupportedOperation() = default;
NotFound::~NotFound() = default;

InvalidArgument::InvalidArgument(std::string argument_, std::string value_, std::string requirement_)
    : InvalidArgument(std::move(argument_), std::move(value_), std::move(requirement_), std::string_view{}) {}

InvalidArgument::InvalidArgument(std::string argument_, std::string value_, std::string requirement_,
                                 std::string_view details)
    : RuntimeError(fmt::format("invalid {} '{}': must be {}{}", argument_, shown(value_), requirement_, details)),
      argument(std::move(argument_)),
      value(std::move(value_)),
      requirement(std::move(requirement_)) {}

ReleasedTwice::ReleasedTwice(std::string argument_, std::string value_, std::string requirement_,
                             std::vector<std::uintptr_t> acquired_by_, std::vector<std::uintptr_t> released_by_)
    : InvalidArgument(std::move(argument_), std::move(value_), std::move(requirement_),
                      detail::describe_calls("acquired by", acquired_by_) +
                          detail::describe_calls("released first by", released_by_)),
      acquired_by(std::move(acquired_by_)),
      released_by(std::move(released_by_)) {}

void detail::throw_empty_handle(char const* what) {
  throw InvalidArgument(what, "moved-from or never assigned", "one that stands for something");
}

SizeMismatch::SizeMismatch(std::string what_differs, std::size_t expected_, std::size_t actual_, std::string_view unit)
    : RuntimeError(fmt::format("{}: expected {} {}, got {}", what_differs, expected_, unit, actual_)),
      expected(expected_),
      actual(actual_) {}

BufferNotAllocated::BufferNotAllocated(std::string buffer_, std::string operation_)
    : RuntimeError(fmt::format("{}: {} needs storage, and none is allocated", buffer_, operation_)),
      buffer(std::move(buffer_)),
      operation(std::move(operation_)) {}

CoherenceConflict::CoherenceConflict(std::string buffer_, Write earlier_, Write later_)
    : RuntimeError(fmt::format("{}: the write of bytes [{}, {}) on {} overlaps the unsynchronized write of bytes "
                               "[{}, {}) on {} and does not cover all of that side's",
                               buffer_, later_.begin, later_.end, later_.place, earlier_.begin, earlier_.end,
                               earlier_.place)),
      buffer(std::move(buffer_)),
      earlier(std::move(earlier_)),
      later(std::move(later_)) {}

namespace {
std::string message_of(OutOfMemory::Facts const& facts) {
  auto text = fmt::format("out of memory on {}: {} requested, limit {}, {} live, {} cached, {} leased, largest free {}",
                          facts.where, format_size(facts.requested), format_size(facts.limit), format_size(facts.live),
                          format_size(facts.cached), format_size(facts.leased), format_size(facts.largest_free));
  text += fmt::format(", fragmentation {:.2f}, device free {}", facts.fragmentation, format_size(facts.device_free));
  if (facts.held_elsewhere != 0) text += fmt::format(", {} held by others", format_size(facts.held_elsewhere));
  if (!facts.reason.empty()) text += fmt::format(" ({})", facts.reason);
  for (auto const& holder : facts.holders) {
    text += fmt::format("\n  {} in {} allocation{} of {}", format_size(holder.bytes), holder.count,
                        holder.count == 1 ? "" : "s", holder.name.empty() ? "(unnamed)" : holder.name);
  }
  return text;
}
}  // namespace

OutOfMemory::OutOfMemory(Facts facts) : facts_(std::move(facts)), message_(message_of(facts_)) {}

DataLost::DataLost(std::string buffer_, std::size_t begin_, std::size_t end_, std::string cause_)
    : RuntimeError(fmt::format("{}: bytes [{}, {}) are lost: {}", buffer_, begin_, end_, cause_)),
      buffer(std::move(buffer_)),
      begin(begin_),
      end(end_),
      cause(std::move(cause_)) {}

DeviceError::DeviceError(std::string backend_, std::string call_, std::int64_t code_, std::string code_name_)
    : RuntimeError(fmt::format("{}: {} failed with {} ({})", backend_, call_, code_name_, code_)),
      backend(std::move(backend_)),
      call(std::move(call_)),
      code(code_),
      code_name(std::move(code_name_)) {}

KernelError::KernelError(std::string name_, std::string reason_, std::string build_log_)
    : RuntimeError(build_log_.empty() ? fmt::format("kernel '{}': {}", name_, reason_)
                                      : fmt::format("kernel '{}': {}\n{}", name_, reason_, build_log_)),
      name(std::move(name_)),
      reason(std::move(reason_)),
      build_log(std::move(build_log_)) {}

IoError::IoError(std::string path_, int code_, std::string doing)
    : RuntimeError(code_ == 0 ? fmt::format("{}: {}", shown(path_), doing)
                              : fmt::format("{}: {}: {}", shown(path_), doing, std::generic_category().message(code_))),
      path(std::move(path_)),
      code(code_) {}

UnsupportedOperation::UnsupportedOperation(std::string operation_, std::string where_, std::string reason_)
    : RuntimeError(fmt::format("{} is not supported on {}: {}", operation_, where_, reason_)),
      operation(std::move(operation_)),
      where(std::move(where_)),
      reason(std::move(reason_)) {}

NotFound::NotFound(std::string kind_, std::string name_, std::vector<std::string> available_, std::string reason_)
    : RuntimeError(fmt::format("no {} '{}': there are {}{}{}", kind_, shown(name_),
                               available_.empty() ? "none" : fmt::format("{}", fmt::join(available_, ", ")),
                               reason_.empty() ? "" : "; ", reason_)),
      kind(std::move(kind_)),
      name(std::move(name_)),
      available(std::move(available_)),
      reason(std::move(reason_)) {}

}  // namespace unimem
