// SPDX-License-Identifier: Apache-2.0
//
// CallObserver: records which Python code a thread runs between start() and stop().
//
// It is installed as the thread's profiler, and passes every event on to the profiler that was
// there before. It records calls of Python functions on its own thread. It records neither compiled
// code nor other threads, nor code that note_harmless() was called with.
//
// All functions need the GIL, and none throws. Freeing an observer stops it.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace modcache::python {

// Returns the class CallObserver: a new reference, or null with a Python error set.
PyObject* make_call_observer_type();

// note_harmless(code): no observer reports this code object again. It is kept alive.
// pass_over(code): no observer reports this code object, nor code that runs inside of it.
PyObject* note_harmless(PyObject* module, PyObject* code);
PyObject* pass_over(PyObject* module, PyObject* code);

}  // namespace modcache::python
