#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/core/error.hpp>

#include <nanobind/nanobind.h>

#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "bindings.hpp"
#include "gil.hpp"
#include "python_call.hpp"
#include "window.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// What a pool is asked for, made once for many acquires.
struct Kind {
  std::vector<std::size_t> shape;
  nb::object dtype;
  detail::BufferKind kind;
};

Kind kind_of(std::vector<std::size_t> shape, nb::object dtype, bool pinned) {
  auto const element = element_of(dtype);
  auto const bytes = checked_multiply(Shape(shape).count(), element.bytes, "shape");
  detail::BufferKind kind{element.name, Shape(shape), pinned, bytes};
  return {std::move(shape), std::move(dtype), std::move(kind)};
}

/// A BufferPool that gives back the same Python object for the same buffer.
///
/// Its own fields are used with the interpreter's lock held.
class Pool {
 public:
  /// The process's own.
  explicit Pool(BufferPool& shared) : pool_(&shared) {}
  explicit Pool(BufferPoolOptions options)
      : own_(std::make_unique<BufferPool>(std::move(options))), pool_(own_.get()) {}
  Pool(Pool const&) = delete;
  Pool& operator=(Pool const&) = delete;
  ~Pool() {
    resting_.clear();
    Unlocked const released;
    own_.reset();
  }

  [[nodiscard]] BufferPool& pool() const noexcept { return *pool_; }

  [[nodiscard]] nb::object acquire(nb::handle type, Kind const& kind) {
    auto core = unlocked([&] { return pool_->acquire_core(kind.kind); });
    if (auto const found = resting_.find(core.get()); found != resting_.end()) {
      auto buffer = std::move(found->second.buffer);
      bool const same = !found->second.core.expired();
      resting_.erase(found);
      auto& window = window_of(buffer);
      // An address may have come back with another buffer behind it.
      if (same && window.core() == nullptr) {
        window.take(std::move(core));
        return buffer;
      }
    }
    nb::object buffer = nb::inst_alloc(type);
    new (nb::inst_ptr<Window>(buffer)) Window(std::move(core), 0, kind.shape, kind.dtype, true);
    nb::inst_mark_ready(buffer);
    return buffer;
  }

  void release(nb::object buffer) {
    auto& window = window_of(buffer);
    auto core = window.core_to_give_back();
    if (!core) {
      throw InvalidArgument("buffer", "released already",
                            "one that was acquired from this pool and not released since");
    }
    auto const* const address = core.get();
    std::weak_ptr<BufferCore const> const weak = core;
    // The buffer's own array would count as a holder of the memory.
    window.drop_host();
    // From here on the buffer is without a core, so that no other thread uses or releases it meanwhile.
    core = nullptr;
    auto leaving = std::move(window.core_to_give_back());
    window.core_to_give_back() = nullptr;
    try {
      unlocked([&] {
        PythonCall::let_go_of(*leaving);
        pool_->release_core(leaving);
      });
    } catch (...) {
      window.take(std::move(leaving));  // refused: as it was; or null, if it is neither lent nor kept
      throw;
    }
    if (weak.expired()) return;
    // What goes from the map is destroyed when nothing is being done to it any more: destroying lets other threads in.
    auto const gone = forget_gone();
    auto& place = resting_[address];
    Resting const previous = std::exchange(place, Resting{weak, std::move(buffer)});
  }

  void clear() {
    unlocked([&] { pool_->clear(); });
    auto const gone = forget_gone(0);
  }

 private:
  struct Resting {
    std::weak_ptr<BufferCore const> core;
    nb::object buffer;
  };

  /// Takes out the Python objects of buffers that the pool has let go of, if there are many.
  [[nodiscard]] std::vector<nb::object> forget_gone(std::size_t most = 64) {
    std::vector<nb::object> gone;
    if (resting_.size() <= most || resting_.size() <= 2 * pool_->pool_size()) return gone;
    std::erase_if(resting_, [&](auto& entry) {
      if (!entry.second.core.expired()) return false;
      gone.push_back(std::move(entry.second.buffer));
      return true;
    });
    return gone;
  }

  std::unique_ptr<BufferPool> own_;
  BufferPool* pool_;
  std::unordered_map<BufferCore const*, Resting> resting_;
};

