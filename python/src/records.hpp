#pragma once

#include <unimem/core/name.hpp>
#include <unimem/device/device.hpp>

#include <nanobind/nanobind.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "casters.hpp"

namespace unimem::python {

/// A member of a struct, by the name it has in C++ and in Python.
template <class S, class T>
struct Field {
  char const* name;
  T S::* member;
};
template <class S, class T>
Field(char const*, T S::*) -> Field<S, T>;

/// What a struct of the library's is as a read-only object of unimem._manager_records: `name`, and all its `fields` in
/// their order. Specialized where a struct is bound (bind_reports.cpp).
template <class S>
struct Record;

template <class S>
concept Recorded = requires { Record<S>::fields; };

/// The member of a Python enumeration (unimem._enums) with the same number.
template <class E>
struct EnumName;

// Each with the interpreter's lock held.
template <Recorded S>
[[nodiscard]] nanobind::object record_of(S const& value);
template <Recorded S>
[[nodiscard]] S value_of(nanobind::handle record);

/// One field, there and back.
template <class T>
struct Conversion {
  static nanobind::object to(T const& value) {
    if constexpr (Recorded<T>) {
      return record_of(value);
    } else if constexpr (std::is_enum_v<T>) {
      return nanobind::module_::import_("unimem._enums")
          .attr("member")(EnumName<T>::name, static_cast<std::size_t>(value));
    } else {
      return nanobind::cast(value);
    }
  }
  static T from(nanobind::handle value) {
    if constexpr (Recorded<T>) {
      return value_of<T>(value);
    } else if constexpr (std::is_enum_v<T>) {
      return static_cast<T>(
          nanobind::cast<std::size_t>(nanobind::module_::import_("unimem._enums").attr("number_of")(value)));
    } else {
      return nanobind::cast<T>(value);
    }
  }
};

template <>
struct Conversion<Name> {
  static nanobind::object to(Name value) { return nanobind::cast(std::string(value.view())); }
  static Name from(nanobind::handle value) { return Name(nanobind::cast<std::string>(value)); }
};

template <>
struct Conversion<Device const*> {
  static nanobind::object to(Device const* value) {
    if (value == nullptr) return nanobind::none();
    return nanobind::cast(const_cast<Device*>(value), nanobind::rv_policy::reference);  // NOLINT: Python has no const
  }
  static Device const* from(nanobind::handle value) {
    return value.is_none() ? nullptr : nanobind::cast<Device const*>(value);
  }
};

template <>
struct Conversion<Device*> : Conversion<Device const*> {};

template <class T>
struct Conversion<std::vector<T>> {
  static nanobind::object to(std::vector<T> const& values) {
    nanobind::list result;
    for (auto const& one : values) result.append(Conversion<T>::to(one));
    return nanobind::tuple(result);
  }
  static std::vector<T> from(nanobind::handle values) {
    std::vector<T> result;
    for (nanobind::handle one : values) result.push_back(Conversion<T>::from(one));
    return result;
  }
};

template <class T, std::size_t N>
struct Conversion<std::array<T, N>> {
  static nanobind::object to(std::array<T, N> const& values) {
    nanobind::list result;
    for (auto const& one : values) result.append(Conversion<T>::to(one));
    return nanobind::tuple(result);
  }
  static std::array<T, N> from(nanobind::handle values) {
    std::array<T, N> result{};
    std::size_t i = 0;
    for (nanobind::handle one : values) result.at(i++) = Conversion<T>::from(one);
    return result;
  }
};

template <Recorded S>
nanobind::object record_of(S const& value) {
  nanobind::dict fields;
  std::apply(
      [&](auto const&... one) {
        ((fields[one.name] = Conversion<std::remove_cvref_t<decltype(value.*one.member)>>::to(value.*one.member)), ...);
      },
      Record<S>::fields);
  return nanobind::module_::import_("unimem._manager_records").attr(Record<S>::name)(**fields);
}

template <Recorded S>
S value_of(nanobind::handle record) {
  S value;
  std::apply(
      [&](auto const&... one) {
        ((value.*one.member =
              Conversion<std::remove_cvref_t<decltype(value.*one.member)>>::from(record.attr(one.name))),
         ...);
      },
      Record<S>::fields);
  return value;
}

}  // namespace unimem::python
