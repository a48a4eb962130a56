// SPDX-License-Identifier: Apache-2.0
//
// Plain calls: what modcache.lookup_or_run() asks first. One call of C takes a module, tensors and
// keys, looks whether the module is what its snapshot says, and returns the stored tensor; or None
// for every other call, which then goes the ordinary way as if it had not been asked. Two calls
// with one key go further: that of an eager module begins the run where nothing is stored, and that
// of a scripted module, which needs no Python to run, is made in full.
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
// Begun: the library looked the call up, and Python goes on with it (begun.h). NotImplemented: the
// mode is `off`; the call was counted, and is to be run without the cache. A call of a scripted
// module with one key is made in full, and may raise the module's own exceptions.
PyObject* find_hit(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

}  // namespace modcache::python
