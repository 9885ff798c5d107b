#include "core/system_page.hpp"
#include "device/host_memory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace unimem::detail {
namespace {

constexpr std::size_t large_page = std::size_t{64} << 10;

std::uintptr_t number(void const* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

/// Whether anything is mapped at an address.
bool is_mapped(std::uintptr_t address) {
  std::ifstream maps{"/proc/self/maps"};
  for (std::string line; std::getline(maps, line);) {
    std::istringstream text{line};
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    text >> std::hex >> begin >> dash >> end;
    if (begin <= address && address < end) return true;
  }
  return false;
}

TEST(LargePages, AreWhatThisProgramIsTold) {
  ASSERT_EQ(system_page_bytes(), large_page);
}

TEST(LargePages, MemoryOfItsOwnIsWholePages) {
  auto* const memory = take_host_memory(1, true);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(number(memory) % large_page, 0U);
  EXPECT_TRUE(leave_out_of_dumps(memory, 1));
  give_back_host_memory(memory, 1, true);
  EXPECT_FALSE(is_mapped(number(memory)));
}

TEST(LargePages, NothingIsLeftOfAddressesThatWereCutOut) {
  for (auto const bytes : {std::size_t{1}, large_page - 1, large_page + 4096, 5 * large_page}) {
    for (auto const skew : {std::size_t{0}, large_page}) {
      auto* const base = map_addresses(bytes, huge_page_bytes, skew, PROT_READ | PROT_WRITE);
      ASSERT_NE(base, nullptr);
      EXPECT_EQ(number(base) % huge_page_bytes, skew);
      std::memset(base, 1, bytes);
      munmap(base, bytes);
      EXPECT_FALSE(is_mapped(number(base)));
      EXPECT_FALSE(is_mapped(number(base) + bytes - 1));
    }
  }
}

TEST(LargePages, OnlyWholePagesAreGivenBack) {
  auto* const base = map_addresses(4 * large_page, large_page, 0, PROT_READ | PROT_WRITE);
  ASSERT_NE(base, nullptr);
  std::memset(base, 7, 4 * large_page);
  give_back_pages(base + 4096, 3 * large_page);
  EXPECT_EQ(base[large_page - 1], std::byte{7});
  EXPECT_EQ(base[large_page], std::byte{0});
  EXPECT_EQ(base[3 * large_page - 1], std::byte{0});
  EXPECT_EQ(base[3 * large_page], std::byte{7});
  munmap(base, 4 * large_page);
}

}  // namespace
}  // namespace unimem::detail
