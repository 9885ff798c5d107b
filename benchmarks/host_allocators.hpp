#pragma once

#include <unimem/device/discovery.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <dlfcn.h>
#include <gnu/libc-version.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory_resource>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

// Allocators of host memory behind one shape that costs none of them anything: `Block take(bytes)`, `give(block,
// bytes)` and `address(block)`. What is loaded is loaded with names of its own (RTLD_LOCAL): it replaces nothing.

namespace unimem::bench {

/// The allocator is not installed here, or does not start; what() says which of them.
class Unavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Unimem {
 public:
  using Block = Allocation;

  [[nodiscard]] Block take(std::size_t bytes) { return pool_.acquire(bytes); }
  static void give(Block& block, std::size_t /*bytes*/) { block.release(); }
  [[nodiscard]] static void* address(Block const& block) { return block.data(); }

  /// Most bytes it ever had from its device at once.
  [[nodiscard]] std::optional<std::size_t> peak_reserved() const { return pool_.statistics().peak_reserved_bytes; }
  [[nodiscard]] static std::string version() { return "this build, statistics on"; }

 private:
  MemoryPool pool_{device("cpu"), Location::host};
};

/// What all but ours have in common: a block is its address.
struct ByAddress {
  using Block = void*;
  [[nodiscard]] static void* address(void* block) { return block; }
  /// Not known: the system tells what the process has.
  [[nodiscard]] static std::optional<std::size_t> peak_reserved() { return std::nullopt; }
};

/// malloc and free of somebody, called through pointers, as functions of a shared library are.
class Functions : public ByAddress {
 public:
  using Malloc = void* (*)(std::size_t);
  using Free = void (*)(void*);
  Functions(Malloc malloc, Free free, std::string version)
      : malloc_(malloc), free_(free), version_(std::move(version)) {}

  [[nodiscard]] void* take(std::size_t bytes) const { return malloc_(bytes); }
  void give(void* block, std::size_t /*bytes*/) const { free_(block); }
  [[nodiscard]] std::string const& version() const { return version_; }

 private:
  Malloc volatile malloc_;  // volatile: a compiler that knows malloc leaves out pairs whose block nobody uses
  Free volatile free_;
  std::string version_;
};

/// A shared library, never closed: threads may still be in it.
class Library {
 public:
  explicit Library(std::string const& name) : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw Unavailable(::dlerror());
  }
  template <class Function>
  [[nodiscard]] Function function(char const* name) const {
    auto* const found = ::dlsym(handle_, name);
    if (found == nullptr) throw Unavailable(::dlerror());
    return reinterpret_cast<Function>(found);
  }

 private:
  void* handle_;
};

[[nodiscard]] inline Functions glibc() {
  return {std::malloc, std::free, std::string("glibc ") + ::gnu_get_libc_version()};
}

[[nodiscard]] inline Functions mimalloc() {
  Library const library("libmimalloc.so.2");
  auto const version = library.function<int (*)()>("mi_version")();
  return {library.function<Functions::Malloc>("mi_malloc"), library.function<Functions::Free>("mi_free"),
          "mimalloc " + std::to_string(version / 100) + '.' + std::to_string(version / 10 % 10) + '.' +
              std::to_string(version % 10)};
}

/// Its thread-local variables want room that a loaded library finds only if the process was started with
/// `glibc.rtld.optional_static_tls`.
[[nodiscard]] inline Functions jemalloc() {
  Library const library("libjemalloc.so.2");
  char const* version = "?";
  std::size_t size = sizeof version;
  library.function<int (*)(char const*, void*, std::size_t*, void*, std::size_t)>("mallctl")("version", &version, &size,
                                                                                             nullptr, 0);
  return {library.function<Functions::Malloc>("malloc"), library.function<Functions::Free>("free"),
          "jemalloc " + std::string(version).substr(0, std::string(version).find('-'))};
}

class SynchronizedPool : public ByAddress {
 public:
  [[nodiscard]] void* take(std::size_t bytes) { return resource_.allocate(bytes); }
  void give(void* block, std::size_t bytes) { resource_.deallocate(block, bytes); }
  [[nodiscard]] static std::string version() { return "std::pmr::synchronized_pool_resource, default options"; }

