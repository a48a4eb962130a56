// SPDX-License-Identifier: Apache-2.0
//
// The class modcache._guards.Begun: a call of an eager module with one key that the library looked
// up, and that is no plain hit. It has either the stored value, which is no lone tensor, or the run
// that the library began, which Python makes (_call/begun.py). A run that was not finished is
// abandoned at the latest when the object is freed. All functions need the GIL; one thread uses the
// object at a time, as finish() does its work without the GIL.
//
//     scope: str  of the call, or the module's fingerprint
//     value       tagged (_call/tagged.py); None where there is a run
//     has_run: bool
//     finish(output, impure_because, requiring_grad, is_training, is_checkpointed)
//         Gives the library the result, and returns what Run.finish() does. A plain tensor goes to
//         the library without torch's conversion of arguments.
//     address() -> int  of the run, for Run.at(), which shares it; 0: there is none
//     other attributes are those of the Run
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "connection.h"

namespace modcache::python {

// Returns the class: a new reference, or null with a Python error set. Call it once.
PyObject* make_begun_type();

// Both return a new reference; null: a Python error is set. A run is the object's from now on, also
// where that fails.
PyObject* begun_with_run(const Connection& to, PyObject* scope, void* run);
PyObject* begun_with_value(PyObject* scope, PyObject* value, bool is_apart = false);

}  // namespace modcache::python
