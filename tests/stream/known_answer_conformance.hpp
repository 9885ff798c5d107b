#pragma once

#include "kernel/known_answer.hpp"
#include "stream/stream_conformance.hpp"

#include <atomic>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace unimem {

/// What is promised of the library's own kernels on devices whose drivers compile them: each is tried before it is
/// used, once for each driver and version, and none that fails is used.
class KnownAnswerConformance : public ::testing::TestWithParam<StreamCase> {
 protected:
  /// Every kernel of the library, as a stream would start it.
  [[nodiscard]] std::vector<std::unique_ptr<detail::ChunkRun>> every_kernel() const {
    std::vector<std::unique_ptr<detail::ChunkRun>> all;
    all.push_back(histogram().work()->start(device, ElementType::u8, false));
    for (auto const element : all_element_types) {
      if (!device.info().doubles) break;
      all.push_back(statistics(element).work()->start(device, element, false));
      for (bool const keep_input : {false, true}) {
        all.push_back(affine(element, 2, 1).work()->start(device, element, keep_input));
      }
    }
    return all;
  }

  /// Doubles 300 bytes; its source form is wrong for one of them. `calls` counts how often it is run.
  [[nodiscard]] static detail::KnownAnswer planted(bool wrong, std::shared_ptr<std::atomic<int>> calls = {}) {
    std::string source = R"(
UNIMEM_KERNEL doubling(UNIMEM_CONST_BUFFER(unimem_u8, in), UNIMEM_BUFFER(unimem_u8, out)) {
  const unimem_u64 i = UNIMEM_ITEM_X;
  UNIMEM_DATA(unimem_u8, out)[i] = UNIMEM_DATA(const unimem_u8, in)[i] * 2;
}
)";
    if (wrong) source.replace(source.find("* 2"), 3, "* 2 + (i == 297)");
    auto const kernel = Kernel("doubling")
                            .source(std::move(source))
                            .host([](WorkItem i, std::span<const std::uint8_t> in, std::span<std::uint8_t> out) {
                              out[i.x] = static_cast<std::uint8_t>(in[i.x] * 2);
                            });
    return {kernel, {{300, 600, [calls = std::move(calls)] {
                        if (calls) ++*calls;
                        using Known = detail::KnownArgument;
                        std::vector<std::uint8_t> const in(300, 7);
                        return std::vector{Known::memory(Known::Role::input, std::span{in}),
                                           Known::output<std::uint8_t>(300)};
                      }}}};
  }

  void check(detail::KnownAnswers& answers, detail::KnownAnswer const& answer) {
    answers.check(answer, device, manager, location);
  }

  [[nodiscard]] std::filesystem::path only_entry() const {
    std::vector<std::filesystem::path> found;
    for (auto const& entry : std::filesystem::directory_iterator(folder / "answers")) found.push_back(entry.path());
    EXPECT_EQ(found.size(), 1U);
    return found.at(0);
  }

  Device& device = GetParam().device();
  Location location = device.shares_storage_with_host() ? Location::unified : Location::device;
  ScratchFolder folder;
  MemoryManager manager;
};

TEST_P(KnownAnswerConformance, RightAnswersAreKeptForLaterProcesses) {
  detail::KnownAnswers first{folder / "answers"};
  detail::KnownAnswers later{folder / "answers"};
  std::set<std::string> names;
  for (auto const& run : every_kernel()) {
    auto const answer = run->known_answer(std::size_t{1} << 30);
    ASSERT_TRUE(answer);
    names.emplace(answer->kernel.name());
    SCOPED_TRACE(answer->kernel.name());
    std::size_t bytes = 0;
    for (auto const& each : answer->runs) bytes += each.bytes;
    auto const before = device.transfers();
    check(first, *answer);
    auto const tried = device.transfers();
    EXPECT_EQ(tried.host_to_device_bytes - before.host_to_device_bytes, bytes);
    check(first, *answer);
    check(later, *answer);
    EXPECT_EQ(device.transfers(), tried);
  }
  EXPECT_EQ(names.size(), device.info().doubles ? 31U : 1U);
}

