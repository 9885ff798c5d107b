#pragma once

// Buffers of several ranks of an MPI program: find_package(unimem COMPONENTS mpi), unimem::mpi. Included by name, since
// it needs MPI's own header.

#include <unimem/cluster/async_messages.hpp>
#include <unimem/cluster/collectives.hpp>
#include <unimem/cluster/distributed_array.hpp>
#include <unimem/cluster/messages.hpp>
