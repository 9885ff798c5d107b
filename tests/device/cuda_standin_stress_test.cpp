#include "device/cuda_standin_fixture.hpp"

#include <map>
#include <random>
#include <thread>

// Many threads and streams at once on the stand-in driver: a well-behaved program meets no fault and no violation, and
// every byte is where it was put.

namespace unimem::standin {
namespace {

using Bytes = std::vector<unsigned char>;

/// One thread's share: blocks of memory with what they are to hold, and the stream that used each last.
class Program {
 public:
  Program(Context context, unsigned seed) : random_(seed), context_(context) {
    cu.cuCtxPushCurrent(context_);
    for (auto& stream : streams_) EXPECT_EQ(cu.cuStreamCreate(&stream, stream_non_blocking), Result::success);
    for (auto& event : events_) EXPECT_EQ(cu.cuEventCreate(&event, event_disable_timing), Result::success);
    void* pinned = nullptr;
    EXPECT_EQ(cu.cuMemHostAlloc(&pinned, pinned_bytes, host_alloc_portable), Result::success);
    pinned_ = static_cast<unsigned char*>(pinned);
  }
  Program(Program const&) = delete;
  Program& operator=(Program const&) = delete;

  ~Program() {
    while (!blocks_.empty()) free(blocks_.begin());
    for (auto const stream : streams_) EXPECT_EQ(cu.cuStreamSynchronize(stream), Result::success);
    for (auto const stream : streams_) EXPECT_EQ(cu.cuStreamDestroy(stream), Result::success);
    for (auto const event : events_) EXPECT_EQ(cu.cuEventDestroy(event), Result::success);
    EXPECT_EQ(cu.cuMemFreeHost(pinned_), Result::success);
    cu.cuCtxPopCurrent(nullptr);
  }

  void step() {
    auto const dice = below(10);
    if (blocks_.size() < 3 || (dice == 0 && blocks_.size() < 12)) return allocate();
    auto const block = std::next(blocks_.begin(), static_cast<std::ptrdiff_t>(below(blocks_.size())));
    if (dice == 1) return free(block);
    if (dice <= 3) return fill(block->second);
    if (dice <= 5) return upload(block->second);
    if (dice <= 7) return copy(block->second);
    if (dice == 8) return check(block->second);
    check_pinned(block->second);
  }

 private:
  struct Block {
    DevicePointer at = 0;
    Bytes expected;
    std::size_t stream = 0;
    bool in_stream_order = false;
  };
  using Blocks = std::map<DevicePointer, Block>;

  static void ok(Result result) { EXPECT_EQ(result, Result::success); }

  std::size_t below(std::size_t bound) { return std::uniform_int_distribution<std::size_t>{0, bound - 1}(random_); }

  /// The stream of the next use of the block, behind its last one.
  Stream turn_to(Block& block) {
    auto const next = below(streams_.size());
    if (next != block.stream) {
      ok(cu.cuEventRecord(events_[block.stream], streams_[block.stream]));
      ok(cu.cuStreamWaitEvent(streams_[next], events_[block.stream], 0));
      block.stream = next;
    }
    return streams_[next];
  }

  void allocate() {
    Block block;
    block.expected.assign(1 + below(20'000), 0xCD);
    block.stream = below(streams_.size());
    block.in_stream_order = below(2) == 0;
    auto const bytes = block.expected.size();
    ok(block.in_stream_order ? cu.cuMemAllocAsync(&block.at, bytes, streams_[block.stream])
                             : cu.cuMemAlloc(&block.at, bytes));
    blocks_.emplace(block.at, std::move(block));
  }

  void free(Blocks::iterator block) {
    auto const stream = turn_to(block->second);
    if (block->second.in_stream_order) {
      ok(cu.cuMemFreeAsync(block->first, stream));
    } else {
      ok(cu.cuStreamSynchronize(stream));
      ok(cu.cuMemFree(block->first));
    }
    blocks_.erase(block);
  }

  void fill(Block& block) {
    auto const from = below(block.expected.size());
    auto const value = static_cast<unsigned char>(below(256));
    ok(cu.cuMemsetD8Async(block.at + from, value, block.expected.size() - from, turn_to(block)));
    std::fill(block.expected.begin() + static_cast<std::ptrdiff_t>(from), block.expected.end(), value);
  }

  void upload(Block& block) {
    for (auto& byte : block.expected) byte = static_cast<unsigned char>(random_());
    auto source = block.expected;
    ok(cu.cuMemcpyHtoDAsync(block.at, source.data(), source.size(), turn_to(block)));
    std::ranges::fill(source, static_cast<unsigned char>(0));  // it has been read
  }

  void copy(Block& to) {
    auto& from = std::next(blocks_.begin(), static_cast<std::ptrdiff_t>(below(blocks_.size())))->second;
    if (from.at == to.at) return;
    auto const bytes = std::min(from.expected.size(), to.expected.size());
    auto const stream = turn_to(to);
    if (from.stream != to.stream) {
      ok(cu.cuEventRecord(events_[from.stream], streams_[from.stream]));
      ok(cu.cuStreamWaitEvent(stream, events_[from.stream], 0));
    }
    ok(cu.cuMemcpyDtoDAsync(to.at, from.at, bytes, stream));
    from.stream = to.stream;  // what is done to the source next comes after this
    std::copy_n(from.expected.begin(), bytes, to.expected.begin());
  }

  void check(Block& block) {
    Bytes found(block.expected.size());
    ok(cu.cuMemcpyDtoHAsync(found.data(), block.at, found.size(), turn_to(block)));
    EXPECT_EQ(found, block.expected);
  }

  void check_pinned(Block& block) {
    auto const stream = turn_to(block);
    auto const& done = events_[block.stream];
    ok(cu.cuMemcpyDtoHAsync(pinned_, block.at, block.expected.size(), stream));
    ok(cu.cuEventRecord(done, stream));
    auto query = Result::not_ready;
    while ((query = cu.cuEventQuery(done)) == Result::not_ready) std::this_thread::yield();
    ok(query);
    EXPECT_EQ(Bytes(pinned_, pinned_ + block.expected.size()), block.expected);
  }

  static constexpr std::size_t pinned_bytes = 20'000;
  std::mt19937 random_;
  Context context_;
  Driver const& cu = standin();
  Blocks blocks_;
  std::array<Stream, 3> streams_{};
  std::array<Event, 3> events_{};
  unsigned char* pinned_ = nullptr;
};

TEST_F(CudaStandIn, ServesManyThreadsAndStreamsAtOnce) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      Program program{contexts[thread % 2], seed + thread};
      for (int step = 0; step < 400 && !HasFailure(); ++step) program.step();
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace unimem::standin
