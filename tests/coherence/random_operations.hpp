#pragma once

#include "coherence/shadow_model.hpp"

#include <cstddef>
#include <optional>
#include <random>
#include <vector>

namespace unimem::testing {

/// An endless run of random operations on shadow models: every few hundred operations a new buffer, of another size,
/// with other devices and other costs. Some operations fail after others have been started, on other bytes and on the
/// same, and while storage comes and goes.
class RandomOperations {
 public:
  explicit RandomOperations(unsigned seed) : random_(seed) {}

  /// Does one more. Throws what the model throws.
  void step();

  /// What happened so far.
  [[nodiscard]] ShadowModel::Tally tally() const;

 private:
  void begin_buffer();
  void fail_latest();
  void work();
  void edit_and_look();
  void keep_or_forget(ByteRange range, std::optional<ShadowModel::Started> started);

  [[nodiscard]] std::size_t below(std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_);
  }
  [[nodiscard]] bool chance(std::size_t one_in) { return below(one_in) == 0; }
  [[nodiscard]] Place any_place() { return static_cast<Place>(below(model_->place_count())); }
  [[nodiscard]] ByteRange any_range();

  std::mt19937 random_;
  std::optional<ShadowModel> model_;
  std::size_t steps_left_ = 0;
  std::vector<ShadowModel::Started> started_;  ///< will fail, the latest first
  ShadowModel::Tally finished_;                ///< what happened to earlier buffers
};

}  // namespace unimem::testing
