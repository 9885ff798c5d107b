#include "core/disk_cache.hpp"

#include <unimem/core/environment.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view unfinished_ending = ".unfinished";

/// FNV-1a. It names files and notices damage; that two keys never meet is seen to by comparing them.
std::uint64_t hash_of(std::string_view bytes, std::uint64_t hash = 0xcbf29ce484222325U) {
  for (auto const byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  return hash;
}

std::string numbers_of(std::string_view key, std::string_view value) {
  return fmt::format("{} {} {:016x}\n", key.size(), value.size(), hash_of(value, hash_of(key)));
}

/// An entry is its heading, the sizes and the checksum as one line of text, the key, and the value. Another key's entry
/// is not damaged: two keys may have one hash.
std::optional<std::string> value_in(std::string_view file, std::string_view heading, std::string_view key,
                                    bool& damaged) {
  damaged = true;
  if (!file.starts_with(heading)) return std::nullopt;
  file.remove_prefix(heading.size());
  auto const line = file.substr(0, file.find('\n') + 1);
  file.remove_prefix(line.size());
  std::size_t key_size = 0;
  auto const read = std::from_chars(line.data(), line.data() + line.size(), key_size);
  if (read.ec != std::errc{} || key_size > file.size()) return std::nullopt;
  auto const value = file.substr(key_size);
  if (line != numbers_of(file.substr(0, key_size), value)) return std::nullopt;
  damaged = false;
  if (file.substr(0, key_size) != key) return std::nullopt;
  return std::string(value);
}

struct Entry {
  fs::path path;
  std::uintmax_t bytes = 0;
  fs::file_time_type used;
};

/// The entries of a directory, and on the way what a process that died left half written.
std::vector<Entry> entries_in(fs::path const& directory, std::string_view ending) {
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

fs::path user_cache_directory(std::string_view leaf) {
  if (auto const chosen = environment("UNIMEM_CACHE_DIR")) return fs::path{*chosen} / leaf;
  if (auto const caches = environment("XDG_CACHE_HOME")) return fs::path{*caches} / "unimem" / leaf;
  if (auto const home = environment("HOME")) return fs::path{*home} / ".cache" / "unimem" / leaf;
  return {};
}

DiskCache::DiskCache(fs::path directory, std::string_view kind, std::uintmax_t limit)
    : directory_(std::move(directory)),
      heading_(fmt::format("unimem {} 1\n", kind)),
      ending_(fmt::format(".{}", kind)),
      limit_(limit) {}

fs::path DiskCache::file_of(std::string_view key) const {
  return directory_ / fmt::format("{:016x}{}", hash_of(key), ending_);
}

std::optional<std::string> DiskCache::find(std::string_view key, bool* damaged) const noexcept try {
  if (damaged != nullptr) *damaged = false;
  if (directory_.empty()) return std::nullopt;
  auto const path = file_of(key);
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string const file{std::istreambuf_iterator<char>(in), {}};
  bool unusable = false;
  auto value = value_in(file, heading_, key, unusable);
  if (damaged != nullptr) *damaged = unusable;
  std::error_code ignored;
  if (value) fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  return value;
} catch (...) {
  return std::nullopt;
}

std::error_code DiskCache::keep(std::string_view key, std::string_view value) const noexcept try {
  if (directory_.empty() || value.size() > limit_) return {};
  std::error_code problem, ignored;
  fs::create_directories(directory_, problem);
  if (problem) return problem;
  static std::atomic<unsigned> count = 0;  // threads of one process must not meet in one file either
  auto const path = file_of(key);
  auto unfinished = path;
  unfinished += fmt::format(".{}.{}{}", getpid(), ++count, unfinished_ending);
  errno = 0;
  std::ofstream out(unfinished, std::ios::binary);
  out << heading_ << numbers_of(key, value) << key << value;
  out.close();
  if (!out) {
    problem = {errno != 0 ? errno : EIO, std::generic_category()};
    fs::remove(unfinished, ignored);
    return problem;
  }
  fs::rename(unfinished, path, problem);
  if (problem) fs::remove(unfinished, ignored);
  make_room();
  return problem;
} catch (...) {
  return std::make_error_code(std::errc::not_enough_memory);
}

void DiskCache::make_room() const {
  auto entries = entries_in(directory_, ending_);
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

}  // namespace unimem::detail
