#include "buffer/host_writes.hpp"
#include "buffer/replica.hpp"
#include "buffer/stale_views.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

/// Closes what is stale between operations. Everything else is for the one it stands before.
class GuardedHost final : public HostWrites {
 public:
  GuardedHost(std::unique_ptr<HostWrites> inner, std::shared_ptr<StaleViews> views,
              std::shared_ptr<Replica> const& host, std::size_t bytes)
      : inner_(std::move(inner)), views_(std::move(views)), host_(host), bytes_(bytes) {
    views_->attach(host->host_address(), bytes);
  }
  GuardedHost(GuardedHost const&) = delete;
  GuardedHost& operator=(GuardedHost const&) = delete;
  ~GuardedHost() override { views_->detach(host_->host_address()); }

  std::optional<HostWriteConflict> collect(Coherence const& coherence, Record const& record, bool wait) override {
    views_->open();
    return inner_->collect(coherence, record, wait);
  }

  void remember(Coherence const& coherence) override {
    inner_->remember(coherence);
    if (!coherence.has_data() || !host_->work().arrived({})) return;  // or unknown code works there
    ByteRanges stale{{0, bytes_}};
    for (Place place = host_place; place < coherence.place_count(); ++place) {
      if (coherence.shares_storage(place, host_place)) stale.remove(coherence.valid(place));
    }
    stale.remove(coherence.lost());
    for (auto const range : expected_) stale.remove(range);
    views_->close(stale, host_->work().unfinished());
  }

  void expect(ByteRange range) override {
    expected_.push_back(range);
    inner_->expect(range);
  }
  void not_expected(ByteRange range) override {
    auto const found = std::ranges::find(expected_, range);
    if (found != expected_.end()) expected_.erase(found);
    inner_->not_expected(range);
  }

  void reserve(std::size_t writes) override { inner_->reserve(writes); }
  void expect_device(ByteRange range, Event end) override { inner_->expect_device(range, end); }
  void expect_copy(ByteRange range, Event end) override { inner_->expect_copy(range, end); }
  void wrote(ByteRange range) override { inner_->wrote(range); }
  void overrule(ByteRange range) override { inner_->overrule(range); }
  void declared(ByteRange range) override { inner_->declared(range); }
  std::uint64_t take_unmarked() noexcept override { return inner_->take_unmarked(); }

 private:
  std::unique_ptr<HostWrites> inner_;
  std::shared_ptr<StaleViews> views_;
  std::shared_ptr<Replica> host_;
  std::size_t bytes_;
  std::vector<ByteRange> expected_;  ///< mapped to be written: these writes are expected
};

}  // namespace

std::unique_ptr<HostWrites> guard_host(std::unique_ptr<HostWrites> inner, std::shared_ptr<StaleViews> views,
                                       std::shared_ptr<Replica> const& host, std::size_t bytes) {
  return std::make_unique<GuardedHost>(std::move(inner), std::move(views), host, bytes);
}

}  // namespace unimem::detail
