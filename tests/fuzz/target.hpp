#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace unimem::fuzz {

/// What a parser did was wrong: what it accepted means something else, or it threw what it does not promise.
class WrongAnswer : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void expect(bool right, std::string_view what) {
  if (!right) throw WrongAnswer(std::string(what));
}

/// A parser under any input. `check` returns whether the input was accepted; it throws WrongAnswer, and lets through
/// what the parser throws and does not promise.
struct Target {
  char const* name;  ///< of the folder with its corpus
  bool (*check)(std::string_view input);
};

bool check_allocation_log(std::string_view input);
bool check_buffer_ref(std::string_view input);
bool check_cache_entry(std::string_view input);
bool check_control_group(std::string_view input);
bool check_limits(std::string_view input);
bool check_npy(std::string_view input);
bool check_sim_options(std::string_view input);
bool check_size(std::string_view input);
bool check_source(std::string_view input);

inline constexpr Target targets[]{
    {"allocation_log", check_allocation_log},
    {"buffer_ref", check_buffer_ref},
    {"cache_entry", check_cache_entry},
    {"control_group", check_control_group},
    {"limits", check_limits},
    {"npy", check_npy},
    {"sim_options", check_sim_options},
    {"size", check_size},
    {"source", check_source},
};

}  // namespace unimem::fuzz
