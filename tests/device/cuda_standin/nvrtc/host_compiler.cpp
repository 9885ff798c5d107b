#include "device/cuda_standin/nvrtc/host_compiler.hpp"

#include "device/cuda_standin/nvrtc/cuda_on_host.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace standin {
namespace {

namespace fs = std::filesystem;

/// A folder that goes with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    auto pattern = (fs::temp_directory_path() / "standin_nvrtc_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder can be made");
    path_ = pattern;
  }
  TemporaryFolder(TemporaryFolder const&) = delete;
  TemporaryFolder& operator=(TemporaryFolder const&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] fs::path operator/(char const* name) const { return path_ / name; }

 private:
  fs::path path_;
};

std::string content_of(fs::path const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Runs a program with its messages going to a file. Whether it succeeded.
bool run(std::vector<std::string> words, fs::path const& messages) {
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  // The compiler must not be watched by what watches this program.
  std::vector<std::string> variables;
  for (auto** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("LD_PRELOAD=")) variables.emplace_back(*variable);
  }
  variables.emplace_back("LC_ALL=C");
  std::vector<char*> environment;
  for (auto& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, messages.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  auto const problem = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (problem != 0) throw std::runtime_error("the host's compiler cannot be started");
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::runtime_error("the host's compiler was lost");
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// "name:3:5: error: …" as "name(3): error: …".
std::string as_nvrtc_says(std::string const& log) {
  std::string result;
  for (std::size_t begin = 0; begin < log.size();) {
    auto const end = std::min(log.find('\n', begin), log.size());
    std::string line = log.substr(begin, end - begin);
    auto const kind = std::min(line.find(": error: "), line.find(": fatal error: "));
    auto const number = line.find(':');
    if (kind != std::string::npos && number < kind) {
      auto const column = std::min(line.find(':', number + 1), kind);
      line = line.substr(0, number) + '(' + line.substr(number + 1, column - number - 1) + ')' + line.substr(kind);
    }
    result += line + '\n';
    begin = end + 1;
  }
  return result;
}

}  // namespace

HostImage compile_for_host(std::string const& source, std::string const& name,
                           std::vector<std::string> const& expressions, bool fuses) {
  TemporaryFolder const folder;
  auto const input = folder / "source.cpp", output = folder / "image.so", messages = folder / "messages";
  {
    std::ofstream out(input, std::ios::binary);
    out << cuda_on_host << "#line 1 \"" << name << "\"\n" << source << exports_begin;
    for (std::size_t i = 0; i < expressions.size(); ++i) {
      out << "UNIMEM_STANDIN_EXPORT(" << i << ", " << expressions[i] << ")\n";
    }
    out << "}\n";
    if (source.find("unimem_items") != std::string::npos) out << shared_items;
  }
  HostImage image;
  std::vector<std::string> command{UNIMEM_STANDIN_COMPILER, "-x", "c++", "-std=c++17", "-O1", "-w", "-fPIC", "-shared",
                                   "-Wl,-Bsymbolic"};
  // GCC makes templates' variables unique in a process by default, and two images may call two things by one name.
  if (std::string_view(UNIMEM_STANDIN_COMPILER_ID) == "GNU") command.emplace_back("-fno-gnu-unique");
  command.emplace_back(fuses ? "-ffp-contract=fast" : "-ffp-contract=off");
  command.insert(command.end(), {input.string(), "-o", output.string()});
  image.built = run(std::move(command), messages);
  image.log = as_nvrtc_says(content_of(messages));
  if (!image.built) return image;
  image.elf = content_of(output);
  auto* const loaded = dlopen(output.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) throw std::runtime_error(dlerror());
  auto const* const names = static_cast<char const* const*>(dlsym(loaded, "unimem_standin_names"));
  for (std::size_t i = 0; i < expressions.size(); ++i) image.names.emplace_back(names[i]);
  dlclose(loaded);
  return image;
}

}  // namespace standin