TEST_P(KnownAnswerConformance, WrongAnswersNameTheDriver) {
  auto const wrong = planted(true);
  auto const compiler = std::string(wrong.kernel.program(device)->compiler());
  EXPECT_NE(compiler, "");
  detail::KnownAnswers same{folder / "answers"};
  for (int process = 0; process < 2; ++process) {
    detail::KnownAnswers other{folder / "answers"};
    for (auto* const answers : {&same, &other}) {
      try {
        check(*answers, wrong);
        ADD_FAILURE() << "it went through";
      } catch (KernelError const& error) {
        EXPECT_EQ(error.name, "doubling");
        EXPECT_EQ(error.build_log, "");
        for (auto const& named : {std::string(device.id()), device.info().name, device.info().driver, compiler,
                                  std::string("argument 2, 1 of 300 elements are wrong, the first of them, at 297, is "
                                              "15 and not 14")}) {
          EXPECT_THAT(error.reason, ::testing::HasSubstr(named));
        }
        EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("\n")));
      }
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "answers"));
  check(same, planted(false));  // of another source
}

TEST_P(KnownAnswerConformance, AnEntryThatIsDamagedIsNotBelieved) {
  auto const calls = std::make_shared<std::atomic<int>>(0);
  auto const right = planted(false, calls);
  auto const in_a_new_process = [&] {
    detail::KnownAnswers answers{folder / "answers"};
    check(answers, right);
    return calls->load();
  };
  EXPECT_EQ(in_a_new_process(), 1);
  EXPECT_EQ(in_a_new_process(), 1);
  auto const entry = only_entry();
  auto const whole = folder.read("answers/" + entry.filename().string());
  auto other_value = whole;
  other_value.replace(other_value.size() - 6, 5, "wrong");
  for (auto const& damaged : {whole.substr(0, whole.size() - 1), other_value, std::string("right\n"), std::string()}) {
    folder.write("answers/" + entry.filename().string(), damaged);
    auto const before = calls->load();
    EXPECT_EQ(in_a_new_process(), before + 1);
    EXPECT_EQ(in_a_new_process(), before + 1);
    EXPECT_EQ(folder.read("answers/" + entry.filename().string()), whole);
  }
}

TEST_P(KnownAnswerConformance, WithoutACacheEachProcessTriesOnce) {
  auto const calls = std::make_shared<std::atomic<int>>(0);
  auto const right = planted(false, calls);
  folder.write("file", std::string_view("in the way"));
  for (auto const& directory : {std::filesystem::path{}, folder / "file"}) {
    auto const before = calls->load();
    detail::KnownAnswers answers{directory};
    check(answers, right);
    check(answers, right);
    EXPECT_EQ(calls->load(), before + 1);
  }
}

TEST_P(KnownAnswerConformance, ThreadsAtOnceAllGetTheAnswer) {
  for (bool const wrong : {false, true}) {
    auto const answer = planted(wrong);
    detail::KnownAnswers answers{folder / "answers"};
    std::atomic<int> refused{0};
    std::latch all{8};
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&] {
          all.arrive_and_wait();
          try {
            check(answers, answer);
          } catch (KernelError const&) {
            ++refused;
          }
        });
      }
    }
    EXPECT_EQ(refused, wrong ? 8 : 0);
  }
}

TEST_P(KnownAnswerConformance, WithLittleRoomLessIsTried) {
  for (auto const& run : every_kernel()) {
    auto const most = run->known_answer(std::size_t{1} << 30);
    SCOPED_TRACE(most->kernel.name());
    for (std::size_t const room : {1'000'000U, 100'000U, 8'192U}) {
      auto const answer = run->known_answer(room);
      MemoryManager limited;
      limited.set_limit(device, location, room);
      detail::KnownAnswers answers{{}};
      for (auto const& each : answer->runs) EXPECT_LE(each.bytes, room / 2);
      answers.check(*answer, device, limited, location);
      auto const pool = limited.pool(device, location).statistics();
      EXPECT_GT(pool.peak_reserved_bytes, 0U);
      EXPECT_LE(pool.peak_reserved_bytes, room);
    }
  }
}

