#include <unimem/core/name.hpp>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace unimem {
namespace {

struct Stored {
  std::string text;
  std::string_view view;
};

struct Table {
  std::mutex mutex;
  std::unordered_map<std::string_view, std::unique_ptr<Stored>> names;
};

/// Never destroyed: names are read by destructors of static objects.
Table& table() {
  static auto& instance = *new Table;
  return instance;
}

}  // namespace

Name::Name(std::string_view text) {
  if (text.empty()) return;
  auto& [mutex, names] = table();
  std::lock_guard const lock{mutex};
  auto found = names.find(text);
  if (found == names.end()) {
    auto stored = std::make_unique<Stored>();
    stored->text = text;
    stored->view = stored->text;
    auto const key = stored->view;
    found = names.emplace(key, std::move(stored)).first;
  }
  text_ = &found->second->view;
}

}  // namespace unimem
