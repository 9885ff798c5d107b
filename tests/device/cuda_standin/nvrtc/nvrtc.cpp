#include "device/cuda_standin/nvrtc/cuda_on_host.hpp"
#include "device/cuda_standin/nvrtc/host_compiler.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

// NVRTC's functions over the host's own compiler, for machines without a toolkit: the same prelude and the same kernel
// sources, made into images that the stand-in driver runs. It shows nothing of what NVRTC itself makes of them.

namespace {

enum Result : int {
  success = 0,
  invalid_input = 3,
  invalid_program = 4,
  invalid_option = 5,
  compilation = 6,
  no_lowered_names_before_compilation = 9,
  name_expression_not_valid = 10,
  internal_error = 11,
};

/// In no order, since NVRTC promises none.
constexpr std::array architectures{90, 75, 80, 120, 86, 89, 100};

/// Versions differ in the oldest that they know: a copy of this library has it in a file beside it.
int oldest_architecture() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void const*>(&oldest_architecture), &self) == 0) return 0;
  int oldest = 0;
  std::ifstream(std::string(self.dli_fname) + ".oldest") >> oldest;
  return oldest;
}

std::vector<int> known_architectures() {
  std::vector<int> known;
  auto const oldest = oldest_architecture();
  for (auto const one : architectures) {
    if (one >= oldest) known.push_back(one);
  }
  return known;
}

struct Program {
  std::string source;
  std::string name;
  std::vector<std::string> expressions;
  bool compiled = false;
  bool is_machine_code = false;
  std::string log;
  std::vector<std::string> lowered;
  std::string image;
};

struct Options {
  bool known = true;
  bool is_machine_code = false;
  bool fuses = true;
};

Options read(int count, char const* const* texts) {
  Options options;
  for (int i = 0; i < count; ++i) {
    std::string_view const text = texts[i];
    if (text.starts_with("--gpu-architecture=")) {
      auto const value = text.substr(text.find('=') + 1);
      options.is_machine_code = value.starts_with("sm_");
      options.known &= options.is_machine_code || value.starts_with("compute_");
      options.known &= std::ranges::any_of(
          architectures, [&](int each) { return value.substr(value.find('_') + 1) == std::to_string(each); });
    } else if (text == "--fmad=false") {
      options.fuses = false;
    } else {
      options.known &= text == "--fmad=true" || text == "--std=c++17" || text == "--prec-div=true" ||
                       text == "--prec-sqrt=true" || text == "--ftz=false" || text == "--use_fast_math";
    }
  }
  return options;
}

std::string framed(std::string const& elf) {
  std::string image = "UMKERNEL";
  for (std::uint64_t size = elf.size(), i = 0; i < 8; ++i) image += static_cast<char>(size >> 8 * i & 0xFF);
  return image + elf;
}

Result give(std::string const& text, std::size_t* size, std::size_t extra) {
  *size = text.size() + extra;
  return success;
}

}  // namespace

extern "C" {

char const* nvrtcGetErrorString(Result result) {
  switch (result) {
    case success:
      return "NVRTC_SUCCESS";
    case invalid_input:
      return "NVRTC_ERROR_INVALID_INPUT";
    case invalid_program:
      return "NVRTC_ERROR_INVALID_PROGRAM";
    case invalid_option:
      return "NVRTC_ERROR_INVALID_OPTION";
    case compilation:
      return "NVRTC_ERROR_COMPILATION";
    case no_lowered_names_before_compilation:
      return "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION";
    case name_expression_not_valid:
      return "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
    case internal_error:
      return "NVRTC_ERROR_INTERNAL_ERROR";
  }
  return "NVRTC_ERROR unknown";
}

/// No version that there is, and another for each text that stands before a source: what one compiler made must not be
/// taken from a cache for another's.
Result nvrtcVersion(int* major, int* minor) {
  std::uint32_t hash = 0x811c9dc5U;
  for (auto const text : {standin::cuda_on_host, standin::exports_begin, standin::shared_items}) {
    for (auto const letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x01000193U;
  }
  *major = 12;
  *minor = 100 + static_cast<int>(hash % 1'000'000);
  return success;
}

Result nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(known_architectures().size());
  return success;
}

Result nvrtcGetSupportedArchs(int* result) {
  std::ranges::copy(known_architectures(), result);
  return success;
}

Result nvrtcCreateProgram(Program** program, char const* source, char const* name, int header_count, char const* const*,
                          char const* const*) {
  if (program == nullptr || source == nullptr || header_count != 0) return invalid_input;
  *program = new Program{};
  (*program)->source = source;
  (*program)->name = name != nullptr ? name : "default_program";
  return success;
}

Result nvrtcDestroyProgram(Program** program) {
  if (program == nullptr || *program == nullptr) return invalid_program;
  delete *program;
  *program = nullptr;
  return success;
}

Result nvrtcAddNameExpression(Program* program, char const* expression) {
  if (program == nullptr) return invalid_program;
  program->expressions.emplace_back(expression);
  return success;
}

Result nvrtcCompileProgram(Program* program, int option_count, char const* const* texts) try {
  if (program == nullptr) return invalid_program;
  auto const options = read(option_count, texts);
  if (!options.known) {
    program->log = "nvrtc: error: an option is unknown";
    return invalid_option;
  }
  auto const host = standin::compile_for_host(program->source, program->name, program->expressions, options.fuses);
  program->log = host.log;
  if (!host.built) return compilation;
  program->compiled = true;
  program->is_machine_code = options.is_machine_code;
  program->lowered = host.names;
  program->image = framed(host.elf);
  return success;
} catch (std::exception const& error) {
  program->log = error.what();
  return internal_error;
}

Result nvrtcGetLoweredName(Program* program, char const* expression, char const** lowered) {
  if (program == nullptr) return invalid_program;
  if (!program->compiled) return no_lowered_names_before_compilation;
  auto const found = std::ranges::find(program->expressions, expression);
  if (found == program->expressions.end()) return name_expression_not_valid;
  *lowered = program->lowered[static_cast<std::size_t>(found - program->expressions.begin())].c_str();
  return success;
}

Result nvrtcGetProgramLogSize(Program* program, std::size_t* size) {
  return program == nullptr ? invalid_program : give(program->log, size, 1);
}

Result nvrtcGetProgramLog(Program* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return success;
}

Result nvrtcGetCUBINSize(Program* program, std::size_t* size) {
  if (program == nullptr || !program->compiled) return invalid_program;
  return give(program->is_machine_code ? program->image : std::string{}, size, 0);
}

Result nvrtcGetCUBIN(Program* program, char* cubin) {
  std::memcpy(cubin, program->image.data(), program->image.size());
  return success;
}

Result nvrtcGetPTXSize(Program* program, std::size_t* size) {
  if (program == nullptr || !program->compiled) return invalid_program;
  return give(program->image, size, 1);
}

Result nvrtcGetPTX(Program* program, char* ptx) {
  std::memcpy(ptx, program->image.c_str(), program->image.size() + 1);
  return success;
}

}  // extern "C"
