#include <unimem/core/error.hpp>
#include <unimem/core/stack.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace unimem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

OutOfMemory::Facts full() {
  OutOfMemory::Facts facts;
  facts.where = "sim:0 device";
  facts.requested = 6 << 20;
  facts.limit = 12 << 20;
  facts.live = 7 << 20;
  facts.cached = 4 << 20;
  facts.leased = 1 << 20;
  facts.largest_free = 3 << 20;
  facts.fragmentation = 0.25;
  facts.device_free = 53 << 20;
  facts.holders = {{"weights", 6 << 20, 2}, {"", 1 << 20, 1}};
  facts.reason = "limit reached";
  return facts;
}

/// One of each, thrown, with what every message must name: the offending value and the limit it met.
struct Thrown {
  char const* name;
  std::function<void()> raise;
  std::vector<std::string> named;
  bool is_bad_alloc = false;
};

std::vector<Thrown> one_of_each() {
  return {
      {"InvalidArgument",
       [] { throw InvalidArgument("alignment", "48", "a power of two up to 256"); },
       {"alignment", "'48'", "a power of two up to 256"}},
      {"ReleasedTwice",
       [] { throw ReleasedTwice("buffer", "'rows'", "one that was not had back"); },
       {"buffer", "'rows'", "one that was not had back"}},
      {"SizeMismatch", [] { throw SizeMismatch("copy_from", 100, 99); }, {"copy_from", "100", "99"}},
      {"BufferNotAllocated", [] { throw BufferNotAllocated("weights", "sync_to_host"); }, {"weights", "sync_to_host"}},
      {"CoherenceConflict",
       [] { throw CoherenceConflict("weights", {"host", 0, 512}, {"sim:0", 256, 1024}); },
       {"weights", "[256, 1024) on sim:0", "[0, 512) on host"}},
      {"OutOfMemory",
       [] { throw OutOfMemory(full()); },
       {"sim:0 device", "6 MiB requested", "limit 12 MiB", "7 MiB live", "4 MiB cached", "1 MiB leased",
        "largest free 3 MiB", "0.25", "device free 53 MiB", "limit reached", "6 MiB in 2 allocations of weights",
        "1 MiB in 1 allocation of (unnamed)"},
       true},
      {"DataLost",
       [] { throw DataLost("weights", 16, 64, "the device is gone"); },
       {"weights", "[16, 64)", "the device is gone"}},
      {"DeviceError",
       [] { throw DeviceError("opencl", "clFinish", -36, "CL_INVALID_COMMAND_QUEUE"); },
       {"opencl", "clFinish", "-36", "CL_INVALID_COMMAND_QUEUE"}},
      {"KernelError",
       [] { throw KernelError("scale", "does not compile", "line 3: expected ';'"); },
       {"'scale'", "does not compile", "\nline 3: expected ';'"}},
      {"IoError",
       [] { throw IoError("/data/x.bin", ENOENT, "opening"); },
       {"/data/x.bin", "opening", "No such file or directory"}},
      {"UnsupportedOperation",
       [] { throw UnsupportedOperation("metal", "linux", "Metal needs macOS"); },
       {"metal", "linux", "Metal needs macOS"}},
      {"NotFound",
       [] { throw NotFound("device", "opencl:7", {"cpu", "opencl:0"}); },
       {"device", "'opencl:7'", "cpu, opencl:0"}},
  };
}

template <class Caught>
std::string message_caught_as(std::function<void()> const& raise) {
  try {
    raise();
  } catch (Caught const& error) {
    return error.what();
  }
  return {};
}

TEST(Error, EveryErrorHasOneMessageForEachBase) {
  for (auto const& thrown : one_of_each()) {
    SCOPED_TRACE(thrown.name);
    auto const message = message_caught_as<Error>(thrown.raise);
    EXPECT_EQ(message_caught_as<std::exception>(thrown.raise), message);
    if (thrown.is_bad_alloc) {
      EXPECT_EQ(message_caught_as<std::bad_alloc>(thrown.raise), message);
    } else {
      EXPECT_EQ(message_caught_as<std::runtime_error>(thrown.raise), message);
    }
    for (auto const& part : thrown.named) EXPECT_THAT(message, HasSubstr(part));
  }
}

