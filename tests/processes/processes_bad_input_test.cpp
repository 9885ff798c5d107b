#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/sanitizers.hpp"
#include "core/unique_fd.hpp"
#include "process/peers.hpp"
#include "process/segment.hpp"
#include "process/shared_ranges.hpp"
#include "processes/peer_process.hpp"
#include "share/shared_description.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// What other processes hand over, and what is asked for, that is not what it should be.

namespace unimem::testing {
namespace {

using detail::Peers;
using detail::Segment;
using detail::SharedDescription;
using detail::SharedRanges;
using detail::UniqueFd;
using Byte = std::uint8_t;
using Bytes = std::vector<Byte>;

class ForgedBuffers : public BufferTest {
 protected:
  static constexpr std::size_t size = 4096;

  ForgedBuffers() {
    auto options = on_sim();
    options.shared = true;
    buffer.emplace(size, std::move(options));
    buffer->fill(3);
    id = shared.publish(*buffer, {.cross_process = true});
  }
  ~ForgedBuffers() override {
    for (auto const key : forged_) Peers::of_this_process().withdraw(key);
  }

  /// What the buffer is handed to others as.
  [[nodiscard]] Peers::Parcel parcel() const { return Peers::fetch({id.registry, id.number}).value(); }
  [[nodiscard]] SharedDescription description() const { return SharedDescription::decode(parcel().bytes, "itself"); }

  /// Another id by which this is to be had.
  BufferId forge(std::vector<UniqueFd> descriptors, std::string bytes) {
    BufferId const made{id.registry ^ 0x55U, ++last_};
    Peers::of_this_process().offer({made.registry, made.number}, std::move(descriptors), std::move(bytes));
    forged_.push_back({made.registry, made.number});
    return made;
  }
  BufferId forge(SharedDescription const& described) { return forge(parcel().descriptors, described.encode()); }

  /// The code of the IoError that opening it throws.
  int code_of(BufferId forged) {
    try {
      static_cast<void>(elsewhere.open<Byte>(forged));
    } catch (IoError const& error) {
      return error.code;
    }
    return 0;
  }
  void expect_refused(BufferId forged, int code) {
    EXPECT_EQ(code_of(forged), code);
    EXPECT_EQ(holders(), 1U) << "and whoever refuses it is no holder of it";
  }
  [[nodiscard]] std::size_t holders() const {
    auto with = parcel();
    auto const memory = Segment::adopt(std::move(with.descriptors[1]), SharedRanges::bytes(), "itself");
    return SharedRanges::attach({memory.data(), memory.size()}, size, "itself").participants().size();
  }

