#include "log_bridge.hpp"

#include <unimem/core/log.hpp>

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "gil.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

struct Message {
  LogLevel level;
  std::string text;
  Message* next;
};

// Without a lock, since a thread that a forked child does not have may be in the middle of logging. All sequentially
// consistent: the thread that ends the log and one that logs must not each leave a message to the other.
constinit std::atomic<Message*> messages{nullptr};  ///< the latest first
constinit std::atomic<bool> telling{false};         ///< a thread is there that takes the interpreter's lock
constinit std::atomic<bool> ended{false};
constinit std::atomic<bool> quiet_at_end{false};

int python_level(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::off:
    case LogLevel::error:
      return 40;
    case LogLevel::warning:
      return 30;
    case LogLevel::info:
      return 20;
    case LogLevel::debug:
      break;
  }
  return 10;
}

/// With the interpreter's lock.
void tell(Message const& message) noexcept {
  try {
    auto const text = nb::steal<nb::str>(
        PyUnicode_DecodeUTF8(message.text.data(), static_cast<Py_ssize_t>(message.text.size()), "replace"));
    nb::module_::import_("logging").attr("getLogger")("unimem").attr("log")(python_level(message.level), "%s", text);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("a message of unimem's log");
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): no memory for a message
  }
}

/// All that there are, the earliest first.
template <class F>
void take_each(F const& f) noexcept {
  auto* latest = messages.exchange(nullptr);
  Message* earliest = nullptr;
  while (latest != nullptr) {
    auto* const before = std::exchange(latest->next, earliest);
    earliest = std::exchange(latest, before);
  }
  while (earliest != nullptr) {
    std::unique_ptr<Message const> const one(earliest);
    earliest = one->next;
    f(*one);
  }
}

void tell_all() noexcept {
  while (messages.load() != nullptr) take_each(tell);
}

void tell_on_this_thread() noexcept {
  do {
    {
      Locked const acquired;
      tell_all();
    }
    telling.store(false);
    telling.notify_all();
  } while (messages.load() != nullptr && !ended.load() && !telling.exchange(true));
}

/// Unless a thread tells already. False if there can be none; the next message tries again.
bool begin_to_tell() {
  if (telling.exchange(true)) return true;
  if (!ended.load()) {
    try {
      std::thread(tell_on_this_thread).detach();
      return true;
    } catch (std::system_error const&) {  // NOLINT(bugprone-empty-catch): said by the result
    }
  }
  telling.store(false);
  telling.notify_all();
  return false;
}

bool take_along(LogLevel level, std::string_view text) noexcept {
  if (ended.load()) return false;
  try {
    auto* const one = new Message{level, std::string(text), messages.load()};
    while (!messages.compare_exchange_weak(one->next, one)) {
    }
    if (!begin_to_tell() && ended.load()) take_each([](Message const& left) { log(left.level, left.text); });
    return true;
  } catch (std::bad_alloc const&) {
    return false;
  }
}

}  // namespace

void log_to_python(bool every_level) {
  quiet_at_end.store(every_level);
  if (every_level) set_log_level(LogLevel::debug);
  set_log_sink(&take_along);
}

void python_log_ends() {
  ended.store(true);
  unlocked([] { telling.wait(true); });
  if (quiet_at_end.load()) set_log_level(LogLevel::warning);
  tell_all();
}

void forget_messages_of_the_parent() noexcept {
  static_cast<void>(messages.exchange(nullptr));
  telling.store(false);
}

}  // namespace unimem::python
