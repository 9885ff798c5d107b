#include <unimem/core/error.hpp>
#include <unimem/stream/stream_file.hpp>

#include <nanobind/nanobind.h>

#include <exception>

#include "bindings.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// Raises the class of unimem._errors with this name: the message is the library's, the fields are those of the C++
/// error.
template <class... Field>
void raise(char const* name, Error const& error, Field const&... fields) {
  nb::object const type = nb::module_::import_("unimem._errors").attr(name);
  nb::object const instance = type.attr("_of")(error.what(), fields...);
  PyErr_SetObject(type.ptr(), instance.ptr());
}

nb::tuple write_of(CoherenceConflict::Write const& write) {
  return nb::make_tuple(write.place, write.begin, write.end);
}

void raise_out_of_memory(OutOfMemory const& error) {
  auto const& facts = error.facts();
  nb::list holders;
  for (auto const& holder : facts.holders) holders.append(nb::make_tuple(holder.name, holder.bytes, holder.count));
  raise("OutOfMemory", error, facts.where, facts.requested, facts.limit, facts.live, facts.cached, facts.leased,
        facts.largest_free, facts.fragmentation, facts.device_free, facts.held_elsewhere, nb::tuple(holders),
        facts.reason);
}

void translate(std::exception_ptr const& failure, void* /*payload*/) {
  try {
    std::rethrow_exception(failure);
  } catch (InvalidArgument const& e) {
    raise("InvalidArgument", e, e.argument, e.value, e.requirement);
  } catch (SizeMismatch const& e) {
    raise("SizeMismatch", e, e.expected, e.actual);
  } catch (BufferNotAllocated const& e) {
    raise("BufferNotAllocated", e, e.buffer, e.operation);
  } catch (CoherenceConflict const& e) {
    raise("CoherenceConflict", e, e.buffer, write_of(e.earlier), write_of(e.later));
  } catch (OutOfMemory const& e) {
    raise_out_of_memory(e);
  } catch (DataLost const& e) {
    raise("DataLost", e, e.buffer, e.begin, e.end, e.cause);
  } catch (DeviceError const& e) {
    raise("DeviceError", e, e.backend, e.call, e.code, e.code_name);
  } catch (KernelError const& e) {
    raise("KernelError", e, e.name, e.reason, e.build_log);
  } catch (ChecksumMismatch const& e) {
    nb::list chunks;
    for (auto const& chunk : e.chunks) {
      auto const index =
          chunk.index == ChecksumMismatch::Chunk::header ? nb::none() : nb::object(nb::int_(chunk.index));
      chunks.append(nb::make_tuple(chunk.path, index, chunk.offset, chunk.bytes, chunk.expected, chunk.found));
    }
    raise("ChecksumMismatch", e, e.path, e.code, nb::tuple(chunks));
  } catch (IoError const& e) {
    raise("IoError", e, e.path, e.code);
  } catch (UnsupportedOperation const& e) {
    raise("UnsupportedOperation", e, e.operation, e.where, e.reason);
  } catch (NotFound const& e) {
    raise("NotFound", e, e.kind, e.name, nb::tuple(nb::cast(e.available)), e.reason);
  } catch (StreamCancelled const& e) {
    raise("StreamCancelled", e, e.path, e.bytes_done, e.bytes_total);
  } catch (Error const& e) {
    raise("Error", e);
  }
}

}  // namespace

void bind_errors(nb::module_& /*m*/) {
  nb::register_exception_translator(translate);
}

}  // namespace unimem::python