  static UniqueFd memory_of(std::size_t bytes, int seals) {
    UniqueFd made{::memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    EXPECT_EQ(::ftruncate(made.get(), static_cast<::off_t>(bytes)), 0);
    if (seals != 0) {
      EXPECT_EQ(::fcntl(made.get(), F_ADD_SEALS, seals), 0);
    }
    return made;
  }
  static constexpr int sealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  /// The book with other bytes from `at` on.
  UniqueFd changed_book(std::size_t at, std::uint64_t value) {
    auto made = memory_of(SharedRanges::bytes(), sealed);
    auto book = parcel();
    Bytes bytes(SharedRanges::bytes());
    EXPECT_EQ(::pread(book.descriptors[1].get(), bytes.data(), bytes.size(), 0), static_cast<::ssize_t>(bytes.size()));
    std::memcpy(bytes.data() + at, &value, sizeof value);
    EXPECT_EQ(::pwrite(made.get(), bytes.data(), bytes.size(), 0), static_cast<::ssize_t>(bytes.size()));
    return made;
  }
  static std::vector<UniqueFd> both(UniqueFd one, UniqueFd other) {
    std::vector<UniqueFd> made;
    made.push_back(std::move(one));
    made.push_back(std::move(other));
    return made;
  }

  BufferRegistry shared, elsewhere;
  std::optional<UnifiedBuffer<Byte>> buffer;
  BufferId id;

 private:
  std::uint64_t last_ = 0;
  std::vector<Peers::Key> forged_;
};

TEST_F(ForgedBuffers, AreOpenedWhereNothingIsWrong) {
  auto const again = elsewhere.open<Byte>(forge(description()));
  EXPECT_EQ(again.to_vector(), Bytes(size, 3));
}

TEST_F(ForgedBuffers, RefuseOtherDescriptors) {
  auto const bytes = parcel().bytes;
  expect_refused(forge({}, bytes), EPROTO);
  auto one = parcel().descriptors;
  one.pop_back();
  expect_refused(forge(std::move(one), bytes), EPROTO);
  auto three = parcel().descriptors;
  three.push_back(memory_of(1, 0));
  expect_refused(forge(std::move(three), bytes), EPROTO);
  auto swapped = parcel().descriptors;
  std::swap(swapped[0], swapped[1]);
  EXPECT_NE(code_of(forge(std::move(swapped), bytes)), 0);
  for (auto const of : {size - 1, size + 1, size * 1000}) {
    auto other = parcel().descriptors;
    other[0] = memory_of(of, sealed);
    EXPECT_NE(code_of(forge(std::move(other), bytes)), 0) << of;
  }
  for (auto const seals : {0, F_SEAL_GROW, F_SEAL_SHRINK}) {
    auto other = parcel().descriptors;
    other[0] = memory_of(size, seals);
    EXPECT_NE(code_of(forge(std::move(other), bytes)), 0) << seals;
  }
  auto file = parcel().descriptors;
  file[0] = UniqueFd{::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)};
  EXPECT_NE(code_of(forge(std::move(file), bytes)), 0);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  EXPECT_NE(code_of(forge(both(UniqueFd{ends[0]}, UniqueFd{ends[1]}), bytes)), 0);
  EXPECT_EQ(holders(), 1U);
}

TEST_F(ForgedBuffers, RefuseOtherBooks) {
  auto const bytes = parcel().bytes;
  auto const with = [&](UniqueFd book) {
    auto all = parcel().descriptors;
    all[1] = std::move(book);
    return forge(std::move(all), bytes);
  };
  expect_refused(with(memory_of(SharedRanges::bytes(), sealed)), EBADMSG);
  EXPECT_NE(code_of(with(memory_of(SharedRanges::bytes() - 1, sealed))), 0);
  EXPECT_NE(code_of(with(memory_of(SharedRanges::bytes(), 0))), 0);
  expect_refused(with(changed_book(0, 1)), EBADMSG);     // what it begins with
  expect_refused(with(changed_book(8, 1000)), EBADMSG);  // its layout
  expect_refused(with(changed_book(16, size + 1)), EBADMSG);
  EXPECT_EQ(elsewhere.open<Byte>(with(changed_book(16, size))).size(), size);
}

TEST_F(ForgedBuffers, RefuseDescriptionsThatDoNotAddUp) {
  auto const refused = [&](std::function<void(SharedDescription&)> const& change, int code) {
    auto described = description();
    change(described);
    expect_refused(forge(described), code);
  };
  refused([](auto& told) { told.bytes += 1; }, EPROTO);
  refused([](auto& told) { told.element_bytes = 0; }, EPROTO);
  refused([](auto& told) { told.shape = {size, 2}; }, EPROTO);
  refused([](auto& told) { told.shape = {std::size_t{1} << 63U, 2}; }, EPROTO);
  refused([](auto& told) { told.shape = {}; }, EPROTO);
  refused([](auto& told) { told.tag = static_cast<ElementTag>(200); }, EPROTO);
  auto larger = description();
  larger.shape = {std::size_t{1} << 40U};
  larger.bytes = std::size_t{1} << 40U;
  EXPECT_NE(code_of(forge(larger)), 0) << "nor is so much mapped";
  auto floats = description();
  floats.element_name = "float";
  floats.element_bytes = 4;
  floats.shape = {size / 4};
  EXPECT_THROW(static_cast<void>(elsewhere.open<Byte>(forge(floats))), InvalidArgument);
  auto deep = description();
  deep.shape.assign(300, 1);
  deep.shape.front() = size;
  EXPECT_EQ(elsewhere.open<Byte>(forge(deep)).size(), size);
}

TEST_F(ForgedBuffers, RefuseOtherVersions) {
  auto bytes = parcel().bytes;
  constexpr std::string_view key = "version";
  auto const at = bytes.find(key);
  ASSERT_NE(at, std::string::npos);
  bytes[at + key.size()] = 2;
  expect_refused(forge(parcel().descriptors, bytes), EPROTO);
  for (auto const* const text : {"", "no description", "\xff", "\xa0", "\x9f\x9f\x9f", "\xbf"}) {
    expect_refused(forge(parcel().descriptors, text), EPROTO);
  }
}

TEST_F(ForgedBuffers, RefuseOrOpenWhatChanceMakesOfADescription) {
  constexpr unsigned seed = 2026;
  std::mt19937 random(seed);
  auto const whole = parcel().bytes;
  for (std::size_t end = 0; end < whole.size(); ++end) {
    EXPECT_THROW(static_cast<void>(SharedDescription::decode(whole.substr(0, end), "itself")), IoError);
  }
  for (int i = 0; i < 300; ++i) {
    auto bytes = whole;
    for (auto changes = 1 + random() % 3; changes != 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    }
    try {
      static_cast<void>(elsewhere.open<Byte>(forge(parcel().descriptors, bytes)));
    } catch (Error const&) {  // NOLINT(bugprone-empty-catch): a typed one is what there is to be
    }
  }
  EXPECT_EQ(holders(), 1U);
}

TEST_F(ForgedBuffers, RefuseNamesThatGoOverNoSocket) {
  std::string const name(40'000, 'n');
  EXPECT_THROW(static_cast<void>(shared.publish(*buffer, {.name = name, .cross_process = true})), InvalidArgument);
  UnifiedBuffer<Byte> named(size, on_sim(name));
  named.fill(1);
  auto const* const address = named.host().data();
  EXPECT_THROW(static_cast<void>(shared.publish(named, {.cross_process = true})), InvalidArgument);
  EXPECT_EQ(named.host().data(), address) << "nothing was moved";
  EXPECT_EQ(shared.size(), 1U);
  std::string const odd("a\0\xff\n b", 6);
  auto const published = shared.publish(*buffer, {.name = odd, .cross_process = true});
  PeerProcess peer;
  EXPECT_EQ(peer.ask("open " + to_string(published)), "ok 4096");
}

TEST_F(ForgedBuffers, OpenWhatIsEmpty) {
  UnifiedBuffer<Byte> nothing(0, on_sim());
  auto const published = shared.publish(nothing, {.cross_process = true});
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(published)), "ok 0");
  EXPECT_EQ(peer.ask("read 0 0"), "ok");
  EXPECT_EQ(peer.ask("put 0 0 1"), "ok");
  EXPECT_EQ(peer.ask("put_on sim 0 0 1"), "ok");
  EXPECT_EQ(peer.ask("see_on cpu 0 0"), "ok");
  EXPECT_TRUE(nothing.to_vector().empty());
  EXPECT_EQ(peer.ask("close"), "ok");
}

TEST_F(ForgedBuffers, OpenInThisProcessByAnotherRegistry) {
  auto again = elsewhere.open<Byte>(id);
  again.slice(5, 5).fill(8);
  EXPECT_EQ(buffer->slice(4, 3).to_vector(), (Bytes{3, 8, 8}));
  buffer->slice(0, 5).fill(9);
  EXPECT_EQ(again.slice(4, 2).to_vector(), (Bytes{9, 8}));
  auto const mapped = buffer->slice(100, 10).map(MapMode::read_write);
  EXPECT_EQ(again.slice(0, 1).to_vector(), Bytes{9}) << "beside it";
}

TEST_F(ForgedBuffers, AreOneBufferHoweverManyThreadsOpenThem) {
  PeerProcess peer;
  auto const published = peer.ask("publish 300 1");
  ASSERT_TRUE(published.starts_with("ok ")) << published;
  BufferId theirs;
  auto const text = published.substr(3);
  theirs.registry = std::stoull(text.substr(0, text.find('-')), nullptr, 16);
  theirs.number = std::stoull(text.substr(text.find('-') + 1));
  constexpr std::size_t threads = 8;
  for (int round = 0; round < 10; ++round) {
    std::array<std::optional<UnifiedBuffer<Byte>>, threads> opened;
    std::atomic<bool> go{false};
    {
      std::vector<std::jthread> all;
      for (auto& one : opened) {
        all.emplace_back([&] {
          while (!go) std::this_thread::yield();
          one = elsewhere.open<Byte>(theirs);
        });
      }
      go = true;
    }
    auto const* const address = std::as_const(*opened[0]).host_view().data();
    for (auto const& one : opened) {
      EXPECT_EQ(std::as_const(*one).host_view().data(), address);
      EXPECT_EQ(one->to_vector()[299], static_cast<Byte>(300));
    }
    auto with = Peers::fetch({theirs.registry, theirs.number}).value();
    auto const memory = Segment::adopt(std::move(with.descriptors[1]), SharedRanges::bytes(), "theirs");
    EXPECT_EQ(SharedRanges::attach({memory.data(), memory.size()}, 300, "theirs").participants().size(), 2U);
  }
}

TEST_F(ForgedBuffers, OpenByEitherIdOfTwo) {
  auto const other = shared.publish(*buffer, {.cross_process = true});
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  ASSERT_EQ(peer.ask("@1 open " + to_string(other)), "ok 4096");
  EXPECT_EQ(peer.ask("write 10 2 4"), "ok");
  EXPECT_EQ(peer.ask("@1 read 9 4"), "ok 03040403");
  EXPECT_EQ(peer.ask("@1 write_on_device 10 1 5"), "ok");
  EXPECT_EQ(peer.ask("read_on_device 9 4"), "ok 03050403");
  EXPECT_EQ(peer.ask("copy 0 9 2 1 20 2"), "ok");
  EXPECT_EQ(buffer->slice(20, 2).to_vector(), (Bytes{3, 5}));
}

TEST_F(ForgedBuffers, StayWithWhoHasThemWhenTheyAreReleased) {
  PeerProcess peer, later;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  shared.release(id);
  EXPECT_EQ(peer.ask("write 0 1 7"), "ok");
  EXPECT_EQ(buffer->slice(0, 1).to_vector(), Bytes{7});
  EXPECT_EQ(later.ask("open " + to_string(id)), "ok 4096") << "from the one that has it";
  buffer.reset();
  EXPECT_EQ(later.ask("read 0 1"), "ok 07");
}

TEST_F(ForgedBuffers, RefuseOneHolderTooMany) {
  auto with = parcel();
  auto const memory = Segment::adopt(std::move(with.descriptors[1]), SharedRanges::bytes(), "itself");
  auto book = SharedRanges::attach({memory.data(), memory.size()}, size, "itself");
  std::vector<SharedRanges::Holder> all;
  while (auto const one = book.join(SharedRanges::this_process())) all.push_back(*one);
  EXPECT_EQ(all.size(), SharedRanges::most_holders - 1);
  PeerProcess peer;
  auto const refused = peer.ask("open " + to_string(id));
  EXPECT_TRUE(refused.starts_with("error UnsupportedOperation")) << refused;
  EXPECT_NE(refused.find("1024"), std::string::npos) << refused;
  book.leave(all.back());
  EXPECT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
}

TEST_F(ForgedBuffers, FindRoomThatDeadHoldersLeave) {
  auto with = parcel();
  auto const memory = Segment::adopt(std::move(with.descriptors[1]), SharedRanges::bytes(), "itself");
  auto book = SharedRanges::attach({memory.data(), memory.size()}, size, "itself");
  while (book.join({0x7fff'fff0U, 1})) continue;
  PeerProcess peer;
  EXPECT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
}

TEST_F(ForgedBuffers, AreLeftByWhoClosesThem) {
  PeerProcess peer;
  for (int i = 0; i < 1'100; ++i) {
    ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096") << i;
    ASSERT_EQ(peer.ask("close"), "ok");
  }
  EXPECT_EQ(holders(), 1U);
}

std::size_t open_descriptors() {
  auto const all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Soon: the thread that answers other processes has connections for a while.
bool open_descriptors_come_to(std::size_t count) {
  auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (open_descriptors() != count && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return open_descriptors() == count;
}

TEST_F(ForgedBuffers, RefuseForWantOfDescriptors) {
  if (detail::is_sanitized) GTEST_SKIP() << "UndefinedBehaviorSanitizer looks at objects by way of descriptors";
  ::rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  PeerProcess peer;
  auto const published = peer.ask("publish 300 1").substr(3);
  BufferId const theirs{std::stoull(published.substr(0, published.find('-')), nullptr, 16),
                        std::stoull(published.substr(published.find('-') + 1))};
  auto few = before;
  few.rlim_cur = 256;
  // The thread that answers others has come, with what it listens on.
  UnifiedBuffer<Byte> first(size, on_sim());
  shared.release(shared.publish(first, {.cross_process = true}));
  static_cast<void>(elsewhere.open<Byte>(theirs));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto const open_before = open_descriptors();
  std::size_t refused = 0;
  for (std::size_t left = 0; left < 16; ++left) {
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    std::vector<UniqueFd> all;
    for (int number = 0; (number = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) all.emplace_back(number);
    ASSERT_EQ(errno, EMFILE);
    ASSERT_GT(all.size(), left);
    all.erase(all.end() - static_cast<std::ptrdiff_t>(left), all.end());
    bool opened = false, is_published = false;
    try {
      static_cast<void>(elsewhere.open<Byte>(theirs));
      opened = true;
    } catch (IoError const& error) {
      // This process is asked, too, and cannot answer itself.
      EXPECT_TRUE(error.code == EMFILE || error.code == ETIMEDOUT) << error.what();
    }
    try {
      UnifiedBuffer<Byte> another(size, on_sim());
      another.fill(1);
      shared.release(shared.publish(another, {.cross_process = true}));
      is_published = true;
    } catch (IoError const& error) {
      EXPECT_EQ(error.code, EMFILE) << error.what();
    } catch (OutOfMemory const&) {  // NOLINT(bugprone-empty-catch)
    }
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    refused += !opened || !is_published ? 1U : 0U;
    all.clear();
    EXPECT_TRUE(open_descriptors_come_to(open_before))
        << left << " of " << open_descriptors() << ", not " << open_before;
  }
  EXPECT_GT(refused, 0U);
  EXPECT_EQ(elsewhere.open<Byte>(theirs).to_vector()[1], 2);
}

}  // namespace
}  // namespace unimem::testing
