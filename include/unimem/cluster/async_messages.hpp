#pragma once

#include <unimem/cluster/matched_message.hpp>
#include <unimem/cluster/message_memory.hpp>
#include <unimem/cluster/peers.hpp>
#include <unimem/cluster/progress.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace unimem::mpi {

namespace detail {

/// Where a message's memory is: on a device that has the bytes and whose addresses MPI takes, else on the host.
inline Device& place_of(Window const& window) {
  auto* const reached = find(window).reached;
  return reached != nullptr ? *reached : host_device();
}

/// A message as work on an operand: what must have ended before MPI may have its memory, and that memory.
class PendingOperand : public PendingMessage {
 public:
  PendingOperand(Window const& window, Channel channel)
      : PendingMessage(channel), window_(window), queue_(place_of(window)) {}
  [[nodiscard]] bool has_memory() const noexcept final { return has_memory_; }
  [[nodiscard]] Queue& queue() const noexcept { return *queue_; }
  void is_ready_after(std::span<const Event> needs, Event order, void* address) {
    needs_.assign(needs.begin(), needs.end());
    order_ = order;
    address_ = address;
  }

 protected:
  /// Whether MPI may have the memory. Throws what has failed of the work that it needs.
  [[nodiscard]] bool is_ready() const {
    if (!order_.ready()) return false;
    for (auto const need : needs_) {
      if (!need.ready()) return false;
      if (auto const failure = need.error()) std::rethrow_exception(failure);
    }
    return true;
  }
  [[nodiscard]] Window const& window() const noexcept { return window_; }
  /// From now on MPI has it.
  [[nodiscard]] void* hand_over() noexcept {
    has_memory_ = true;
    return address_;
  }

 private:
  Window const window_;
  WaitingQueues::Taken const queue_;
  std::vector<Event> needs_;
  Event order_;
  void* address_ = nullptr;
  bool has_memory_ = false;
};

class PendingSend final : public PendingOperand {
 public:
  using PendingOperand::PendingOperand;
  [[nodiscard]] bool try_begin() override {
    if (!is_ready()) return false;
    Counted const what(window().count(), window().elements);
    auto const& to = channel();
    check(MPI_Isend(hand_over(), what.count(), what.type(), to.peer, to.tag, to.comm, &request_), "MPI_Isend");
    return true;
  }
  [[nodiscard]] bool try_end() override {
    int is_done = 0;
    check(MPI_Test(&request_, &is_done, MPI_STATUS_IGNORE), "MPI_Test");
    return is_done != 0;
  }

 private:
  MPI_Request request_ = MPI_REQUEST_NULL;
};

class PendingReceive final : public PendingOperand {
 public:
  using PendingOperand::PendingOperand;
  /// Found, and kept from all other receives; its memory may have to be waited for.
  [[nodiscard]] bool try_begin() override {
    auto const& from = channel();
    MPI_Message found = MPI_MESSAGE_NULL;
    MPI_Status status;
    int is_there = 0;
    check(MPI_Improbe(from.peer, from.tag, from.comm, &is_there, &found, &status), "MPI_Improbe");
    if (is_there == 0) return false;
    message_.emplace(found, status, from.comm);
    if (!message_->is_from_no_rank()) message_->check_fits(window());
    return true;
  }
  [[nodiscard]] bool try_end() override {
    if (!has_memory()) {
      if (!is_ready()) return false;
      message_->begin(hand_over(), window());
    }
    return message_->test();
  }

 private:
  std::optional<MatchedMessage> message_;
};

/// Begins a message on `channel` as work that reads or writes what `window` is of, on the message's device.
template <class Message>
Event begin(KernelOperand const& x, Window const& window, Channel const& channel) {
  if (channel.peer == MPI_PROC_NULL) return {};
  auto const message = std::make_shared<Message>(window, channel);
  auto& queue = message->queue();
  bool const on_host = &queue.device() == &host_device();
  auto const work = [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
    auto const& where = memory.front();
    auto* const address = where.empty() ? nullptr : queue.device().address(where);
    // What a driver's queue waits for is in it only once something is submitted behind that.
    message->is_ready_after(needs, on_host ? queue.record() : queue.mark(), address);
    Progress::instance().add(message);
    return message->event();
  };
  auto operand = x.operand;
  operand.intent = channel.direction == Channel::Direction::send ? Intent::read : Intent::write;
  auto const event = use_on_device(queue, {&operand, 1}, work);
  Progress::instance().advance();
  return event;
}

}  // namespace detail

/// Sends as `send` does, behind the caller's back:
///
///     auto const sent = mpi::isend(read(x), 1, tag, comm);
///
/// It is work like a launch: it waits for work that writes those bytes, and what writes them afterwards waits for it;
/// its failure is the event's. What a device has is sent from there where MPI takes its addresses, else comes to the
/// host's memory first, and goes as one message.
/// A thread of this process carries it on. Messages to one rank by one tag, blocking ones among them, go in the order
/// in which they were begun, also where an earlier one still waits for its bytes. `comm` must stay until the end.
///
/// Throws as `send` does before it begins, and UnsupportedOperation unless MPI was given MPI_THREAD_MULTIPLE. While it
/// is under way errors on `comm` come back to the program as codes (see `ErrorsReturned`).
inline Event isend(KernelOperand const& x, int to, int tag, MPI_Comm comm = MPI_COMM_WORLD) {
  detail::check_target("mpi::isend", to, tag, comm);
  detail::require_threads("mpi::isend");
  detail::Window const window(x);
  detail::check_sent(window);
  using detail::Channel;
  return detail::begin<detail::PendingSend>(x, window, {Channel::Direction::send, comm, to, tag});
}

/// Receives as `receive` does, behind the caller's back. It is work like a launch that writes:
/// launches and host accesses of these bytes wait for it. Messages are found in the order in which the receives that
/// they fit were begun, though a message may be found before the memory is free for it.
///
/// A message of another size is a SizeMismatch of the event: it is dropped, and the buffer holds what it held. As after
/// any failed work, the next access to these bytes raises it once more.
inline Event ireceive(KernelOperand const& y, int from, int tag, MPI_Comm comm = MPI_COMM_WORLD) {
  detail::check_source("mpi::ireceive", from, tag, comm);
  detail::require_threads("mpi::ireceive");
  detail::Window const window(y);
  detail::check_received(window);
  using detail::Channel;
  return detail::begin<detail::PendingReceive>(y, window, {Channel::Direction::receive, comm, from, tag});
}

}  // namespace unimem::mpi