static_assert(!std::is_base_of_v<std::runtime_error, OutOfMemory> &&
              !std::is_base_of_v<std::bad_alloc, InvalidArgument>);
static_assert(std::is_abstract_v<Error>, "an error is always one of the kinds");

TEST(Error, FieldsHoldWhatTheMessageWasMadeFrom) {
  InvalidArgument const argument("count", "-1", "at least 0");
  EXPECT_EQ(argument.argument, "count");
  EXPECT_EQ(argument.value, "-1");
  EXPECT_EQ(argument.requirement, "at least 0");

  ReleasedTwice const twice("buffer", "'b'", "lent", {1, 2}, {3});
  EXPECT_EQ(twice.value, "'b'");
  EXPECT_THAT(twice.acquired_by, ElementsAre(1U, 2U));
  EXPECT_THAT(twice.released_by, ElementsAre(3U));

  SizeMismatch const mismatch("copy_to", 10, 20);
  EXPECT_EQ(mismatch.expected, 10U);
  EXPECT_EQ(mismatch.actual, 20U);

  BufferNotAllocated const unallocated("b", "at");
  EXPECT_EQ(unallocated.buffer, "b");
  EXPECT_EQ(unallocated.operation, "at");

  CoherenceConflict const conflict("b", {"host", 1, 2}, {"sim:0", 0, 4});
  EXPECT_EQ(conflict.buffer, "b");
  EXPECT_EQ(conflict.earlier.place, "host");
  EXPECT_EQ(conflict.earlier.begin, 1U);
  EXPECT_EQ(conflict.later.place, "sim:0");
  EXPECT_EQ(conflict.later.end, 4U);

  DataLost const lost("b", 3, 9, "gone");
  EXPECT_EQ(lost.begin, 3U);
  EXPECT_EQ(lost.end, 9U);
  EXPECT_EQ(lost.cause, "gone");

  DeviceError const device("sim", "upload", 5, "SIM_FAULT");
  EXPECT_EQ(device.backend, "sim");
  EXPECT_EQ(device.call, "upload");
  EXPECT_EQ(device.code, 5);
  EXPECT_EQ(device.code_name, "SIM_FAULT");

  KernelError const kernel("scale", "no host form");
  EXPECT_EQ(kernel.name, "scale");
  EXPECT_EQ(kernel.reason, "no host form");
  EXPECT_TRUE(kernel.build_log.empty());

  IoError const io("f", EACCES, "reading");
  EXPECT_EQ(io.path, "f");
  EXPECT_EQ(io.code, EACCES);

  UnsupportedOperation const unsupported("native queue", "cpu", "there is none");
  EXPECT_EQ(unsupported.operation, "native queue");
  EXPECT_EQ(unsupported.where, "cpu");
  EXPECT_EQ(unsupported.reason, "there is none");

  NotFound const nothing("kernel", "x", {"a", "b"});
  EXPECT_EQ(nothing.kind, "kernel");
  EXPECT_EQ(nothing.name, "x");
  EXPECT_THAT(nothing.available, ElementsAre("a", "b"));
}

TEST(Error, OutOfMemoryKeepsEveryFact) {
  OutOfMemory const error(full());
  EXPECT_EQ(error.requested(), std::size_t{6} << 20);
  EXPECT_EQ(error.limit(), std::size_t{12} << 20);
  EXPECT_EQ(error.live(), std::size_t{7} << 20);
  auto const& facts = error.facts();
  EXPECT_EQ(facts.where, "sim:0 device");
  EXPECT_EQ(facts.cached, std::size_t{4} << 20);
  EXPECT_EQ(facts.leased, std::size_t{1} << 20);
  EXPECT_EQ(facts.largest_free, std::size_t{3} << 20);
  EXPECT_EQ(facts.device_free, std::size_t{53} << 20);
  EXPECT_EQ(facts.fragmentation, 0.25);
  EXPECT_EQ(facts.holders.size(), 2U);
  EXPECT_EQ(facts.reason, "limit reached");
}

