#include "fuzz/target.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

// Every target over its corpus, and over what is near to it: cut off anywhere, and with any one byte another.

namespace unimem::fuzz {
namespace {

class Corpus : public ::testing::TestWithParam<Target> {
 protected:
  /// Whether it was accepted. Fails the test where the answer is wrong.
  bool run(std::string const& input, std::string const& from) {
    ++ran_;
    try {
      bool const accepted = GetParam().check(input);
      accepted_ += accepted ? 1U : 0U;
      return accepted;
    } catch (std::exception const& error) {
      ADD_FAILURE() << from << ": " << error.what() << "\ninput: " << ::testing::PrintToString(input);
      return false;
    }
  }

  std::size_t ran_ = 0, accepted_ = 0;
};

TEST_P(Corpus, IsAnsweredRightWholeCutOffAndDamaged) {
  auto const folder = std::filesystem::path(UNIMEM_FUZZ_CORPUS) / GetParam().name;
  std::vector<std::filesystem::path> files;
  for (auto const& file : std::filesystem::directory_iterator(folder)) files.push_back(file.path());
  std::ranges::sort(files);
  ASSERT_GE(files.size(), 6U) << folder;
  std::size_t whole = 0;
  for (auto const& path : files) {
    std::ifstream file(path, std::ios::binary);
    std::string const input(std::istreambuf_iterator<char>(file), {});
    auto const name = path.filename().string();
    bool const accepted = run(input, name);
    // Its name says what becomes of it.
    EXPECT_EQ(accepted, !name.starts_with("refused")) << name;
    whole += accepted ? 1U : 0U;
    for (std::size_t cut = 0; cut < input.size() && cut < 1024; ++cut) run(input.substr(0, cut), name + ", cut off");
    for (std::size_t at = 0; at < input.size() && at < 1024; ++at) {
      for (char const other : {'\0', ' ', '9', static_cast<char>(input[at] ^ 1), static_cast<char>(input[at] ^ 0x80)}) {
        auto damaged = input;
        damaged[at] = other;
        run(damaged, name + ", damaged");
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(whole, 0U) << "nothing that is accepted";
  EXPECT_LT(accepted_, ran_) << "nothing that is refused";
  RecordProperty("inputs", std::to_string(ran_));
}

INSTANTIATE_TEST_SUITE_P(Targets, Corpus, ::testing::ValuesIn(targets),
                         [](auto const& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace unimem::fuzz
