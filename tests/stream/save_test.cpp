#include <unimem/core/error.hpp>

#include "small_disk.hpp"
#include "stream/save_fixture.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <complex>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <thread>
#include <utility>

// Named buffers in a file, and back: from and to wherever they are.

namespace unimem::testing {
namespace {

constexpr std::size_t count = 2 * MiB + 77;  ///< more than two blocks of words

TEST_F(Saving, BuffersComeBackFromWhereverTheyWere) {
  auto const path = folder / "state.safetensors";
  auto host = made("host", count, 1);
  auto device = made("device", count, 2);
  auto both = made("both", count, 3);
  auto empty = fresh("empty", 0, manager);
  only_on_device(device);
  both.sync_to_device(sim);
  auto const before = sim.transfers();
  save(manager, path);
  auto const after = sim.transfers();
  EXPECT_EQ(after.device_to_host_bytes - before.device_to_host_bytes, count * sizeof(Word))
      << "what is on the device alone";
  EXPECT_EQ(after.host_to_device_bytes, before.host_to_device_bytes);
  EXPECT_EQ(host.state(), BufferState::host_dirty);
  EXPECT_EQ(device.state(), BufferState::device_dirty);
  EXPECT_EQ(both.state(), BufferState::synchronized) << "saving changes no state";
  EXPECT_FALSE(device.valid_on_host());

  for (auto* const one : {&host, &device, &both}) one->fill(0U);
  restore(manager, path);
  EXPECT_EQ(host.to_vector(), words(count, 1));
  EXPECT_EQ(device.to_vector(), words(count, 2));
  EXPECT_EQ(both.to_vector(), words(count, 3));

  MemoryManager other;
  auto host_again = fresh("host", count, other), device_again = fresh("device", count, other),
       both_again = fresh("both", count, other), empty_again = fresh("empty", 0, other);
  device_again.allocate(false, true);
  auto const uploaded = sim.transfers().host_to_device_bytes;
  restore(other, path);
  EXPECT_EQ(sim.transfers().host_to_device_bytes - uploaded, count * sizeof(Word)) << "straight to its device";
  EXPECT_FALSE(device_again.valid_on_host());
  EXPECT_EQ(host_again.to_vector(), words(count, 1));
  EXPECT_EQ(device_again.to_vector(), words(count, 2));
  EXPECT_EQ(both_again.to_vector(), words(count, 3));
}

TEST_F(Saving, OtherReadersHaveTheSameTensors) {
  auto const path = folder / "state.safetensors";
  BufferOptions options = named("matrix");
  UnifiedBuffer<float> matrix(Shape({3, 5}), std::move(options));
  std::vector<float> values(15);
  std::iota(values.begin(), values.end(), 0.5F);
  matrix.copy_from(values);
  UnifiedBuffer<std::int8_t> odd(Shape(7), named("odd"));
  odd.fill(std::int8_t{-3});
  struct Particle {
    float x, y, z;
  };
  UnifiedBuffer<Particle> particles(Shape(4), named("particles"));
  particles.fill(Particle{1, 2, 3});
  UnifiedBuffer<std::complex<double>> complex(Shape(2), named("complex"));
  complex.fill(std::complex<double>{1, -1});
  save(manager, path);
  auto const tensors = open_tensors(path);
  ASSERT_EQ(tensors.size(), 4U);
  EXPECT_EQ(tensors.at("matrix").dtype, "float32");
  EXPECT_EQ(tensors.at("matrix").shape, (std::vector<std::uint64_t>{3, 5}));
  EXPECT_EQ(tensors.at("matrix").offset % sizeof(float), 0U);
  EXPECT_EQ(tensors.at("matrix").open<float>().to_vector(), values);
  EXPECT_EQ(tensors.at("odd").dtype, "int8");
  EXPECT_EQ(tensors.at("particles").dtype, "uint8");
  EXPECT_EQ(tensors.at("particles").shape, (std::vector<std::uint64_t>{4 * sizeof(Particle)}));
  auto const metadata = read_tensor_metadata(path);
  EXPECT_EQ(metadata.at("unimem.element.particles"), "12 bytes");
  EXPECT_EQ(metadata.at("unimem.element.complex"), "complex128");
  EXPECT_EQ(metadata.count("unimem.element.matrix"), 0U);

  particles.fill(Particle{0, 0, 0});
  complex.fill(std::complex<double>{});
  restore(manager, path);
  EXPECT_EQ(particles.at(3).z, 3.0F);
  EXPECT_EQ(complex.at(1), (std::complex<double>{1, -1}));
}

TEST_F(Saving, OnlyNamesThatAProgramGaveAreInIt) {
  auto const path = folder / "state.safetensors";
  auto kept = made("kept", 10, 1);
  auto unnamed = made("", 10, 2);
  auto for_reports = named("scratch");
  for_reports.name_use = NameUse::reports;
  Buffer scratch(Shape(10), std::move(for_reports));
  scratch.fill(1U);
  FileOptions of_file;
  of_file.manager = &manager;
  auto const weights = from_file<Word>(folder.write("weights", words(10, 3)), of_file);
  auto gone = std::optional(made("gone", 10, 4));
  gone.reset();
  save(manager, path);
  auto const tensors = open_tensors(path);
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors.begin()->first, "kept");
}

TEST_F(Saving, WhatWasNeverUsedStaysUntouched) {
  auto const path = folder / "state.safetensors";
  auto untouched = fresh("untouched", 1'000, manager);
  auto allocated = fresh("allocated", 1'000, manager);
  allocated.allocate(true, true);
  auto partly = fresh("partly", count, manager);
  {
    auto part = partly.slice(0, count / 2);
    part.device_overwrite(sim).data()[5] = 6;
  }
  save(manager, path);
  EXPECT_FALSE(untouched.is_allocated());
  auto const metadata = read_tensor_metadata(path);
  EXPECT_EQ(metadata.at("unimem.empty.untouched"), "4000");
  EXPECT_EQ(metadata.at("unimem.empty.allocated"), "4000");
  EXPECT_EQ(open_tensors(path).size(), 1U);

  MemoryManager other;
  auto untouched_again = fresh("untouched", 1'000, other), allocated_again = fresh("allocated", 1'000, other),
       partly_again = fresh("partly", count, other);
  allocated_again.fill(8U);
  restore(other, path);
  EXPECT_EQ(untouched_again.state(), BufferState::uninitialized);
  EXPECT_EQ(allocated_again.to_vector(), std::vector<Word>(1'000, 8U));
  EXPECT_EQ(partly_again.to_vector(), partly.to_vector()) << "as reading it gives it";
  EXPECT_EQ(partly_again.at(5), 6U);
}

TEST_F(Saving, LostBytesAreNotSaved) {
  auto& dying = make_sim({.memory_bytes = 64 * MiB});
  auto options = named("lost");
  options.device = &dying;
  Buffer buffer(Shape(MiB), std::move(options));
  buffer.copy_from(words(MiB, 1));
  static_cast<void>(buffer.device(dying));
  set_sim_faults(dying, {.lose_after = 1});
  EXPECT_THROW(save(manager, folder / "state"), Error) << "while they are read";
  EXPECT_THROW(save(manager, folder / "state"), Error) << "and ever after";
  EXPECT_TRUE(folder.names().empty());
}

TEST_F(Saving, FilesAndSpilledBuffersNeedNoMemory) {
  auto const path = folder / "state.safetensors";
  constexpr std::size_t large = 8 * MiB / sizeof(Word);
  std::filesystem::create_directory(folder / "spill");
  MemoryManager small(ManagerOptions{.spill = {.directory = (folder / "spill").string()}});
  small.set_limit(device("cpu"), 12 * MiB);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 3; ++i) {
    buffers.push_back(fresh("spilled " + std::to_string(i), large, small));
    buffers.back().copy_from(words(large, static_cast<Word>(i)));
  }
  FileOptions of_file;
  of_file.manager = &small;
  of_file.mode = FileMode::copy_on_write;
  of_file.name = "file";
  auto file = from_file<Word>(folder.write("words", words(2 * large, 7)), of_file);
  file.slice(100, 10).fill(5U);
  auto const before = small.statistics();
  ASSERT_GT(before.spill_files, 0U);
  save(small, path);
  auto const after = small.statistics();
  EXPECT_EQ(after.spills, before.spills) << "nothing had to make room";
  EXPECT_EQ(after.spill_files, before.spill_files);

  auto expected = words(2 * large, 7);
  std::fill_n(expected.begin() + 100, 10, 5U);
  for (std::size_t at = 0; at < file.size(); at += MiB) file.slice(at, MiB).fill(0U);
  for (auto& buffer : buffers) buffer.fill(0U);
  restore(small, path);
  EXPECT_EQ(file.to_vector(), expected);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(buffers[static_cast<std::size_t>(i)].to_vector(), words(large, static_cast<Word>(i)));
  }
}

TEST_F(Saving, WindowsOnADeviceAreSaved) {
  auto const path = folder / "state.safetensors";
  auto buffer = made("windows", count, 1);
  auto expected = words(count, 1);
  for (auto const begin : {std::size_t{1'000}, count - 5'000}) {
    auto part = buffer.slice(begin, 3'000);
    auto const window = part.device(sim);
    for (std::size_t i = 0; i < 3'000; ++i) window.data()[i] = expected[begin + i] = 42;
  }
  auto const before = sim.transfers().device_to_host_bytes;
  save(manager, path);
  EXPECT_EQ(sim.transfers().device_to_host_bytes - before, 2 * 3'000 * sizeof(Word));
  buffer.fill(0U);
  restore(manager, path);
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(Saving, PendingWorkIsWaitedFor) {
  auto& slow = make_sim({.memory_bytes = 64 * MiB, .upload_bytes_per_second = 1e8});
  auto options = named("pending");
  options.device = &slow;
  Buffer buffer(Shape(MiB), std::move(options));
  buffer.copy_from(words(MiB, 1));
  auto& queue = slow.default_queue();
  {
    auto const there = buffer.device(queue);
    auto const nine = words(1, 9);
    buffer.mark_device_dirty(slow, 0, MiB, queue.fill(there.native(), std::as_bytes(std::span(nine))));
  }
  save(manager, folder / "state.safetensors");
  EXPECT_EQ(open_tensors(folder / "state.safetensors").at("pending").open<Word>().to_vector(),
            std::vector<Word>(MiB, 9U));
}

TEST_F(Saving, FilesOfAnotherOriginRestore) {
  auto a = fresh("a", 2, manager);
  UnifiedBuffer<std::uint16_t> small(Shape(2), named("half", manager));
  std::string const json =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"U32","shape":[2],"data_offsets":[0,8]},"half":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(json.size());
  file += json;
  file += std::string("\1\0\0\0\2\0\0\0", 8) + "abcd";
  ASSERT_LT(json.size(), 256U);
  restore(manager, folder.write("other", file));
  EXPECT_EQ(a.to_vector(), (std::vector<Word>{1, 2}));
  EXPECT_EQ(small.at(1), 0x6463);
  UnifiedBuffer<float> more(Shape(1), named("more"));
  EXPECT_THROW(restore(manager, folder / "other"), NotFound);
}

TEST_F(Saving, NamesThatTheFormatHasNotAreRefused) {
  for (auto const& name :
       {std::string("__metadata__"), std::string("a\0b", 3), std::string("\xFF"), std::string(70'000, 'x')}) {
    MemoryManager other;
    auto buffer = fresh(name, 10, other);
    buffer.fill(1U);
    EXPECT_THROW(save(other, folder / "state"), InvalidArgument);
  }
  EXPECT_TRUE(folder.names().empty());
  auto odd = made("\"quoted\":\"unimem.header\":\"/../ü\n", 10, 1);
  save(manager, folder / "state");
  odd.fill(0U);
  restore(manager, folder / "state");
  EXPECT_EQ(odd.to_vector(), words(10, 1));
}

TEST_F(Saving, WhereNothingCanBeWrittenTheBufferStays) {
  auto buffer = made("a", MiB, 1);
  EXPECT_THROW(save(manager, folder / "none" / "state"), IoError);
  EXPECT_THROW(save(manager, folder / "."), IoError);
  EXPECT_THROW(save(manager, "/dev/full"), IoError);
  folder.write("protected", std::string_view("old"));
  std::filesystem::permissions(folder / "protected", std::filesystem::perms::owner_read);
  if (::access((folder / "protected").c_str(), W_OK) != 0) {
    EXPECT_THROW(save(manager, folder / "protected"), IoError);
  }
  EXPECT_EQ(folder.read("protected"), "old");
  EXPECT_EQ(folder.names(), (std::set<std::string>{"protected"}));
  EXPECT_EQ(buffer.to_vector(), words(MiB, 1));
}

TEST_F(Saving, AFullDiskLeavesWhatWasThere) {
  auto buffer = made("a", MiB, 1);
  only_on_device(buffer);
  std::thread([&] {
    SmallDisk const disk(folder / "small", 2 * MiB);
    if (!disk.mounted()) return ADD_FAILURE() << disk.reason();
    auto const target = std::filesystem::path(disk.path()) / "state";
    std::ofstream(target) << "old";
    try {
      save(manager, target);
      ADD_FAILURE() << "it fits";
    } catch (IoError const& error) {
      EXPECT_EQ(error.code, ENOSPC);
    }
    EXPECT_EQ(std::filesystem::file_size(target), 3U);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(disk.path()), {}), 1);
  }).join();
  EXPECT_FALSE(buffer.valid_on_host());
  EXPECT_EQ(buffer.to_vector(), words(MiB, 1));
}

TEST_F(Saving, ThreadsSaveWhileOthersMakeAndDropBuffers) {
  auto kept = made("kept", 100'000, 1);
  std::atomic<bool> done{false};
  std::thread others([&] {
    for (Word i = 0; !done; ++i) {
      auto const one = made("other " + std::to_string(i % 7), 1'000, i);
      std::vector<Word> memory(1'000, i);
    }
  });
  std::thread([&] {
    for (int i = 0; i < 20; ++i) save(manager, folder / "state.safetensors");
  }).join();
  done = true;
  others.join();
  EXPECT_EQ(open_tensors(folder / "state.safetensors").at("kept").open<Word>().to_vector(), words(100'000, 1));
}

}  // namespace
}  // namespace unimem::testing
