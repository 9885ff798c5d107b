#pragma once

#include <thread>

namespace unimem::detail {

/// Waits a moment for `done()` without going to sleep; returns whether it came true.
///
/// Being woken costs about 90 µs where the cores are idle, more than most of what is waited for here still takes.
/// Yielding, and not a pause loop, because on a busy machine the thread that is waited for may need this very core; the
/// moment is some 30 µs on an idle one, so that losing the bet costs a third of winning it.
template <class Done>
[[nodiscard]] bool comes_soon(Done const& done) {
  constexpr int tries = 100;
  for (int i = 0; i < tries; ++i) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return done();
}

}  // namespace unimem::detail
