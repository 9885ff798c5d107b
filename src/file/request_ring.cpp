#include "file/request_ring.hpp"

#ifdef UNIMEM_URING

#include "core/fork.hpp"

#include <liburing.h>

#include <array>
#include <cerrno>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#endif

namespace unimem::detail {

#ifndef UNIMEM_URING

bool read_by_ring(int, BlockReads&) {
  return false;
}

#else

namespace {

/// A ring, and the requests that are in it.
class Ring {
 public:
  /// None where the kernel gives none.
  static std::unique_ptr<Ring> make() {
    std::unique_ptr<Ring> made{new Ring};
    if (::io_uring_queue_init(BlockReads::depth, &made->ring_, 0) != 0) return nullptr;
    made->open_ = true;
    return made;
  }
  Ring(Ring const&) = delete;
  Ring& operator=(Ring const&) = delete;
  ~Ring() {
    if (open_) ::io_uring_queue_exit(&ring_);
  }

  /// Returns whether it can be used for more.
  [[nodiscard]] bool read(int descriptor, BlockReads& reads) noexcept {
    descriptor_ = descriptor;
    std::size_t under_way = 0;
    for (auto& lane : lanes_) {
      if (!reads.next(lane.block)) break;
      prepare(lane);
      ++under_way;
    }
    unsigned given = 0;  // of which the kernel has been told
    unsigned told = static_cast<unsigned>(under_way);
    unsigned refusals = 0;
    bool works = true;
    while (under_way != 0) {
      if (works) {
        auto const submitted = ::io_uring_submit_and_wait(&ring_, reads.has_news() ? 0 : 1);
        if (submitted >= 0) {
          given += static_cast<unsigned>(submitted);
          refusals = 0;
        } else if (!passes(submitted) || ++refusals == most_refusals) {
          // Those that it has are waited for: they write to memory of the caller's.
          reads.fail({-submitted, 0, 0});
          under_way -= told - given;
          works = false;
        }
      }
      reads.pass_on();
      ::io_uring_cqe* done = nullptr;
      bool any = false;
      while (under_way != 0 && ::io_uring_peek_cqe(&ring_, &done) == 0) {
        any = true;
        auto& lane = *static_cast<Lane*>(::io_uring_cqe_get_data(done));
        auto const result = static_cast<long>(done->res);
        ::io_uring_cqe_seen(&ring_, done);
        if ((reads.take(lane.block, result) || reads.next(lane.block)) && works) {
          prepare(lane);
          ++told;
        } else {
          --under_way;
        }
      }
      if (!any && (!works || refusals != 0)) std::this_thread::yield();
    }
    reads.pass_on();
    return works;
  }

 private:
  struct Lane {
    BlockReads::Block block;
    ::iovec rest{};
  };
  static constexpr unsigned most_refusals = 10'000;

  Ring() = default;

  /// Whether the next attempt may fare better.
  static bool passes(int code) noexcept { return code == -EINTR || code == -EAGAIN || code == -EBUSY; }

  void prepare(Lane& lane) noexcept {
    auto const& block = lane.block;
    lane.rest = {block.memory + block.done, block.bytes - block.done};
    auto* const entry = ::io_uring_get_sqe(&ring_);  // there is one for each lane
    ::io_uring_prep_readv(entry, descriptor_, &lane.rest, 1, block.offset + block.done);
    ::io_uring_sqe_set_data(entry, &lane);
  }

  ::io_uring ring_{};
  bool open_ = false;
  int descriptor_ = -1;
  std::array<Lane, BlockReads::depth> lanes_;
};

/// Those that no read is using.
class Rings {
 public:
  static Rings& of_this_process() {
    static constinit PerProcess<Rings> instance;
    return instance.get();
  }
  std::unique_ptr<Ring> take() {
    {
      std::scoped_lock const lock(mutex_);
      if (!free_.empty()) {
        auto ring = std::move(free_.back());
        free_.pop_back();
        return ring;
      }
    }
    return Ring::make();
  }
  void give(std::unique_ptr<Ring> ring) {
    std::scoped_lock const lock(mutex_);
    if (free_.size() < most) free_.push_back(std::move(ring));
  }

 private:
  static constexpr std::size_t most = 4;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Ring>> free_;
};

}  // namespace

bool read_by_ring(int descriptor, BlockReads& reads) {
  auto& rings = Rings::of_this_process();
  auto ring = rings.take();
  if (!ring) return false;
  if (ring->read(descriptor, reads)) rings.give(std::move(ring));
  return true;
}

#endif

}  // namespace unimem::detail