/// Work with an answer of its own choice, which tells whether it was ever given anything.
class PlantedWork final : public detail::ChunkWork {
 public:
  explicit PlantedWork(detail::KnownAnswer answer) : answer_(std::move(answer)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "planted"; }
  [[nodiscard]] bool maps() const noexcept override { return true; }
  [[nodiscard]] std::unique_ptr<detail::ChunkRun> start(Device& /*device*/, ElementType /*element*/,
                                                        bool /*keep_input*/) const override {
    class Run final : public detail::ChunkRun {
     public:
      explicit Run(detail::KnownAnswer answer) : answer_(std::move(answer)) {}
      [[nodiscard]] std::size_t result_bytes(std::size_t /*bytes*/) const noexcept override { return 0; }
      Event launch(Queue& /*queue*/, UnifiedBuffer<std::byte>& /*chunk*/, UnifiedBuffer<std::byte>& /*results*/,
                   std::size_t /*bytes*/) override {
        throw std::logic_error("it was given a chunk");
      }
      void combine(std::span<const std::byte> /*results*/, std::size_t /*bytes*/) override {}
      [[nodiscard]] std::optional<detail::KnownAnswer> known_answer(std::size_t /*room*/) const override {
        return answer_;
      }
      [[nodiscard]] decltype(StreamResult::result) finish(std::uint64_t elements) const override {
        return MappingResult{elements};
      }

     private:
      detail::KnownAnswer answer_;
    };
    return std::make_unique<Run>(answer_);
  }

 private:
  detail::KnownAnswer answer_;
};

TEST_P(KnownAnswerConformance, AWrongKernelSeesNoData) {
  auto const path = folder.write("input", mixed_bytes(200'000, 4));
  StreamKernel const wrong{std::make_shared<PlantedWork const>(planted(true)), ElementType::u8};
  StreamOptions with;
  with.device = &device;
  with.chunk_bytes = 50'000;
  with.output = folder / "output";
  bool told = false;
  with.progress = [&](std::uint64_t, std::uint64_t) { told = true; };
  for (int time = 0; time < 2; ++time) {
    auto const before = device.transfers();
    EXPECT_THROW(stream_file(path, wrong, with), KernelError);
    EXPECT_EQ(device.transfers().host_to_device_bytes - before.host_to_device_bytes, 600U);
  }
  EXPECT_FALSE(told);
  EXPECT_EQ(folder.names(), (std::set<std::string>{"input"}));
}

TEST_P(KnownAnswerConformance, TrialsLeaveTheManagersStatisticsAlone) {
  auto const path = folder.write("input", mixed_bytes(200'000, 4));
  for (bool const full : {false, true}) {
    MemoryManager given;
    given.set_limit(device, location, 4'096);
    Allocation held;
    if (full) held = given.acquire(device, location, 3'072);
    auto const before = given.pool(device, location).statistics();
    StreamOptions with;
    with.device = &device;
    with.manager = &given;
    with.chunk_bytes = 1'024;
    auto const calls = std::make_shared<std::atomic<int>>(0);
    auto answer = planted(true, calls);
    // As much as is left with nothing held, and more than is left beside what is.
    answer.runs.push_back(answer.runs.front());
    answer.runs.push_back(answer.runs.front());
    StreamKernel const wrong{std::make_shared<PlantedWork const>(answer), ElementType::u8};
    EXPECT_THROW(stream_file(path, wrong, with), KernelError);
    EXPECT_EQ(calls->load(), 1);
    auto const after = given.pool(device, location).statistics();
    EXPECT_EQ(after.total_allocations - before.total_allocations, full ? 2U : 0U);
    EXPECT_LE(after.peak_reserved_bytes, 4'096U);
  }
}

}  // namespace unimem