TEST(Error, ACopyIsTheSameError) {
  OutOfMemory const error(full());
  auto const copy = error;  // NOLINT(performance-unnecessary-copy-initialization): what is tested
  EXPECT_STREQ(copy.what(), error.what());
  EXPECT_NE(copy.what(), error.what()) << "it does not borrow the text of the other";

  auto const kept = std::make_exception_ptr(DeviceError("sim", "run", 1, "SIM_FAULT"));
  for (int time = 0; time < 2; ++time) {
    try {
      std::rethrow_exception(kept);
    } catch (DeviceError const& again) {
      EXPECT_EQ(again.code_name, "SIM_FAULT");
    }
  }
}

TEST(Error, MessagesAreOneLineWithoutLogOrHolders) {
  for (auto const& thrown : one_of_each()) {
    auto const message = message_caught_as<Error>(thrown.raise);
    auto const several = std::string(thrown.name) == "OutOfMemory" || std::string(thrown.name) == "KernelError";
    EXPECT_EQ(message.find('\n') != std::string::npos, several) << message;
    EXPECT_NE(message.back(), '\n');
  }
  EXPECT_THAT(KernelError("k", "r").what(), Not(HasSubstr("\n")));
}

TEST(Error, WhatOthersGaveIsShownOnOneLine) {
  using std::string_literals::operator""s;
  auto const given = "a\nb\0c\x1b[31m\r\td\x7f \xc3\xa9"s;
  auto const shown = R"(a\nb\x00c\x1b[31m\x0d\x09d\x7f )"s + "\xc3\xa9";
  InvalidArgument const invalid("name", given, "short");
  EXPECT_EQ(invalid.what(), "invalid name '" + shown + "': must be short");
  EXPECT_EQ(invalid.value, given) << "as it was given";
  EXPECT_EQ(IoError(given, 0, "reading").what(), shown + ": reading");
  EXPECT_EQ(NotFound("device", given, {"cpu"}).what(), "no device '" + shown + "': there are cpu");
}

TEST(Error, ACodeOfZeroNamesNoSystemError) {
  EXPECT_STREQ(IoError("a.npy", 0, "bad header").what(), "a.npy: bad header");
  EXPECT_THAT(IoError("a.npy", EIO, "reading").what(), AllOf(HasSubstr("a.npy: reading: "), Not(HasSubstr("Success"))));
}

TEST(Error, NotFoundSaysThatThereIsNothing) {
  EXPECT_STREQ(NotFound("buffer", "x", {}).what(), "no buffer 'x': there are none");
}

TEST(Error, ReleasedTwiceIsInvalidArgumentWithItsStacks) {
  static_assert(std::is_base_of_v<InvalidArgument, ReleasedTwice>);
  InvalidArgument const plain("buffer", "'b'", "lent");
  EXPECT_STREQ(ReleasedTwice("buffer", "'b'", "lent").what(), plain.what());
  ReleasedTwice const known("buffer", "'b'", "lent", {1}, {2});
  EXPECT_EQ(std::string(known.what()), std::string(plain.what()) + "\n  acquired by\n      " + describe_address(1) +
                                           "\n  released first by\n      " + describe_address(2));
}

TEST(Error, NotFoundSaysWhyWhereThatIsKnown) {
  NotFound const error("device", "opencl:0", {"cpu"}, "opencl is unavailable: no platform");
  EXPECT_STREQ(error.what(), "no device 'opencl:0': there are cpu; opencl is unavailable: no platform");
  EXPECT_EQ(error.reason, "opencl is unavailable: no platform");
}

}  // namespace
}  // namespace unimem
