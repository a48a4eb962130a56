// SPDX-License-Identifier: Apache-2.0
//
// Connection: where the library and torch have what plain calls need (hits.h).
//
// It goes around torch's Python bindings: impl_of() reads the tensor behind a torch.Tensor where
// torch's own macro reads it, and results are wrapped with torch's own function. connect() proves
// both on a tensor, and fails where this torch has them elsewhere; calls then go the ordinary way.
// All functions need the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "compiled_part.h"
#include "snapshot.h"

namespace modcache::python {

// torch's THPVariable_Wrap(const at::TensorBase&), whose argument is one pointer to the tensor.
using Wrap = PyObject* (*)(const void* tensor);

struct Connection {
  const ops::LibraryCalls* library;
  Wrap wrap;
  PyTypeObject* tensor_type;
  PyTypeObject* parameter_type;
  Owned states;
  Owned scripted;
  Owned take_result;
  Owned run_at;
  Owned block;  // see kBlock
  Owned name_of_native;
  Owned name_of_known;
  Owned name_of_watch;
  Owned name_of_class;
  Owned name_of_functions;
  Owned name_of_compiled;
};

// The name of the module's ContextVar that has the innermost block of keys, or None.
inline constexpr const char* kBlock = "block";

// Null until connect() has succeeded. Never freed, since interpreters end in any order.
const Connection* connection();

// connect(library: int, tensor: Tensor, tensor_type: type, parameter_type: type, states: dict,
//         scripted: dict, run: class)
// `library`: the address of ops::LibraryCalls. `tensor`: any torch.Tensor. `states`: the modules'
// states by address, `scripted`: the library's objects for scripted modules by address
// (_call/fast_path.py). `run`: torch.classes.cache.Run. Raises RuntimeError where the library or
// torch is another one.
PyObject* connect(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

// The c10::TensorImpl of a tensor. REQUIRES: is_tensor(), or it is a parameter.
inline void* impl_of(PyObject* tensor) {
  // A torch.Tensor begins with its at::Tensor, which is one pointer.
  return *reinterpret_cast<void**>(reinterpret_cast<char*>(tensor) + sizeof(PyObject));
}

// Returns whether the object is a torch.Tensor itself, of no subclass.
inline bool is_tensor(const Connection& to, PyObject* object) {
  return Py_TYPE(object) == to.tensor_type;
}

// Reads a str as UTF-8, which lives as long as the object. Returns false, with no Python error set,
// where it is no str, or has no UTF-8.
bool read_text(PyObject* object, ops::Text& text);

// Wraps a tensor that the library gave, and releases it. Null: a Python error is set.
PyObject* wrapped(const Connection& to, void* found);

}  // namespace modcache::python
