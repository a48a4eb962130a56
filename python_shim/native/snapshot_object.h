// SPDX-License-Identifier: Apache-2.0
//
// The class modcache._guards.Snapshot (snapshot.h). All functions need the GIL, and none throws.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "snapshot.h"

namespace modcache::python {

// Returns the class: a new reference, or null with a Python error set. Call it once.
PyObject* make_snapshot_type();

// Returns the snapshot that the object owns; null for an object of another class.
const Snapshot* snapshot_of(PyObject* object);

}  // namespace modcache::python
