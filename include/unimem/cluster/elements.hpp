#pragma once

#include <unimem/cluster/mpi_calls.hpp>
#include <unimem/device/detail/value_type.hpp>
#include <unimem/kernel/operand.hpp>

#include <climits>
#include <cstddef>
#include <string>

namespace unimem::mpi::detail {

/// What MPI is told of a buffer's elements: its own type for integers and floating-point numbers, bytes for all others.
struct Elements {
  MPI_Datatype type = MPI_BYTE;
  std::size_t bytes = 1;  ///< of one
  bool are_numbers = false;
};

inline Elements elements_of(ValueType value) {
  using Number = ValueType::Number;
  auto const of = [&](MPI_Datatype type) { return Elements{type, value.bytes, true}; };
  if (value.lanes == 1 && value.number == Number::floating) {
    if (value.bytes == sizeof(float)) return of(MPI_FLOAT);
    if (value.bytes == sizeof(double)) return of(MPI_DOUBLE);
  }
  if (value.lanes == 1 && (value.number == Number::signed_integer || value.number == Number::unsigned_integer)) {
    bool const is_signed = value.number == Number::signed_integer;
    switch (value.bytes) {
      case 1:
        return of(is_signed ? MPI_INT8_T : MPI_UINT8_T);
      case 2:
        return of(is_signed ? MPI_INT16_T : MPI_UINT16_T);
      case 4:
        return of(is_signed ? MPI_INT32_T : MPI_UINT32_T);
      case 8:
        return of(is_signed ? MPI_INT64_T : MPI_UINT64_T);
      default:
        break;
    }
  }
  return {};
}

/// A number for the type that is the same in every rank, for messages that tell it.
inline int type_code(ValueType value) {
  auto const number = value.lanes == 1 ? value.number : ValueType::Number::none;
  return static_cast<int>(number) * 4096 + static_cast<int>(value.total_bytes() % 4096);
}

/// Any number of elements for calls whose counts are ints: beyond INT_MAX as one element of a type made for it. So
/// they are one message on either side, which a peer that calls MPI itself can send and receive as well, and with
/// implementations of MPI-3 and MPI-4 alike.
class Counted {
 public:
  /// `most`: the largest count that a call takes.
  Counted(std::size_t count, Elements elements, std::size_t most = INT_MAX) {
    if (count <= most) {
      count_ = static_cast<int>(count);
      type_ = elements.type;
      return;
    }
    auto const blocks = count / most;
    auto const rest = count % most;
    MPI_Datatype block = MPI_DATATYPE_NULL;
    MPI_Datatype all_blocks = MPI_DATATYPE_NULL;
    check(MPI_Type_contiguous(static_cast<int>(most), elements.type, &block), "MPI_Type_contiguous");
    int const code = MPI_Type_contiguous(static_cast<int>(blocks), block, &all_blocks);
    MPI_Type_free(&block);
    check(code, "MPI_Type_contiguous");
    int const lengths[] = {1, static_cast<int>(rest)};
    MPI_Aint const offsets[] = {0, static_cast<MPI_Aint>(blocks * most * elements.bytes)};
    MPI_Datatype const types[] = {all_blocks, elements.type};
    int const made = MPI_Type_create_struct(2, lengths, offsets, types, &own_);
    MPI_Type_free(&all_blocks);
    check(made, "MPI_Type_create_struct");
    check(MPI_Type_commit(&own_), "MPI_Type_commit");
    count_ = 1;
    type_ = own_;
  }
  Counted(Counted const&) = delete;
  Counted& operator=(Counted const&) = delete;
  /// MPI keeps the type as long as a call that was given it is under way.
  ~Counted() {
    if (own_ != MPI_DATATYPE_NULL) MPI_Type_free(&own_);
  }

  [[nodiscard]] int count() const noexcept { return count_; }
  [[nodiscard]] MPI_Datatype type() const noexcept { return type_; }

 private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
  MPI_Datatype own_ = MPI_DATATYPE_NULL;
};

/// An operand, with what MPI is told of it.
struct Window {
  Window(KernelOperand const& operand)  // NOLINT(google-explicit-constructor): every call makes one of its argument
      : core(*operand.operand.buffer),
        range(operand.operand.range),
        intent(operand.operand.intent),
        value(operand.value),
        elements(elements_of(operand.value)) {}

  [[nodiscard]] std::size_t bytes() const noexcept { return range.size(); }
  [[nodiscard]] std::size_t count() const noexcept { return range.size() / elements.bytes; }

  BufferCore& core;
  ByteRange range;
  Intent intent;
  ValueType value;
  Elements elements;
};

/// Throws InvalidArgument for an operand that was given for the other direction.
inline void check_sent(Window const& window) {
  if (window.intent == Intent::write) throw InvalidArgument("what is sent", "write(…)", "read(…)");
}
inline void check_received(Window const& window) {
  if (window.intent == Intent::read) throw InvalidArgument("what receives", "read(…)", "write(…)");
}

}  // namespace unimem::mpi::detail
