#include "device/cuda/kernel_cache.hpp"

#include <unimem/core/environment.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

namespace unimem::detail::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view heading = "unimem compiled kernel 1\n";
constexpr std::string_view ending = ".kernel", unfinished_ending = ".unfinished";

/// FNV-1a. It names files and notices damage; that two keys never meet is seen to by comparing them.
std::uint64_t hash_of(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (auto const byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  return hash;
}

std::string numbers_of(std::string_view key, std::string_view value) {
  return fmt::format("{} {} {:016x}\n", key.size(), value.size(), hash_of(value));
}

/// An entry is its heading, the sizes and the checksum as one line of text, the key, and the value.
std::optional<std::string> value_in(std::string_view file, std::string_view key) {
  if (!file.starts_with(heading)) return std::nullopt;
  file.remove_prefix(heading.size());
  auto const line = file.substr(0, file.find('\n') + 1);
  file.remove_prefix(line.size());
  if (!file.starts_with(key)) return std::nullopt;
  file.remove_prefix(key.size());
  if (line != numbers_of(key, file)) return std::nullopt;
  return std::string(file);
}

struct Entry {
  fs::path path;
  std::uintmax_t bytes = 0;
  fs::file_time_type used;
};

/// The entries of a directory, and on the way what a process that died left half written.
std::vector<Entry> entries_in(fs::path const& directory) {
  std::vector<Entry> result;
  auto const now = fs::file_time_type::clock::now();
  std::error_code ignored;
  for (fs::directory_iterator at(directory, ignored), end; at != end; at.increment(ignored)) {
    std::error_code gone;  // another process may take what this one looks at
    Entry entry{at->path(), at->file_size(gone), {}};
    if (!gone) entry.used = at->last_write_time(gone);
    if (gone) continue;
    if (entry.path.extension() == ending) {
      result.push_back(std::move(entry));
    } else if (entry.path.extension() == unfinished_ending && now - entry.used > std::chrono::hours{1}) {
      fs::remove(entry.path, gone);
    }
  }
  return result;
}

}  // namespace

KernelCache::KernelCache(fs::path directory, std::uintmax_t limit) : directory_(std::move(directory)), limit_(limit) {}

KernelCache KernelCache::of_user() {
  constexpr auto leaf = "cuda";
  if (auto const chosen = environment("UNIMEM_CACHE_DIR")) return KernelCache{fs::path{*chosen} / leaf};
  if (auto const caches = environment("XDG_CACHE_HOME")) return KernelCache{fs::path{*caches} / "unimem" / leaf};
  if (auto const home = environment("HOME")) return KernelCache{fs::path{*home} / ".cache" / "unimem" / leaf};
  return {};
}

fs::path KernelCache::file_of(std::string_view key) const {
  return directory_ / fmt::format("{:016x}{}", hash_of(key), ending);
}

std::optional<std::string> KernelCache::find(std::string_view key) const noexcept try {
  if (directory_.empty()) return std::nullopt;
  auto const path = file_of(key);
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string const file{std::istreambuf_iterator<char>(in), {}};
  auto value = value_in(file, key);
  std::error_code ignored;
  if (value) fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  return value;
} catch (...) {
  return std::nullopt;
}

void KernelCache::keep(std::string_view key, std::string_view value) const noexcept try {
  if (directory_.empty() || value.size() > limit_) return;
  std::error_code problem;
  fs::create_directories(directory_, problem);
  static std::atomic<unsigned> count = 0;  // threads of one process must not meet in one file either
  auto const path = file_of(key);
  auto unfinished = path;
  unfinished += fmt::format(".{}.{}{}", getpid(), ++count, unfinished_ending);
  std::ofstream out(unfinished, std::ios::binary);
  out << heading << numbers_of(key, value) << key << value;
  out.close();
  if (!out) {
    fs::remove(unfinished, problem);
    return;
  }
  fs::rename(unfinished, path, problem);
  if (problem) fs::remove(unfinished, problem);
  make_room();
} catch (...) {
  return;
}

void KernelCache::make_room() const {
  auto entries = entries_in(directory_);
  std::uintmax_t held = 0;
  for (auto const& entry : entries) held += entry.bytes;
  if (held <= limit_) return;
  std::ranges::sort(entries, {}, &Entry::used);
  for (auto const& entry : entries) {
    if (held <= limit_) return;
    std::error_code ignored;
    fs::remove(entry.path, ignored);
    held -= entry.bytes;
  }
}

}  // namespace unimem::detail::cuda
