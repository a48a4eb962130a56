// SPDX-License-Identifier: Apache-2.0
//
// Plain hits: what modcache.lookup_or_run() asks first. One call of C takes a module, tensors and
// keys, looks whether the module is what its snapshot says, and returns the stored tensor; or None
// for every other call, which then goes the ordinary way as if it had not been asked. A scripted
// module needs no Python to run, so a call of one is made there, if it has one key.
//
// It goes around torch's Python bindings: it reads the tensor behind a torch.Tensor where torch's
// own macro reads it, and wraps results with torch's own function. connect() proves both on a
// tensor, and fails where this torch has them elsewhere; hits then go the ordinary way.
//
// All functions need the GIL. The library is asked without it, as it may read files; the tensors
// that it is given are retained before, since torch.utils.swap_tensors may exchange the tensor
// behind a Python object. Errors of code that is met on the way are cleared, as the ordinary way
// meets them, too; what is no Exception (KeyboardInterrupt) is raised.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace modcache::python {

// connect(library: int, tensor: Tensor, tensor_type: type, parameter_type: type, states: dict,
//         scripted: dict, in_force: tuple, outcome: function)
// `library`: the address of ops::LibraryCalls. `tensor`: any torch.Tensor. `states`: the modules'
// states by address, `scripted`: the library's objects for scripted modules by address
// (_call/fast_path.py). `in_force`: functions whose results are true while something is in force
// that every call must see. `outcome`: returns the result of a call that the library made in full,
// or raises its exception. Raises RuntimeError where the library or torch is another one.
PyObject* connect(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

// find_hit(module, input, key, scope, method) -> value | NotImplemented | None
// NotImplemented: the mode is `off`; the call was counted, and is to be run without the cache. A
// call of a scripted module with one key is made in full, and may raise the module's own
// exceptions.
PyObject* find_hit(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

}  // namespace modcache::python
