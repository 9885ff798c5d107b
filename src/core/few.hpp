#pragma once

#include <boost/container/small_vector.hpp>

namespace unimem::detail {

/// A list that ends with its call, without an allocation for as many as most launches have operands.
template <class T>
using Few = boost::container::small_vector<T, 8>;

}  // namespace unimem::detail