nb::dict statistics_of(BufferPoolStatistics const& s) {
  nb::dict result;
  result["hits"] = s.hits;
  result["misses"] = s.misses;
  result["released"] = s.released;
  result["let_go"] = s.let_go;
  result["evicted"] = s.evicted;
  result["refused"] = s.refused;
  result["active_buffers"] = s.active_buffers;
  result["pooled_buffers"] = s.pooled_buffers;
  result["pooled_bytes"] = s.pooled_bytes;
  result["peak_pooled_bytes"] = s.peak_pooled_bytes;
  return result;
}

nb::tuple limits_of(BufferPoolLimits const& l) {
  return nb::make_tuple(l.max_bytes, l.max_buffers, l.max_buffer_bytes, l.max_buffers_per_class);
}

BufferPoolLimits limits_from(std::vector<std::size_t> const& values) {
  return {values.at(0), values.at(1), values.at(2), values.at(3)};
}

BufferPoolSettings settings_from(std::vector<std::size_t> const& pageable, std::vector<std::size_t> const& pinned,
                                 double trim_interval, bool zero_on_release) {
  BufferPoolSettings settings;
  settings.pageable = limits_from(pageable);
  settings.pinned = limits_from(pinned);
  settings.trim_interval =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(trim_interval));
  settings.zero_on_release = zero_on_release;
  return settings;
}

}  // namespace

void bind_pools(nb::module_& m) {
  nb::class_<Kind>(m, "_Kind", "A shape, a dtype and a kind of memory, as a pool is asked for them.")
      .def("__init__", [](Kind* self, std::vector<std::size_t> shape, nb::object dtype, bool pinned) {
        new (self) Kind(kind_of(std::move(shape), std::move(dtype), pinned));
      });
  nb::class_<Pool>(m, "_Pool", "Whole buffers, kept for the next request of the same kind.")
      .def(
          "__init__",
          [](Pool* self, MemoryManager* manager, Device* device, std::vector<std::size_t> const& pageable,
             std::vector<std::size_t> const& pinned, double trim_interval, bool zero_on_release, std::string name) {
            BufferPoolOptions options;
            options.settings = settings_from(pageable, pinned, trim_interval, zero_on_release);
            options.manager = manager;
            options.device = device;
            options.name = std::move(name);
            new (self) Pool(std::move(options));
          },
          nb::arg("manager").none(), nb::arg("device").none(), nb::arg("pageable"), nb::arg("pinned"),
          nb::arg("trim_interval"), nb::arg("zero_on_release"), nb::arg("name"))
      .def("__init__", [](Pool* self) { new (self) Pool(*unlocked([] { return &default_buffer_pool(); })); })
      .def("_acquire", &Pool::acquire,
           nb::sig("def _acquire(self, type: type, kind: _Kind) -> unimem._buffer.UnifiedBuffer"))
      .def("_release", &Pool::release)
      .def("clear", &Pool::clear, "Lets go of all kept buffers. Lent ones are not touched, and may still be released.")
      .def("_trim",
           [](Pool& self, std::size_t keep_bytes) { return unlocked([&] { return self.pool().trim(keep_bytes); }); })
      .def("_configure",
           [](Pool& self, std::vector<std::size_t> const& pageable, std::vector<std::size_t> const& pinned,
              double trim_interval, bool zero_on_release) {
             auto const settings = settings_from(pageable, pinned, trim_interval, zero_on_release);
             unlocked([&] { self.pool().configure(settings); });
           })
      .def("_settings",
           [](Pool& self) {
             auto const s = unlocked([&] { return self.pool().settings(); });
             return nb::make_tuple(limits_of(s.pageable), limits_of(s.pinned),
                                   std::chrono::duration<double>(s.trim_interval).count(), s.zero_on_release);
           })
      .def("_stats",
           [](Pool& self) {
             auto const statistics = unlocked([&] { return self.pool().stats(); });
             return statistics_of(statistics);
           })
      .def("_stats_of",
           [](Pool& self, bool pinned) {
             auto const statistics = unlocked([&] { return self.pool().stats(pinned); });
             return statistics_of(statistics);
           })
      .def_prop_ro(
          "pool_size", [](Pool& self) { return unlocked([&] { return self.pool().pool_size(); }); }, "Kept buffers.")
      .def_prop_ro(
          "total_bytes", [](Pool& self) { return unlocked([&] { return self.pool().total_bytes(); }); },
          "Bytes of the elements of kept buffers.");
}

}  // namespace unimem::python
