#include "file/digest.hpp"

#include <unimem/core/error.hpp>

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace unimem {

std::string_view to_string(Checksum checksum) noexcept {
  return checksum == Checksum::xxh3 ? "xxh3" : "crc32c";
}

Checksum parse_checksum(std::string_view name) {
  for (auto const checksum : {Checksum::xxh3, Checksum::crc32c}) {
    if (name == to_string(checksum)) return checksum;
  }
  throw InvalidArgument("checksum", std::string(name), "xxh3 or crc32c");
}

}  // namespace unimem

namespace unimem::detail {

class Digest::Algorithm {
 public:
  Algorithm() = default;
  Algorithm(Algorithm const&) = delete;
  Algorithm& operator=(Algorithm const&) = delete;
  virtual ~Algorithm() = default;
  virtual void add(std::span<const std::byte> bytes) = 0;
  virtual std::uint64_t take() = 0;
};

struct Digest::Xxh3 final : Digest::Algorithm {
  Xxh3() noexcept { XXH3_64bits_reset(&state); }
  void add(std::span<const std::byte> bytes) override {
    if (!bytes.empty()) XXH3_64bits_update(&state, bytes.data(), bytes.size());
  }
  std::uint64_t take() override {
    auto const digest = XXH3_64bits_digest(&state);
    XXH3_64bits_reset(&state);
    return digest;
  }

  XXH3_state_t state{};
};

namespace {

// As <isa-l/crc.h> declares it. Opened when it is first wanted: programs that check nothing load nothing.
using Crc32Iscsi = unsigned int (*)(unsigned char*, int, unsigned int);

Crc32Iscsi crc32_iscsi() {
  static Crc32Iscsi const function = []() -> Crc32Iscsi {
    auto* const library = ::dlopen("libisal.so.2", RTLD_NOW | RTLD_LOCAL);  // for good
    return library == nullptr ? nullptr : reinterpret_cast<Crc32Iscsi>(::dlsym(library, "crc32_iscsi"));
  }();
  if (function == nullptr) {
    throw UnsupportedOperation("crc32c", "this system", "it has no libisal.so.2 (Debian: apt install libisal2)");
  }
  return function;
}

}  // namespace

struct Digest::Crc32c final : Digest::Algorithm {
  void add(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      auto const now = std::min<std::size_t>(bytes.size(), std::size_t{INT_MAX} / 2);
      // It reads them, and was declared before `const` was thought of.
      auto* const begin = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
      state = function(begin, static_cast<int>(now), state);
      bytes = bytes.subspan(now);
    }
  }
  std::uint64_t take() override { return ~std::exchange(state, ~0U) & 0xFFFFFFFFU; }

  Crc32Iscsi function = crc32_iscsi();
  unsigned state = ~0U;
};

Digest::Digest(Checksum algorithm) {
  if (algorithm == Checksum::xxh3) {
    algorithm_ = std::make_unique<Xxh3>();
  } else {
    algorithm_ = std::make_unique<Crc32c>();
  }
}
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;
Digest::~Digest() = default;

void Digest::add(std::span<const std::byte> bytes) {
  algorithm_->add(bytes);
}

std::uint64_t Digest::take() {
  return algorithm_->take();
}

std::uint64_t digest_of(Checksum algorithm, std::span<const std::byte> bytes) {
  Digest digest(algorithm);
  digest.add(bytes);
  return digest.take();
}

std::string digest_text(Checksum algorithm, std::uint64_t digest) {
  return algorithm == Checksum::xxh3 ? fmt::format("{:016x}", digest) : fmt::format("{:08x}", digest);
}

std::optional<std::uint64_t> parse_digest(Checksum algorithm, std::string_view text) noexcept {
  if (text.size() != (algorithm == Checksum::xxh3 ? 16U : 8U)) return std::nullopt;
  if (text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  std::uint64_t digest = 0;
  std::from_chars(text.data(), text.data() + text.size(), digest, 16);
  return digest;
}

BlockDigests::BlockDigests(Checksum algorithm, std::uint64_t block_bytes)
    : digest_(algorithm), block_bytes_(block_bytes) {}

void BlockDigests::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    auto const now = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), block_bytes_ - within_));
    digest_.add(bytes.first(now));
    bytes = bytes.subspan(now);
    within_ += now;
    if (within_ == block_bytes_) complete();
  }
}

void BlockDigests::finish() {
  if (within_ != 0) complete();
}

void BlockDigests::complete() {
  digests_.push_back(digest_.take());
  within_ = 0;
}

std::vector<std::uint64_t> BlockDigests::take() {
  return std::exchange(digests_, {});
}

}  // namespace unimem::detail
