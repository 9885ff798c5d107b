#pragma once

#include <unimem/stream/tensors.hpp>

#include <map>
#include <string>
#include <vector>

namespace unimem::python {

/// The arrays of a file in the order of their names, which Python knows them by.
struct TensorTable {
  std::vector<Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

}  // namespace unimem::python
