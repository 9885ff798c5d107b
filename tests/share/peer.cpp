#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/share/buffer_registry.hpp>

#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Another process that tests share buffers with: it does what it is told, line by line, and answers each with one line,
// "ok …" or "error TYPE MESSAGE".

namespace unimem::testing {
namespace {

using Byte = std::uint8_t;
using Bytes = std::vector<Byte>;

Kernel const& fill_kernel() {
  static Kernel const kernel = Kernel("fill").host(
      [](WorkItem item, std::span<Byte> bytes, std::uint32_t value) { bytes[item.x] = static_cast<Byte>(value); });
  return kernel;
}

Kernel const& copy_kernel() {
  static Kernel const kernel = Kernel("copy").host(
      [](WorkItem item, std::span<Byte const> from, std::span<Byte> to) { to[item.x] = from[item.x]; });
  return kernel;
}

std::string hex(std::span<Byte const> bytes) {
  constexpr char const* digits = "0123456789abcdef";
  std::string text;
  for (auto const byte : bytes) {
    text += digits[byte >> 4U];
    text += digits[byte & 15U];
  }
  return text;
}

class Peer {
 public:
  std::string answer(std::string const& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    auto const found = commands_.find(command);
    if (found == commands_.end()) return "error Unknown " + command;
    try {
      auto const said = (this->*found->second)(words);
      return said.empty() ? "ok" : "ok " + said;
    } catch (DataLost const& error) {
      return std::string("error DataLost ") + error.what();
    } catch (NotFound const& error) {
      return std::string("error NotFound ") + error.what();
    } catch (InvalidArgument const& error) {
      return std::string("error InvalidArgument ") + error.what();
    } catch (UnsupportedOperation const& error) {
      return std::string("error UnsupportedOperation ") + error.what();
    } catch (IoError const& error) {
      return std::string("error IoError ") + error.what();
    } catch (std::exception const& error) {
      return std::string("error Other ") + error.what();
    }
  }

 private:
  using Words = std::istringstream;
  static std::size_t number(Words& words) {
    std::size_t value = 0;
    if (!(words >> value)) throw std::runtime_error("a number is missing");
    return value;
  }
  BufferSlice<Byte> part(Words& words) {
    auto const offset = number(words);
    return buffer_.value().slice(offset, number(words));
  }
  static BufferId id_from(Words& words) {
    std::string text;
    words >> text;
    BufferId id;
    auto const dash = text.find('-');
    std::from_chars(text.data(), text.data() + dash, id.registry, 16);
    std::from_chars(text.data() + dash + 1, text.data() + text.size(), id.number);
    return id;
  }

  std::string open(Words& words) {
    buffer_ = registry().open<Byte>(id_from(words));
    return std::to_string(buffer_->size());
  }
  std::string open_as_floats(Words& words) { return std::to_string(registry().open<float>(id_from(words)).size()); }
  /// Another handle of the same.
  std::string open_again(Words& words) {
    auto const again = registry().open<Byte>(id_from(words));
    return std::as_const(again).host_view().data() == std::as_const(*buffer_).host_view().data() ? "same" : "other";
  }
  std::string publish(Words& words) {
    BufferOptions options;
    options.device = &sim_;
    auto const size = number(words);
    options.shared = number(words) != 0;
    buffer_.emplace(size, std::move(options));
    Bytes data(size);
    std::iota(data.begin(), data.end(), Byte{1});
    buffer_->copy_from(data);
    return to_string(registry().publish(*buffer_, {.cross_process = true}));
  }
  std::string read(Words& words) { return hex(part(words).to_vector()); }
  std::string look(Words& words) {
    auto const window = part(words);
    return hex(window.host_view());
  }
  std::string write(Words& words) {
    auto window = part(words);
    window.copy_from(Bytes(window.size(), static_cast<Byte>(number(words))));
    return {};
  }
  std::string read_on_device(Words& words) {
    auto const window = part(words);
    BufferOptions options;
    options.device = &sim_;
    UnifiedBuffer<Byte> result(window.size(), std::move(options));
    launch(queue_, copy_kernel(), Range{window.size()}, unimem::read(window), unimem::write(result));
    return hex(result.to_vector());
  }
  std::string write_on_device(Words& words) {
    auto window = part(words);
    auto const value = static_cast<std::uint32_t>(number(words));
    launch(queue_, fill_kernel(), Range{window.size()}, unimem::write(window), value).wait();
    return {};
  }
  std::string write_on_cpu(Words& words) {
    auto window = part(words);
    auto const value = static_cast<std::uint32_t>(number(words));
    launch(device("cpu").default_queue(), fill_kernel(), Range{window.size()}, unimem::write(window), value).wait();
    return {};
  }
  std::string map(Words& words) {
    mapping_ = part(words).map(MapMode::read_write);
    return {};
  }
  std::string poke(Words& words) {
    auto const value = static_cast<Byte>(number(words));
    for (auto& byte : mapping_.value().elements()) byte = value;
    return {};
  }
  std::string unmap(Words& /*words*/) {
    mapping_.value().unmap();
    mapping_.reset();
    return {};
  }
  std::string hold(Words& words) {
    reading_ = part(words).map(MapMode::read);
    return {};
  }
  std::string drop(Words& /*words*/) {
    reading_.reset();
    return {};
  }
  std::string moved(Words& /*words*/) {
    auto const all = buffer_.value().statistics();
    return std::to_string(all.host_to_device_bytes) + " " + std::to_string(all.device_to_host_bytes);
  }
  std::string close(Words& /*words*/) {
    mapping_.reset();
    reading_.reset();
    buffer_.reset();
    return {};
  }
  std::string kill(Words& /*words*/) {
    ::raise(SIGKILL);
    return {};
  }

  Device& sim_ = make_sim();
  Queue queue_ = sim_.create_queue();
  std::optional<UnifiedBuffer<Byte>> buffer_;
  std::optional<Mapping<Byte>> mapping_;
  std::optional<Mapping<Byte>> reading_;
  std::map<std::string, std::string (Peer::*)(Words&), std::less<>> const commands_{
      {"open", &Peer::open},
      {"open_as_floats", &Peer::open_as_floats},
      {"open_again", &Peer::open_again},
      {"publish", &Peer::publish},
      {"read", &Peer::read},
      {"look", &Peer::look},
      {"write", &Peer::write},
      {"read_on_device", &Peer::read_on_device},
      {"write_on_device", &Peer::write_on_device},
      {"write_on_cpu", &Peer::write_on_cpu},
      {"map", &Peer::map},
      {"poke", &Peer::poke},
      {"unmap", &Peer::unmap},
      {"hold", &Peer::hold},
      {"drop", &Peer::drop},
      {"moved", &Peer::moved},
      {"close", &Peer::close},
      {"kill", &Peer::kill}};
};

}  // namespace
}  // namespace unimem::testing

int main() {
  unimem::testing::Peer peer;
  for (std::string line; std::getline(std::cin, line);) std::cout << peer.answer(line) << std::endl;  // NOLINT
}
