#include "stream/input.hpp"

#include <unimem/core/error.hpp>

#include "stream/tensor_path.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace unimem::detail {
namespace {

bool same_file(struct ::stat const& a, struct ::stat const& b) noexcept {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool same_contents(struct ::stat const& a, struct ::stat const& b) noexcept {
  return a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

Input::Input(std::span<const std::filesystem::path> paths, ReadWay way, unsigned retries)
    : way_(way), retries_(retries) {
  name_ = paths.front().string();
  if (paths.size() > 1) name_ += fmt::format(" and {} more", paths.size() - 1);
  parts_.reserve(paths.size());
  if (paths.size() == 1 && !PipeInput::is_at(paths.front())) only_file_.emplace(split_tensor_name(paths.front()), way_);
  for (auto const& path : paths) look_at(path);
}

void Input::look_at(std::filesystem::path const& path) {
  Part part{path, std::nullopt, {}, 0};
  if (PipeInput::is_at(path)) {
    bytes_.reset();
  } else {
    std::optional<InputFile> opened;
    auto const& file = only_file_ ? *only_file_ : opened.emplace(split_tensor_name(path), way_);
    take_element(file);
    part.bytes = file.bytes();
    part.status = file.status();
    if (bytes_) *bytes_ += file.bytes();
  }
  parts_.push_back(std::move(part));
}

void Input::take_element(InputFile const& file) {
  if (!file.element()) return;
  if (element_ && *element_ != *file.element()) {
    throw IoError(
        file.path(), 0,
        fmt::format("it holds {}, and a file before it {}", to_string(*file.element()), to_string(*element_)));
  }
  element_ = file.element();
}

std::optional<std::vector<std::uint64_t>> Input::shape() const {
  return only_file_ ? only_file_->shape() : std::nullopt;
}

std::vector<std::string> Input::identities() const {
  std::vector<std::string> all;
  all.reserve(parts_.size());
  for (auto const& [path, bytes, status, read] : parts_) {
    // Not when it was last written to, which copies and archives keep.
    all.push_back(bytes ? fmt::format("{}: {} bytes, file {}, changed at {}.{:09}", path.string(), *bytes,
                                      status.st_ino, status.st_ctim.tv_sec, status.st_ctim.tv_nsec)
                        : path.string());
  }
  return all;
}

void Input::take_as(ElementType element) {
  taken_as_ = element;
  for (auto const& part : parts_) {
    if (part.bytes) check_multiple(part, *part.bytes);
  }
}

void Input::check_multiple(Part const& part, std::uint64_t bytes) const {
  auto const size = element_size(taken_as_);
  if (bytes % size == 0) return;
  throw IoError(part.path.string(), 0,
                fmt::format("its {} bytes are no multiple of the {} of an {}", bytes, size, to_string(taken_as_)));
}

void Input::check_is_not(std::filesystem::path const& written, std::string const& argument) const {
  struct ::stat there{};
  if (::stat(written.c_str(), &there) != 0) return;
  for (auto const& part : parts_) {
    if (part.bytes && same_file(part.status, there)) {
      throw InvalidArgument(argument, written.string(), "another file than the input");
    }
  }
}

void Input::skip_to(std::uint64_t offset) {
  begin_part();
  within_ = offset;
}

void Input::begin_part() {
  auto const& part = parts_[part_];
  std::vector<std::byte> header;
  if (!part.bytes) {
    open_pipe_.emplace(part.path);
  } else if (only_file_) {
    if (check_ != nullptr) header = only_file_->read_header();
  } else {
    auto const& file = open_file_.emplace(split_tensor_name(part.path), way_);
    auto const now = file.status();
    if (!same_file(now, part.status)) {
      throw IoError(file.path(), 0, "another file is in its place since the stream began");
    }
    if (file.bytes() != *part.bytes) {
      throw IoError(file.path(), 0,
                    fmt::format("it has {} bytes, and had {} when the stream began", file.bytes(), *part.bytes));
    }
    if (!same_contents(now, part.status)) throw IoError(file.path(), 0, "it was changed since the stream began");
    if (check_ != nullptr) header = file.read_header();
  }
  begun_ = true;
  within_ = 0;
  if (check_ != nullptr) check_->begin_file(part.path.string(), part.bytes, header);
}

void Input::end_part() {
  if (check_ != nullptr) check_->end_file();
  parts_[part_].read = within_;
  check_multiple(parts_[part_], within_);
  if (open_file_) {
    through_.bytes += open_file_->bytes_read();
    through_.direct += open_file_->bytes_read_directly();
  }
  open_file_.reset();
  open_pipe_.reset();
  begun_ = false;
  ++part_;
}

std::size_t Input::read_part(std::span<std::byte> to, std::function<bool()> const& stop) {
  auto const& part = parts_[part_];
  if (!part.bytes) {
    // As large as the processor's cache, since checksums read the bytes once more.
    constexpr std::size_t step = std::size_t{1} << 20;
    auto const some = to.first(std::min(step, to.size()));
    auto const bytes = open_pipe_->read(some, retries_, stop);
    have_read(some.first(bytes));
    if (bytes < some.size() && !stop()) end_part();
    return bytes;
  }
  auto const bytes = static_cast<std::size_t>(std::min<std::uint64_t>(to.size(), *part.bytes - within_));
  ReadTerms terms{.doing = {}, .stop = stop, .retries = &retries_};
  if (check_ != nullptr) terms.arrived = [this](std::span<const std::byte> came) { check_->add(came); };
  (only_file_ ? *only_file_ : *open_file_).read(within_, to.first(bytes), std::move(terms));
  if (!stop()) advance(bytes);
  return bytes;
}

std::size_t Input::read(std::span<std::byte> to, std::function<bool()> const& stop) {
  std::size_t done = 0;
  while (done < to.size() && part_ < parts_.size() && !stop()) {
    if (!begun_) begin_part();
    done += read_part(to.subspan(done), stop);
  }
  pass_empty_files();
  return done;
}

void Input::have_read(std::span<const std::byte> bytes) {
  if (!begun_) begin_part();
  if (check_ != nullptr) check_->add(bytes);
  advance(bytes.size());
}

void Input::advance(std::size_t bytes) {
  within_ += bytes;
  if (parts_[part_].bytes == within_) end_part();
}

ReadCount Input::bytes_read() const noexcept {
  if (only_file_) return {only_file_->bytes_read(), only_file_->bytes_read_directly(), 0};
  return through_;
}

void Input::pass_empty_files() {
  while (!begun_ && part_ < parts_.size() && parts_[part_].bytes == 0) {
    begin_part();
    end_part();
  }
}

std::vector<std::pair<std::filesystem::path, std::uint64_t>> Input::read_so_far() const {
  std::vector<std::pair<std::filesystem::path, std::uint64_t>> all;
  all.reserve(parts_.size());
  for (auto const& part : parts_) all.emplace_back(part.path, part.read);
  return all;
}

void Input::check_size() const {
  if (only_file_) only_file_->check_size();
}

}  // namespace unimem::detail
