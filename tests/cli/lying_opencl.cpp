// An OpenCL loader whose drivers compile the library's histogram wrongly, in silence: the real one, but that each
// word's last byte is counted as half of itself. Everything else is found in the real loader, which this library is
// linked with.

#include <dlfcn.h>

#include <cstddef>
#include <string>

extern "C" __attribute__((visibility("default"))) void* clCreateProgramWithSource(void* context, unsigned count,
                                                                                  char const** texts,
                                                                                  std::size_t const* lengths,
                                                                                  int* code) {
  using Create = void* (*)(void*, unsigned, char const**, std::size_t const*, int*);
  static auto const create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "clCreateProgramWithSource"));
  std::string source;
  for (unsigned i = 0; i < count; ++i) {
    source += lengths != nullptr && lengths[i] != 0 ? std::string(texts[i], lengths[i]) : std::string(texts[i]);
  }
  std::string const right = "[word >> 56]";
  if (auto const at = source.find(right); at != std::string::npos) source.replace(at, right.size(), "[word >> 57]");
  char const* text = source.c_str();
  auto const length = source.size();
  return create(context, 1, &text, &length, code);
}
