// SPDX-License-Identifier: Apache-2.0
#include "connection.h"

#include <dlfcn.h>

#include <cstddef>
#include <exception>
#include <utility>

namespace modcache::python {
namespace {

using ops::LibraryCalls;

constexpr const char* kWrap = "_Z16THPVariable_WrapRKN2at10TensorBaseE";
constexpr const char* kTorchPython = "libtorch_python.so";

const Connection* the_connection = nullptr;

Wrap wrap_of_torch() {
  void* const torch = dlopen(kTorchPython, RTLD_NOW | RTLD_NOLOAD);
  if (torch == nullptr) return nullptr;
  void* const found = dlsym(torch, kWrap);
  dlclose(torch);  // it was loaded before, and stays
  return reinterpret_cast<Wrap>(found);
}

// Returns whether impl_of() is what torch says of a tensor, and wrapping that gives it again.
bool fits_torch(PyObject* tensor, Wrap wrap) {
  const Owned address(PyObject_GetAttrString(tensor, "_cdata"));
  if (address == nullptr) return false;
  void* const impl = PyLong_AsVoidPtr(address.get());
  if (impl == nullptr || impl_of(tensor) != impl) return false;
  const Owned again(wrap(static_cast<const void*>(&impl)));
  return again.get() == tensor;
}

}  // namespace

const Connection* connection() { return the_connection; }

PyObject* connect(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 7) {
    PyErr_SetString(PyExc_TypeError, "connect() takes 7 arguments");
    return nullptr;
  }
  const auto* library = static_cast<const LibraryCalls*>(PyLong_AsVoidPtr(arguments[0]));
  if (library == nullptr) return nullptr;
  if (library->version != LibraryCalls::kVersion) {
    PyErr_SetString(PyExc_RuntimeError, "the compiled part is for another libmodcache.so");
    return nullptr;
  }
  const Wrap wrap = wrap_of_torch();
  if (wrap == nullptr || Py_TYPE(arguments[1]) != reinterpret_cast<PyTypeObject*>(arguments[2]) ||
      !fits_torch(arguments[1], wrap)) {
    PyErr_SetString(PyExc_RuntimeError, "the compiled part does not know this torch");
    return nullptr;
  }
  Owned block(PyObject_GetAttrString(module, kBlock));
  Owned take_result(PyObject_GetAttrString(arguments[6], "take_result"));
  Owned run_at(PyObject_GetAttrString(arguments[6], "at"));
  if (block == nullptr || take_result == nullptr || run_at == nullptr) return nullptr;
  auto* made = new Connection{library,
                              wrap,
                              Py_TYPE(arguments[1]),
                              reinterpret_cast<PyTypeObject*>(share(arguments[3]).release()),
                              share(arguments[4]),
                              share(arguments[5]),
                              std::move(take_result),
                              std::move(run_at),
                              std::move(block),
                              Owned(PyUnicode_InternFromString("_c")),
                              Owned(PyUnicode_InternFromString("known")),
                              Owned(PyUnicode_InternFromString("plain_watch")),
                              Owned(PyUnicode_InternFromString("class_name")),
                              Owned(PyUnicode_InternFromString("functions")),
                              Owned(PyUnicode_InternFromString("_compiled_call_impl"))};
  the_connection = made;
  Py_RETURN_NONE;
}

bool read_text(PyObject* object, ops::Text& text) {
  if (PyUnicode_CheckExact(object) == 0) return false;
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) {
    PyErr_Clear();
    return false;
  }
  text = {data, static_cast<std::size_t>(size)};
  return true;
}

PyObject* wrapped(const Connection& to, void* found) {
  PyObject* result = nullptr;
  try {
    result = to.wrap(static_cast<const void*>(&found));
  } catch (const std::exception&) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, "torch wraps no tensor");
  }
  to.library->release(found);
  return result;
}

}  // namespace modcache::python
