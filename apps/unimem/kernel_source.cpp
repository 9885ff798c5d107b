#include "kernel_source.hpp"

#include <unimem/core/error.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace unimem::cli {
namespace {

constexpr std::size_t most_bytes = std::size_t{16} << 20;

class Descriptor {
 public:
  explicit Descriptor(std::filesystem::path const& path) : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (number_ < 0) throw IoError(path.native(), errno, "cannot open the kernel source");
  }
  Descriptor(Descriptor const&) = delete;
  Descriptor& operator=(Descriptor const&) = delete;
  ~Descriptor() { ::close(number_); }

  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_;
};

}  // namespace

std::string read_kernel_source(std::filesystem::path const& path) {
  Descriptor const file{path};
  std::string text;
  std::array<char, std::size_t{64} * 1024> piece{};
  while (true) {
    auto const count = ::read(file.number(), piece.data(), piece.size());
    if (count == 0) break;
    if (count < 0) {
      if (errno == EINTR) continue;
      throw IoError(path.native(), errno, "cannot read the kernel source");
    }
    text.append(piece.data(), static_cast<std::size_t>(count));
    if (text.size() > most_bytes) throw IoError(path.native(), 0, "is larger than the 16 MiB a kernel source may have");
  }
  if (text.empty()) throw IoError(path.native(), 0, "is empty: there is no kernel in it");
  if (text.find('\0') != std::string::npos)
    throw IoError(path.native(), 0, "holds a null byte: it is no kernel source");
  return text;
}

}  // namespace unimem::cli
