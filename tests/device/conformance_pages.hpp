#pragma once

#include "device/conformance_fixture.hpp"
#include "device/reserved_pages.hpp"

#include <memory>
#include <thread>

namespace unimem {

#define UNIMEM_NEEDS_PAGES() \
  if (device().pages() == nullptr) GTEST_SKIP() << device().id() << " has no page interface"

TEST_P(DeviceConformance, MappedPagesAreReadAndWritten) {
  UNIMEM_NEEDS_PAGES();
  auto& source = *device().pages();
  auto const page = source.page_bytes();
  EXPECT_EQ(page & (page - 1), 0U);
  Reserved range{source, 16 * page};
  range.map(3 * page, source.create_pages(2 * page));
  auto const news = noise(2 * page - 10, 1);
  write(range.memory(3 * page + 5, news.size()), news);
  EXPECT_EQ(read(range.memory(3 * page + 5, news.size())), news);
}

TEST_P(DeviceConformance, ContentsTravelWithPages) {
  UNIMEM_NEEDS_PAGES();
  auto& source = *device().pages();
  auto const page = source.page_bytes();
  for (auto const count : Sizes{1, 3, 40, 100}) {
    if (count * page > std::size_t{96} << 20) break;  // where pages are large it is bytes that take the time
    SCOPED_TRACE(::testing::Message() << count << " pages");
    Reserved first{source, (count + 7) * page}, second{source, (count + 7) * page};
    auto const news = noise(count * page, static_cast<unsigned>(count));
    first.map(2 * page, source.create_pages(count * page));
    write(first.memory(2 * page, count * page), news);
    for (int there_and_back = 0; there_and_back < 3; ++there_and_back) {
      second.map(5 * page, first.unmap(2 * page, count * page));
      ASSERT_EQ(read(second.memory(5 * page, count * page)), news);
      first.map(2 * page, second.unmap(5 * page, count * page));
    }
    EXPECT_EQ(read(first.memory(2 * page, count * page)), news);
  }
}

TEST_P(DeviceConformance, NeighboursMappedApartMoveTogetherAndApart) {
  UNIMEM_NEEDS_PAGES();
  auto& source = *device().pages();
  auto const page = source.page_bytes();
  Reserved first{source, 8 * page}, second{source, 8 * page};
  auto const news = noise(6 * page, 9);
  for (std::size_t i = 0; i < 3; ++i) {
    first.map(2 * i * page, source.create_pages(2 * page));
    write(first.memory(2 * i * page, 2 * page), Bytes(news.begin() + static_cast<std::ptrdiff_t>(2 * i * page),
                                                      news.begin() + static_cast<std::ptrdiff_t>(2 * (i + 1) * page)));
  }
  // The middle four of six, which begin and end within what was mapped at once.
  auto const middle = source.unmap(first.range().part(page, 4 * page));
  second.map(0, middle);
  auto const left = source.unmap(first.range().part(0, page)), right = source.unmap(first.range().part(5 * page, page));
  first.forget();
  second.map(4 * page, right);
  second.map(5 * page, left);
  auto expected = Bytes(news.begin() + static_cast<std::ptrdiff_t>(page), news.end());
  expected.insert(expected.end(), news.begin(), news.begin() + static_cast<std::ptrdiff_t>(page));
  EXPECT_EQ(read(second.memory(0, 6 * page)), expected);
}

TEST_P(DeviceConformance, PagesCountAgainstTheCapacity) {
  UNIMEM_NEEDS_PAGES();
  auto& source = *device().pages();
  auto const page = source.page_bytes();
  auto const total = device().info().total_bytes;
  auto const pages = source.create_pages(4 * page);
  try {
    static_cast<void>(device().allocate(total - 4 * page + 1, Location::device));
    ADD_FAILURE() << "pages were not counted";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.live(), 4 * page);
  }
  {
    Allocated const rest{device(), total - 4 * page};
    EXPECT_THROW(static_cast<void>(source.create_pages(page)), OutOfMemory);
  }
  source.free_pages(pages);
  Allocated const everything{device(), total};
  EXPECT_EQ(everything.memory().bytes, total);
}

