#include <unimem/pool/allocation_log.hpp>

#include <unimem/core/error.hpp>

#include "core/quoted.hpp"
#include "core/unique_fd.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

namespace unimem {
namespace {

constexpr auto largest_size = static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max());

[[noreturn]] void malformed(std::string const& path, std::size_t line, std::string_view what) {
  throw IoError(path, 0, fmt::format("line {}: {}", line, what));
}

/// Takes a text of comma-separated values apart, one record after the other.
class Records {
 public:
  Records(std::string_view text, std::string const& path) : rest_(text), path_(path) {
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);  // some programs mark UTF-8 so
  }

  /// Goes to the next record that is not an empty line; false at the end.
  bool next() {
    while (!rest_.empty() && (accept("\n") || accept("\r\n"))) ++next_line_;
    if (rest_.empty()) return false;
    line_ = next_line_;
    count_ = 0;
    do {
      read_field();
    } while (accept(","));
    if (!rest_.empty() && !accept("\n") && !accept("\r\n")) malformed(path_, next_line_, "text after a closing quote");
    ++next_line_;
    return true;
  }

  /// Where the record begins.
  [[nodiscard]] std::size_t line() const noexcept { return line_; }
  /// Valid until the next record.
  [[nodiscard]] std::span<std::string_view const> fields() const noexcept { return std::span{fields_}.first(count_); }

 private:
  bool accept(std::string_view what) {
    if (!rest_.starts_with(what)) return false;
    rest_.remove_prefix(what.size());
    return true;
  }

  void read_field() {
    if (count_ == fields_.size()) {
      fields_.emplace_back();
      unquoted_.emplace_back();
    }
    auto& field = fields_[count_];
    auto& unquoted = unquoted_[count_++];
    if (!accept("\"")) {
      auto const end = std::min(rest_.find_first_of(",\n"), rest_.size());
      field = rest_.substr(0, end);
      rest_.remove_prefix(end);
      if (field.ends_with('\r') && !rest_.starts_with(',')) field.remove_suffix(1);
      return;
    }
    auto const begins = next_line_;
    unquoted.clear();
    do {
      auto const end = rest_.find('"');
      if (end == std::string_view::npos) malformed(path_, begins, "a quote does not end");
      unquoted += rest_.substr(0, end);
      next_line_ += static_cast<std::size_t>(std::ranges::count(rest_.substr(0, end), '\n'));
      rest_.remove_prefix(end + 1);
      if (rest_.starts_with('"')) unquoted += '"';
    } while (accept("\""));
    field = unquoted;
  }

  std::string_view rest_;
  std::string const& path_;
  std::size_t line_ = 0;
  std::size_t next_line_ = 1;
  std::size_t count_ = 0;
  std::vector<std::string_view> fields_;
  std::deque<std::string> unquoted_;  ///< what quoted fields stand for; a deque, since a field is a view into one
};

enum Column : std::size_t { thread_column, action_column, pointer_column, size_column, stream_column, column_count };
constexpr std::array<std::string_view, column_count> column_names{"Thread", "Action", "Pointer", "Size", "Stream"};

class LogReader {
 public:
  LogReader(std::string_view text, std::string const& path) : records_(text, path), path_(path) {}

  AllocationLog read() {
    if (!records_.next()) throw IoError(path_, 0, "is empty: an allocation log begins with the names of its columns");
    read_header();
    while (records_.next()) read_event();
    return std::move(log_);
  }

 private:
  struct Live {
    std::uint32_t slot = 0;
    std::size_t bytes = 0;
    std::size_t line = 0;
  };

  [[noreturn]] void malformed(std::string_view what) const { unimem::malformed(path_, records_.line(), what); }

  void read_header() {
    auto const fields = records_.fields();
    columns_in_file_ = fields.size();
    for (std::size_t column = 0; column < column_count; ++column) {
      auto const found = std::ranges::find(fields, column_names[column]);
      if (found == fields.end()) malformed(fmt::format("no column {}", column_names[column]));
      if (std::find(found + 1, fields.end(), column_names[column]) != fields.end()) {
        malformed(fmt::format("two columns {}", column_names[column]));
      }
      place_[column] = static_cast<std::size_t>(found - fields.begin());
    }
  }

  [[nodiscard]] std::string_view field(Column column) const { return records_.fields()[place_[column]]; }

