#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

/// Bytes of mixed content, as in real files: runs of one value, text, and noise. The same for the same seed.
inline std::string mixed_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random{seed};
  std::string bytes;
  bytes.reserve(count);
  while (bytes.size() < count) {
    auto const length = std::min<std::size_t>(count - bytes.size(), 1 + random() % 5'000);
    switch (random() % 3) {
      case 0:
        bytes.append(length, static_cast<char>(random() % 256));
        break;
      case 1:
        for (std::size_t i = 0; i < length; ++i) bytes += static_cast<char>('a' + random() % 26);
        break;
      default:
        for (std::size_t i = 0; i < length; ++i) bytes += static_cast<char>(random() % 256);
    }
  }
  return bytes;
}

/// The bytes of numbers, in the machine's order.
template <class T>
std::string bytes_of(std::vector<T> const& numbers) {
  std::string bytes(numbers.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

template <class T>
std::vector<T> numbers_of(std::string_view bytes) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(T));
  return numbers;
}

/// A `.safetensors` file: the length of a JSON header, the header, data.
inline std::string safetensors(std::string_view header, std::string_view data) {
  std::string file;
  for (unsigned i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xFFU);
  return file.append(header).append(data);
}

/// A `.npy` file of format version 1.0 (NumPy's format description): magic, version, header length, a Python dictionary
/// padded with blanks so that the data starts at a multiple of 64, data.
inline std::string npy(std::string_view descr, bool fortran_order, std::string_view shape, std::string_view data) {
  std::string header = "{'descr': '" + std::string(descr) +
                       "', 'fortran_order': " + (fortran_order ? "True" : "False") +
                       ", 'shape': " + std::string(shape) + ", }";
  while ((10 + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string file = "\x93NUMPY\x01";
  file += '\0';
  file += static_cast<char>(header.size() % 256);
  file += static_cast<char>(header.size() / 256);
  file += header;
  file += data;
  return file;
}

}  // namespace unimem
