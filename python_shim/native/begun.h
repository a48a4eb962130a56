// SPDX-License-Identifier: Apache-2.0
//
// The class modcache._guards.Begun: a call of an eager module with one key that the library looked
// up, and that is no plain hit. It has either the stored value, which is no lone tensor, or the run
// that the library began, which Python makes (_call/begun.py). A run that is neither finished nor
// released is abandoned at the latest when the object is freed. All functions need the GIL.
//
//     scope: str  of the call, or the module's fingerprint
//     value       tagged (_call/tagged.py); None where there is a run
//     has_run: bool
//     finish(output, impure_because, requiring_grad, is_training, is_checkpointed) -> bool | None
//         Gives the library the result. True: there is nothing to say. False: Run.outcome() says
//         it. None: the output is no plain tensor, and nothing was done. Raises what the library
//         raises.
//     release() -> int  the run as Run.adopt() takes it; it is no longer this object's
//     abandon()
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "connection.h"

namespace modcache::python {

// Returns the class: a new reference, or null with a Python error set. Call it once.
PyObject* make_begun_type();

// Returns a call with a run, which it owns from now on, also where it fails. Null: a Python error
// is set.
PyObject* begun_with_run(const Connection& to, PyObject* scope, void* run);
PyObject* begun_with_value(PyObject* scope, PyObject* value);

}  // namespace modcache::python