  /// A number that is the whole field; `hexadecimal`: with or without "0x", otherwise only with it.
  [[nodiscard]] std::uint64_t number(Column column, bool hexadecimal) const {
    auto text = field(column);
    if (column != size_column && text == "(nil)") return 0;
    bool const prefixed = column != size_column && (text.starts_with("0x") || text.starts_with("0X"));
    if (prefixed) text.remove_prefix(2);
    std::uint64_t value = 0;
    auto const [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), value, hexadecimal || prefixed ? 16 : 10);
    if (error == std::errc::result_out_of_range) {
      malformed(fmt::format("{} {} does not fit 64 bits", column_names[column], detail::quoted(field(column))));
    }
    if (error != std::errc{} || end != text.data() + text.size()) {
      malformed(fmt::format("{} {} is not a {}number", column_names[column], detail::quoted(field(column)),
                            hexadecimal ? "hexadecimal " : "whole "));
    }
    return value;
  }

  void read_event() {
    auto const count = records_.fields().size();
    if (count != columns_in_file_) malformed(fmt::format("{} fields instead of {}", count, columns_in_file_));
    auto const action = field(action_column);
    bool const allocates = action == "allocate";
    bool const fails = action == "allocate failure";
    if (!allocates && !fails && action != "free") {
      malformed(
          fmt::format("unknown action {}: there are allocate, free and allocate failure", detail::quoted(action)));
    }
    AllocationLogEvent event;
    event.allocates = allocates;
    auto const thread = number(thread_column, false);
    auto const pointer = number(pointer_column, true);
    auto const stream = number(stream_column, false);
    auto const bytes = number(size_column, false);
    if (fails) return;
    if (bytes > largest_size) malformed(fmt::format("Size {} is not below 8 EiB", bytes));
    event.bytes = bytes;
    if (pointer == 0) {
      if (bytes == 0) return;
      malformed(fmt::format("{} bytes at the null pointer", bytes));
    }
    event.thread = number_of(thread, threads_, 0);
    event.stream = stream == 0 ? 0 : number_of(stream, streams_, 1);
    if (allocates) {
      allocate(pointer, event);
    } else {
      release(pointer, event);
    }
    log_.events.push_back(event);
    log_.threads = static_cast<std::uint32_t>(threads_.size());
    log_.streams = static_cast<std::uint32_t>(streams_.size());
  }

  using Numbers = std::unordered_map<std::uint64_t, std::uint32_t>;
  static std::uint32_t number_of(std::uint64_t id, Numbers& numbers, std::uint32_t first) {
    return numbers.try_emplace(id, static_cast<std::uint32_t>(numbers.size()) + first).first->second;
  }

  void allocate(std::uint64_t pointer, AllocationLogEvent& event) {
    auto const [live, fresh] = live_.try_emplace(pointer);
    if (!fresh) {
      malformed(fmt::format("allocation at {:#x}, which is live since line {}", pointer, live->second.line));
    }
    if (event.bytes > largest_size - live_bytes_) malformed("8 EiB or more are live");
    live_bytes_ += event.bytes;
    if (free_slots_.empty()) {
      event.slot = log_.most_live++;
    } else {
      event.slot = free_slots_.back();
      free_slots_.pop_back();
    }
    live->second = {event.slot, event.bytes, records_.line()};
  }

  void release(std::uint64_t pointer, AllocationLogEvent& event) {
    auto const live = live_.find(pointer);
    if (live == live_.end()) malformed(fmt::format("free of {:#x}, which is not live", pointer));
    auto const [slot, bytes, line] = live->second;
    if (event.bytes != 0 && event.bytes != bytes) {
      malformed(
          fmt::format("free of {} bytes at {:#x}, which has {} since line {}", event.bytes, pointer, bytes, line));
    }
    event.slot = slot;
    event.bytes = bytes;
    live_bytes_ -= bytes;
    free_slots_.push_back(slot);
    live_.erase(live);
  }

  Records records_;
  std::string const& path_;
  std::size_t columns_in_file_ = 0;
  std::array<std::size_t, column_count> place_{};
  Numbers threads_, streams_;
  std::unordered_map<std::uint64_t, Live> live_;
  std::uint64_t live_bytes_ = 0;
  std::vector<std::uint32_t> free_slots_;
  AllocationLog log_;
};

std::string contents_of(std::string const& path) {
  // O_NONBLOCK: opening a pipe without a writer would wait for ever, only to be refused below.
  detail::UniqueFd const file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (!file) throw IoError(path, errno, "cannot open for reading");
  struct ::stat status{};
  if (::fstat(file.get(), &status) != 0) throw IoError(path, errno, "cannot look at it");
  if (S_ISDIR(status.st_mode)) throw IoError(path, EISDIR, "cannot read");
  if (!S_ISREG(status.st_mode)) throw IoError(path, ESPIPE, "not a regular file");
  std::string text;
  text.reserve(static_cast<std::size_t>(status.st_size));
  std::vector<char> piece(std::size_t{1} << 20);
  for (;;) {
    auto const count = ::read(file.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw IoError(path, errno, "cannot read");
    if (count == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace

AllocationLog parse_allocation_log(std::string_view text, std::string const& path) {
  return LogReader(text, path).read();
}

AllocationLog read_allocation_log(std::filesystem::path const& path) {
  auto const text = contents_of(path.string());
  return parse_allocation_log(text, path.string());
}

}  // namespace unimem
