#include "stream/output_paths.hpp"

#include <unimem/core/error.hpp>

#include <cerrno>
#include <system_error>

namespace unimem::detail {
namespace {

std::filesystem::path followed(std::filesystem::path const& path) {
  constexpr int most = 40;  // as the system has it
  std::error_code error;
  auto target = path;
  for (int links = 0; std::filesystem::is_symlink(std::filesystem::symlink_status(target, error)); ++links) {
    if (links == most) throw IoError(path.string(), ELOOP, "cannot write");
    auto const next = std::filesystem::read_symlink(target, error);
    if (error) throw IoError(path.string(), error.value(), "cannot follow");
    target = target.parent_path() / next;
  }
  return target;
}

}  // namespace

OutputPaths::OutputPaths(std::filesystem::path const& output) : target_(followed(output)) {}

std::filesystem::path OutputPaths::beside(char const* ending) const {
  auto path = target_;
  return path += ending;
}

bool is_one_file(std::filesystem::path const& a, std::filesystem::path const& b) {
  std::error_code unknown;
  if (std::filesystem::equivalent(a, b, unknown)) return true;
  auto const place = [&](std::filesystem::path const& path) {
    auto const target = followed(path);
    auto const whole = std::filesystem::absolute(target, unknown);  // a name alone, of nothing, would stay as it is
    if (unknown) return target.lexically_normal();
    auto resolved = std::filesystem::weakly_canonical(whole, unknown);
    return unknown ? whole.lexically_normal() : resolved;
  };
  return place(a) == place(b);
}

}  // namespace unimem::detail
