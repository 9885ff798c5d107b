#include <unimem/core/error.hpp>

#include "file/failing_calls.hpp"
#include "stream/save_fixture.hpp"

#include <new>

// Whichever call to the system is refused while a file of buffers is written or read: the older file stays or the new
// one is whole, and before the first write no buffer has changed.

namespace unimem::testing {
namespace {

class SavingSweep : public Saving {
 protected:
  static constexpr std::size_t count = 2 * MiB / sizeof(Word);

  /// Whether `operation` had an n-th call to be refused; `threw`: whether it told.
  template <class Operation>
  bool refused_at(std::size_t n, Operation const& operation, bool& threw) {
    threw = false;
    fail_call(n);
    try {
      operation();
    } catch (Error const&) {
      threw = true;
    } catch (std::bad_alloc const&) {
      threw = true;
    }
    bool const reached = !call_is_to_fail();
    fail_call(0);
    return reached;
  }
};

TEST_F(SavingSweep, NoFailingCallTearsAFile) {
  auto const path = folder / "state.safetensors";
  auto host = made("host", count, 1);
  auto on_device = made("device", count, 2);
  only_on_device(on_device);
  FileOptions of_file;
  of_file.manager = &manager;
  of_file.mode = FileMode::copy_on_write;
  of_file.name = "file";
  auto const file = from_file<Word>(folder.write("words", words(count, 3)), of_file);
  std::size_t tries = 0, told = 0;
  bool reached = true, threw = false;
  for (std::size_t n = 1; reached && !HasFailure(); ++n, ++tries) {
    SCOPED_TRACE(::testing::Message() << "call " << n << " is refused");
    ASSERT_LT(n, 200U);
    folder.write("state.safetensors", std::string_view("old"));
    reached = refused_at(n, [&] { save(manager, path); }, threw);
    told += threw ? 1 : 0;
    EXPECT_EQ(folder.names(), (std::set<std::string>{"state.safetensors", "words"}));
    if (threw) {
      EXPECT_EQ(folder.read("state.safetensors"), "old");
    } else {
      EXPECT_EQ(open_tensors(path).at("device").open<Word>().to_vector(), words(count, 2));
    }
    EXPECT_FALSE(on_device.valid_on_host());
  }
  EXPECT_FALSE(threw);
  EXPECT_GE(told, 3U);
  EXPECT_GT(tries, told);
  EXPECT_EQ(host.to_vector(), words(count, 1));
}

TEST_F(SavingSweep, NoFailingCallBeforeTheFirstWriteChangesABuffer) {
  auto const path = folder / "state.safetensors";
  auto host = made("host", count, 1);
  save(manager, path);
  std::size_t unchanged = 0;
  bool reached = true, threw = false;
  for (std::size_t n = 1; reached && !HasFailure(); ++n) {
    SCOPED_TRACE(::testing::Message() << "call " << n << " is refused");
    ASSERT_LT(n, 200U);
    host.fill(7U);
    reached = refused_at(n, [&] { restore(manager, path); }, threw);
    auto const now = host.to_vector();
    if (!threw) {
      EXPECT_EQ(now, words(count, 1));
    } else if (now == std::vector<Word>(count, 7U)) {
      ++unchanged;
    }
  }
  EXPECT_GE(unchanged, 4U) << "opening, the two parts of the header, the first pass";
  EXPECT_EQ(host.to_vector(), words(count, 1));
}

}  // namespace
}  // namespace unimem::testing