 private:
  std::pmr::synchronized_pool_resource resource_;
};

/// The pools of oneAPI's Unified Memory Framework 1.x over its provider of the system's memory. Never destroyed.
class Umf : public ByAddress {
 public:
  enum class Kind : std::uint8_t { disjoint, disjoint_all_pooled, scalable };

  Umf(std::string const& file, Kind kind) : library_(file.empty() ? "libumf.so.1" : file) {
    void* parameters = nullptr;
    void* provider = nullptr;
    call("umfOsMemoryProviderParamsCreate", &parameters);
    call("umfMemoryProviderCreate", operations("umfOsMemoryProviderOps"), parameters, &provider);
    void* pool_parameters = nullptr;
    bool const scalable = kind == Kind::scalable;
    call(scalable ? "umfScalablePoolParamsCreate" : "umfDisjointPoolParamsCreate", &pool_parameters);
    if (kind == Kind::disjoint_all_pooled) {
      call("umfDisjointPoolParamsSetMaxPoolableSize", pool_parameters, std::size_t{1} << 30);
      call("umfDisjointPoolParamsSetCapacity", pool_parameters, std::size_t{1} << 20);
    }
    call("umfPoolCreate", operations(scalable ? "umfScalablePoolOps" : "umfDisjointPoolOps"), provider, pool_parameters,
         0U, &pool_);
    malloc_ = library_.function<void* (*)(void*, std::size_t)>("umfPoolMalloc");
    free_ = library_.function<int (*)(void*, void*)>("umfPoolFree");
    version_ = kind == Kind::disjoint   ? "UMF 1.2, disjoint pool, default options"
               : kind == Kind::scalable ? "UMF 1.2, scalable pool over TBB's allocator"
                                        : "UMF 1.2, disjoint pool, everything pooled";
  }

  [[nodiscard]] void* take(std::size_t bytes) { return malloc_(pool_, bytes); }
  void give(void* block, std::size_t /*bytes*/) { free_(pool_, block); }
  [[nodiscard]] std::string const& version() const { return version_; }

 private:
  [[nodiscard]] void const* operations(char const* name) const {
    auto const* const found = library_.function<void const* (*)()>(name)();
    if (found == nullptr) throw Unavailable(std::string(name) + " gives nothing");
    return found;
  }
  template <class... Arguments>
  void call(char const* name, Arguments... arguments) const {
    if (int const result = library_.function<int (*)(Arguments...)>(name)(arguments...); result != 0) {
      throw Unavailable(std::string(name) + " returned " + std::to_string(result));
    }
  }

  Library library_;
  void* pool_ = nullptr;
  void* (*malloc_)(void*, std::size_t) = nullptr;
  int (*free_)(void*, void*) = nullptr;
  std::string version_;
};

inline constexpr std::array<std::string_view, 8> host_allocators{
    "unimem", "glibc", "mimalloc", "jemalloc", "pmr_pool", "umf_disjoint", "umf_pooled", "umf_scalable"};

/// Calls `use` with the allocator of that name; `umf` is the file of UMF, or empty for wherever the system finds it.
/// Throws Unavailable.
template <class Use>
void with_host_allocator(std::string_view name, std::string const& umf, Use use) {
  if (name == "unimem") {
    Unimem ours;
    return use(ours);
  }
  if (name == "pmr_pool") {
    SynchronizedPool pool;
    return use(pool);
  }
  if (name.starts_with("umf_")) {
    Umf pool(umf, name == "umf_disjoint" ? Umf::Kind::disjoint
                  : name == "umf_pooled" ? Umf::Kind::disjoint_all_pooled
                                         : Umf::Kind::scalable);
    return use(pool);
  }
  if (name != "glibc" && name != "mimalloc" && name != "jemalloc") {
    throw Unavailable("there is no allocator " + std::string(name));
  }
  auto functions = name == "glibc" ? glibc() : name == "mimalloc" ? mimalloc() : jemalloc();
  use(functions);
}

}  // namespace unimem::bench
