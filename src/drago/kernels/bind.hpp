// From NumPy arrays to views. An argument of another type, order or number of axes is refused with
// a TypeError, never copied: most of them are written to.
//
// An array is read through NumPy's own struct, not by `nb::ndarray`, which makes an exchange object
// for each argument: that costs more than the work on a few hundred rows.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <numpy/ndarraytypes.h>

#include <cstdint>
#include <variant>

#include "views.hpp"

namespace nb = nanobind;

namespace drago {

// An argument: it belongs to the caller, who keeps it while the function runs.
template <class T, int axes>
struct Array {
    using Entry = T;
    static constexpr int ndim = axes;

    T* entries = nullptr;
    std::size_t sizes[axes] = {};

    T* data() const { return entries; }
    std::size_t shape(int axis) const { return sizes[axis]; }
    std::size_t size() const {
        std::size_t product = 1;
        for (std::size_t one : sizes) product *= one;
        return product;
    }
};

template <class T>
using Array1 = Array<T, 1>;
template <class T>
using Array2 = Array<T, 2>;

using InArray = Array1<const double>;
using OutArray = Array1<double>;

// Arguments of either type. A function of them is bound once for both: what nanobind makes of one
// with twenty arguments takes longer to compile than what it does.
using AnyMatrix = std::variant<Array2<const double>, Array2<const float>>;
using AnyVector = std::variant<Array1<const double>, Array1<const float>>;
using AnyInts = std::variant<Array1<const std::int32_t>, Array1<const std::int64_t>>;

template <class T>
Vec<T> view(const Array1<T>& array) {
    return {array.data(), static_cast<Index>(array.shape(0))};
}

template <class T>
Mat<T> view(const Array2<T>& array) {
    return {array.data(), static_cast<Index>(array.shape(0)), static_cast<Index>(array.shape(1))};
}

// Whether NumPy's number of a type is that of T; C has two integers of the same size.
template <class T>
bool is_type(int number) {
    if constexpr (std::is_same_v<T, bool>) return number == NPY_BOOL;
    if constexpr (std::is_same_v<T, double>) return number == NPY_DOUBLE;
    if constexpr (std::is_same_v<T, float>) return number == NPY_FLOAT;
    if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
        return (number == NPY_BYTE && sizeof(T) == 1) || (number == NPY_INT && sizeof(T) == 4) ||
               (number == NPY_LONG && sizeof(T) == sizeof(long)) ||
               (number == NPY_LONGLONG && sizeof(T) == 8);
    }
    if constexpr (std::is_integral_v<T> && !std::is_signed_v<T> && !std::is_same_v<T, bool>) {
        return (number == NPY_UBYTE && sizeof(T) == 1) || (number == NPY_UINT && sizeof(T) == 4) ||
               (number == NPY_ULONG && sizeof(T) == sizeof(long)) ||
               (number == NPY_ULONGLONG && sizeof(T) == 8);
    }
    return false;
}

inline PyTypeObject* array_type() {
    // Kept for good, as the module is.
    static PyTypeObject* const found = reinterpret_cast<PyTypeObject*>(
        nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr());
    return found;
}

// Not inlined: it would be compiled for each argument of each function.
template <class A>
[[gnu::noinline]] bool read_array(PyObject* source, A& out) {
    using T = typename A::Entry;
    if (!PyObject_TypeCheck(source, array_type())) return false;
    auto* array = reinterpret_cast<PyArrayObject*>(source);
    int needed = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
    if (!std::is_const_v<T>) needed |= NPY_ARRAY_WRITEABLE;
    if (PyArray_NDIM(array) != A::ndim || (PyArray_FLAGS(array) & needed) != needed) return false;
    // PyArray_ISBYTESWAPPED needs the imported API of NumPy from 2.5 on.
    const bool is_native = PyArray_ISNBO(PyArray_DESCR(array)->byteorder);
    if (!is_type<std::remove_const_t<T>>(PyArray_TYPE(array)) || !is_native) return false;
    out.entries = static_cast<T*>(PyArray_DATA(array));
    for (int k = 0; k < A::ndim; ++k)
        out.sizes[k] = static_cast<std::size_t>(PyArray_DIMS(array)[k]);
    return true;
}

// Nominal weights are one for each row, or one for all.
inline void require_shares(const InArray& p, const InArray& rows) {
    if (p.size() != rows.size() && p.size() != 1)
        throw nb::value_error("p must have one entry, or one for each row");
}

inline void require_share_of_each(const InArray& p, const InArray& rows) {
    if (p.size() != rows.size()) throw nb::value_error("p must have one entry for each row");
}

// Sparse rows of any types.
using AnyCsr = std::variant<Csr<double, std::int32_t>, Csr<double, std::int64_t>,
                            Csr<float, std::int32_t>, Csr<float, std::int64_t>>;
AnyCsr csr(const AnyVector& data, const AnyInts& indices, const AnyInts& indptr);

// A new NumPy vector that owns its entries.
template <class T>
using NewVector = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T = double>
NewVector<T> new_vector(Index size) {
    T* data = new T[static_cast<std::size_t>(size)];
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return {data, {static_cast<std::size_t>(size)}, owner};
}

// Each file of bindings adds its functions.
void bind_classes(nb::module_& m);
void bind_files(nb::module_& m);
void bind_oracles(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_steps(nb::module_& m);
void bind_stochastic(nb::module_& m);
void bind_visits(nb::module_& m);

}  // namespace drago

namespace nanobind::detail {

template <class T, int axes>
struct type_caster<drago::Array<T, axes>> {
    using Given = drago::Array<T, axes>;
    NB_TYPE_CASTER(Given, const_name("numpy.ndarray"))

    bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
        return drago::read_array(source.ptr(), value);
    }
};

// The first of these that it is.
template <class... T, int axes>
struct type_caster<std::variant<drago::Array<T, axes>...>> {
    using Given = std::variant<drago::Array<T, axes>...>;
    NB_TYPE_CASTER(Given, const_name("numpy.ndarray"))

    bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
        return (drago::read_array(source.ptr(), value.template emplace<drago::Array<T, axes>>()) ||
                ...);
    }
};

}  // namespace nanobind::detail
