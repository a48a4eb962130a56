// SPDX-License-Identifier: Apache-2.0
//
// The fast path of modcache.lookup_or_run(). find_hit() takes a module, tensors and keys, compares
// the module with its snapshot, and returns the stored tensor; or None for any other call, which
// then takes the full path, and nothing has changed. Three kinds of calls go further: an eager
// module with one key begins its run where nothing is stored; a scripted module with one key, which
// needs no Python to run, is called; and so is an eager module in mode `off`.
//
// All functions need the GIL. The library is asked without it, as it may read files; the tensors
// that it is given are retained before, since torch.utils.swap_tensors may exchange the tensor
// behind a Python object. Errors of code that is met on the way are cleared, as the ordinary way
// meets them, too; what is no Exception (KeyboardInterrupt) is raised.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace modcache::python {

// find_hit(module, input, key, scope, method) -> value | Begun | NotImplemented | None
// `key`: with None only the mode `off` is answered. Begun: the library looked the call up, and
// Python continues it (begun.h). NotImplemented: the call bypasses the cache and was counted, and
// Python has to run it. Raises the exceptions of a module that it calls.
PyObject* find_hit(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

}  // namespace modcache::python