TEST_P(DeviceConformance, ReservedAddressesCostNoCapacity) {
  UNIMEM_NEEDS_PAGES();
  auto& source = *device().pages();
  Reserved const range{source, std::size_t{1} << 36};
  Allocated const everything{device(), device().info().total_bytes};
  EXPECT_EQ(everything.memory().bytes, device().info().total_bytes);
}

TEST_P(DeviceConformance, PageMisuseIsRefusedAndChangesNothing) {
  UNIMEM_NEEDS_PAGES();
  auto& source = *device().pages();
  auto const page = source.page_bytes();
  EXPECT_THROW(static_cast<void>(source.reserve(0)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(source.reserve(page + 1)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(source.create_pages(page / 2)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(source.create_pages(0)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(source.reserve(SIZE_MAX & ~(page - 1))), OutOfMemory);

  Reserved range{source, 8 * page};
  auto const news = noise(2 * page, 3);
  range.map(2 * page, source.create_pages(2 * page));
  write(range.memory(2 * page, 2 * page), news);
  auto const spare = source.create_pages(2 * page);
  auto const part = [&](std::size_t from, std::size_t count) { return range.range().part(from * page, count * page); };
  EXPECT_THROW(source.map(part(1, 2), spare), InvalidArgument) << "half of it is mapped already";
  EXPECT_THROW(source.map(part(4, 1), spare), InvalidArgument) << "the sizes differ";
  EXPECT_THROW(source.map(part(7, 2), spare), InvalidArgument) << "beyond the reservation";
  EXPECT_THROW(source.map({range.range().base + 5 * page + 1, 2 * page}, spare), InvalidArgument)
      << "not a page's begin";
  EXPECT_THROW(source.map(part(5, 2), Pages{spare.handle + page, 2 * page}), InvalidArgument) << "no such pages";
  EXPECT_THROW(static_cast<void>(source.unmap(part(1, 2))), InvalidArgument) << "half of it is not mapped";
  EXPECT_THROW(static_cast<void>(source.unmap(part(5, 1))), InvalidArgument) << "nothing is mapped";
  EXPECT_THROW(static_cast<void>(source.unmap(AddressRange{range.range().base + 2 * page, page + 3})), InvalidArgument);

  range.map(5 * page, spare);
  EXPECT_THROW(source.map(part(0, 2), spare), InvalidArgument) << "mapped already, elsewhere";
  EXPECT_EQ(read(range.memory(2 * page, 2 * page)), news);
}

TEST_P(DeviceConformance, ThreadsMovePagesOfOneSource) {
  UNIMEM_NEEDS_PAGES();
  auto& source = *device().pages();
  auto const page = source.page_bytes();
  constexpr std::size_t threads = 4, rounds = 60;
  std::array<std::size_t, threads> wrong{};
  std::vector<std::thread> crowd;
  for (std::size_t t = 0; t < threads; ++t) {
    crowd.emplace_back([&, t] {
      Reserved first{source, 4 * page}, second{source, 4 * page};
      auto const news = noise(2 * page, static_cast<unsigned>(t));
      first.map(0, source.create_pages(2 * page));
      write(first.memory(0, 2 * page), news);
      for (std::size_t round = 0; round < rounds; ++round) {
        second.map(page, first.unmap(0, 2 * page));
        first.map(0, second.unmap(page, 2 * page));
        // Others map memory all the time: none of it may land where pages have just left.
        std::unique_ptr<std::byte[]> const other{new std::byte[std::size_t{200'000}]};
        other[100'000] = std::byte{1};
      }
      wrong[t] = read(first.memory(0, 2 * page)) != news;
    });
  }
  for (auto& thread : crowd) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0U));
}

}  // namespace unimem
