#include <unimem/pool/allocation_log.hpp>

#include <unimem/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace unimem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StrEq;

std::string const header = "Thread,Time,Action,Pointer,Size,Stream\n";

AllocationLog parse(std::string_view text) {
  return parse_allocation_log(text, "log.csv");
}

std::string refusal(std::string_view text) {
  try {
    static_cast<void>(parse(text));
  } catch (IoError const& error) {
    EXPECT_EQ(error.path, "log.csv");
    EXPECT_EQ(error.code, 0);
    return error.what();
  }
  return "accepted";
}

/// allocates, thread, stream, slot, bytes
using Row = std::tuple<bool, unsigned, unsigned, unsigned, std::size_t>;

std::vector<Row> rows_of(AllocationLog const& log) {
  std::vector<Row> rows;
  for (auto const& event : log.events) {
    rows.emplace_back(event.allocates, event.thread, event.stream, event.slot, event.bytes);
  }
  return rows;
}

TEST(AllocationLog, ALogAsRmmWritesItIsUnderstood) {
  auto const log = parse(header +
                         "140,10:11:12.000001,allocate,0x7f0000000000,1024,0x0\n"
                         "141,10:11:12.000002,allocate,0x7f0000000400,2048,0x55d0c0ffee\n"
                         "140,10:11:12.000003,allocate failure,(nil),99999999999,0x0\n"
                         "140,10:11:12.000004,free,0x7f0000000400,2048,0x2\n"
                         "141,10:11:12.000005,allocate,0x7f0000000400,16,0\n"
                         "140,10:11:12.000006,free,0x7f0000000000,1024,0x55d0c0ffee\n");
  EXPECT_THAT(rows_of(log), ElementsAre(Row(true, 0, 0, 0, 1024), Row(true, 1, 1, 1, 2048), Row(false, 0, 2, 1, 2048),
                                        Row(true, 1, 0, 1, 16), Row(false, 0, 1, 0, 1024)));
  EXPECT_EQ(log.threads, 2U);
  EXPECT_EQ(log.streams, 2U);
  EXPECT_EQ(log.most_live, 2U);
}

TEST(AllocationLog, ColumnsMayStandInAnyOrderAmongOthers) {
  std::string const rows =
      "Note,Size,Pointer,Stream,Action,Thread\n"
      "first,64,ff,0,allocate,7\n"
      ",0,0xFF,0,free,7\n";
  EXPECT_THAT(rows_of(parse(rows)), ElementsAre(Row(true, 0, 0, 0, 64), Row(false, 0, 0, 0, 64)));
}

TEST(AllocationLog, FieldsMayBeQuoted) {
  std::string const text =
      "\"Thread\",Action,Pointer,Size,Stream,Name\r\n"
      "1,\"allocate\",\"0x10\",5,0,\"one, \"\"two\"\"\nand three\"\r\n"
      "\r\n"
      "1,free,0x10,5,0,\"\"";
  EXPECT_THAT(rows_of(parse(text)), ElementsAre(Row(true, 0, 0, 0, 5), Row(false, 0, 0, 0, 5)));
  EXPECT_THAT(refusal(text + "\n1,free,0x10,5,0,x\n"), StrEq("log.csv: line 6: free of 0x10, which is not live"))
      << "the line break within quotes counts";
}

TEST(AllocationLog, AByteOrderMarkIsNoFault) {
  EXPECT_EQ(parse("\xEF\xBB\xBF" + header + "1,t,allocate,0x1,8,0").events.size(), 1U);
  EXPECT_THAT(parse(header).events, IsEmpty());
}

TEST(AllocationLog, NothingAtTheNullPointerIsNothing) {
  auto const log = parse(header +
                         "1,t,allocate,0x0,0,0\n"
                         "1,t,allocate,(nil),0,0\n"
                         "1,t,free,0,0,0\n"
                         "1,t,allocate,0x8,0,0\n");
  EXPECT_THAT(rows_of(log), ElementsAre(Row(true, 0, 0, 0, 0)));
}

TEST(AllocationLog, EachFaultIsNamedWithItsLine) {
  struct {
    std::string text;
    char const* message;
  } const refused[] = {
      {"", "is empty: an allocation log begins with the names of its columns"},
      {"\n\r\n\n", "is empty: an allocation log begins with the names of its columns"},
      {"1,t,allocate,0x1,8,0\n", "line 1: no column Thread"},
      {"\n\nThread,Action,Pointer,Size\n", "line 3: no column Stream"},
      {"Thread,Time,Action,Pointer,size,Stream\n", "line 1: no column Size"},
      {"Thread,Action,Pointer,Size,Stream,Action\n", "line 1: two columns Action"},
      {header + "1,t,allocate,0x1,8\n", "line 2: 5 fields instead of 6"},
      {header + "1,t,allocate,0x1,8,0,more\n", "line 2: 7 fields instead of 6"},
      {header + "\n1,t,allocate,0x1", "line 3: 4 fields instead of 6"},
      {header + "1,t,\"allocate,0x1,8,0\n1,t,free,0x1,8,0\n", "line 2: a quote does not end"},
      {header + "1,t,\"allocate\"d,0x1,8,0\n", "line 2: text after a closing quote"},
      {header + "1,t,realloc,0x1,8,0\n",
       "line 2: unknown action 'realloc': there are allocate, free and allocate "
       "failure"},
      {header + "1,t,Allocate,0x1,8,0\n",
       "line 2: unknown action 'Allocate': there are allocate, free and allocate "
       "failure"},
      {header + "1,t,,0x1,8,0\n", "line 2: unknown action '': there are allocate, free and allocate failure"},
      {header + "one,t,allocate,0x1,8,0\n", "line 2: Thread 'one' is not a whole number"},
      {header + "-1,t,allocate,0x1,8,0\n", "line 2: Thread '-1' is not a whole number"},
      {header + "1,t,allocate,pointer,8,0\n", "line 2: Pointer 'pointer' is not a hexadecimal number"},
      {header + "1,t,allocate,0x,8,0\n", "line 2: Pointer '0x' is not a hexadecimal number"},
      {header + "1,t,allocate,,8,0\n", "line 2: Pointer '' is not a hexadecimal number"},
      {header + "1,t,allocate,0x1ffffffffffffffff,8,0\n", "line 2: Pointer '0x1ffffffffffffffff' does not fit 64 bits"},
      {header + "1,t,allocate,0x1,-8,0\n", "line 2: Size '-8' is not a whole number"},
      {header + "1,t,allocate,0x1,8.5,0\n", "line 2: Size '8.5' is not a whole number"},
      {header + "1,t,allocate,0x1,0x8,0\n", "line 2: Size '0x8' is not a whole number"},
      {header + "1,t,allocate,0x1, 8,0\n", "line 2: Size ' 8' is not a whole number"},
      {header + "1,t,allocate,0x1,18446744073709551616,0\n",
       "line 2: Size '18446744073709551616' does not fit 64 bits"},
      {header + "1,t,allocate,0x1,9223372036854775808,0\n", "line 2: Size 9223372036854775808 is not below 8 EiB"},
      {header + "1,t,allocate failure,0x0,99999999999999999999,0\n",
       "line 2: Size '99999999999999999999' does not fit 64 bits"},
      {header + "1,t,allocate,0x1,9223372036854775807,0\n1,t,allocate,0x2,1,0\n", "line 3: 8 EiB or more are live"},
      {header + "1,t,allocate,0x1,8,default\n", "line 2: Stream 'default' is not a whole number"},
      {header + "1,t,allocate,0x0,8,0\n", "line 2: 8 bytes at the null pointer"},
      {header + "1,t,free,(nil),8,0\n", "line 2: 8 bytes at the null pointer"},
      {header + "1,t,free,0xAB,8,0\n", "line 2: free of 0xab, which is not live"},
      {header + "1,t,allocate,0x1,8,0\n1,t,free,0x1,8,0\n1,t,free,0x1,8,0\n", "line 4: free of 0x1, which is not live"},
      {header + "1,t,allocate,0x1,8,0\n\n2,t,allocate,1,8,0\n",
       "line 4: allocation at 0x1, which is live since line 2"},
      {header + "1,t,allocate,0x1,8,0\n1,t,free,0x1,9,0\n", "line 3: free of 9 bytes at 0x1, which has 8 since line 2"},
      {header + std::string("1,t,\0llocate,0x1,8,0\n", 21),
       "line 2: unknown action '?llocate': there are allocate, free and allocate failure"},
      {header + "1,t,\xe9,0x1,8,0\n", "line 2: unknown action '?': there are allocate, free and allocate failure"},
      {header + "1,t," + std::string(1'000, 'x') + ",0x1,8,0\n",
       "line 2: unknown action 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…': there are allocate, free and allocate "
       "failure"},
  };
  for (auto const& [text, message] : refused) {
    EXPECT_THAT(refusal(text), StrEq(std::string("log.csv: ") + message)) << text;
  }
}

TEST(AllocationLog, AFileThatCannotBeReadIsNamed) {
  auto const folder = std::filesystem::temp_directory_path();
  auto const refusal_of = [](std::filesystem::path const& path) {
    try {
      static_cast<void>(read_allocation_log(path));
    } catch (IoError const& error) {
      EXPECT_EQ(error.path, path.string());
      return error.code;
    }
    return 0;
  };
  EXPECT_EQ(refusal_of(folder / "there is no such allocation log"), ENOENT);
  EXPECT_EQ(refusal_of(folder), EISDIR);
  EXPECT_EQ(refusal_of("/dev/zero"), ESPIPE);
}

/// Logs damaged at random: what is accepted must make sense event by event, and nothing may do worse than throw.
class AllocationLogFuzz : public ::testing::TestWithParam<unsigned> {};

std::string random_log(std::mt19937& random) {
  auto text = header;
  std::vector<std::pair<unsigned, unsigned>> live;
  for (int i = 0; i < 12; ++i) {
    auto const front = std::to_string(1 + random() % 3) + ",00:00:00.000001,";
    if (live.empty() || random() % 3 != 0) {
      live.emplace_back(0x1000 + 16 * i, random() % 5'000);
      text += front + "allocate,0x" + std::to_string(live.back().first) + ',' + std::to_string(live.back().second);
    } else {
      auto const at = live.begin() + static_cast<std::ptrdiff_t>(random() % live.size());
      text += front + "free,0x" + std::to_string(at->first) + ',' + std::to_string(at->second);
      live.erase(at);
    }
    text += ',' + std::to_string(random() % 3) + (random() % 4 == 0 ? "\r\n" : "\n");
  }
  return text;
}

void damage(std::string& text, std::mt19937& random) {
  auto const at = random() % text.size();
  switch (random() % 5) {
    case 0:
      text[at] = static_cast<char>(random());
      break;
    case 1:
      text.erase(at, 1 + random() % 4);
      break;
    case 2:
      text.insert(at, 1, "\"\",,\r\n\0x0-9fF "[random() % 14]);
      break;
    case 3:
      text[at] = text[random() % text.size()];
      break;
    default:
      text.insert(at, text.substr(random() % text.size(), random() % 40));
  }
}

TEST_P(AllocationLogFuzz, DamagedLogsAreRefusedOrMakeSense) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::mt19937 random{GetParam()};
  int understood = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto text = random_log(random);
    for (auto damages = random() % 4; damages > 0; --damages) damage(text, random);
    try {
      auto const log = parse(text);
      std::vector<std::size_t> live(log.most_live, 0);
      std::vector<bool> taken(log.most_live, false);
      for (auto const& event : log.events) {
        ASSERT_LT(event.thread, log.threads) << text;
        ASSERT_LE(event.stream, log.streams) << text;
        ASSERT_LT(event.slot, log.most_live) << text;
        ASSERT_NE(taken[event.slot], event.allocates) << text;
        ASSERT_TRUE(event.allocates || live[event.slot] == event.bytes) << text;
        taken[event.slot] = event.allocates;
        live[event.slot] = event.bytes;
      }
      ++understood;
    } catch (IoError const& error) {
      std::string const message = error.what();
      ASSERT_TRUE(message.starts_with("log.csv: line ") || message.starts_with("log.csv: is empty")) << message;
      ASSERT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
  EXPECT_GT(understood, 1'000);
}

INSTANTIATE_TEST_SUITE_P(Seeds, AllocationLogFuzz, ::testing::Values(1U, 2U, 2026U));

}  // namespace
}  // namespace unimem
