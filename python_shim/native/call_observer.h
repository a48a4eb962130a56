// SPDX-License-Identifier: Apache-2.0
//
// CallObserver: which Python code a thread runs, between start() and stop().
//
// It stands where a profiler does, and hands every event on to the profiler that it found there. It
// sees calls of Python functions on its own thread; neither what compiled code does, nor what other
// threads do. Code that note_harmless() was told of is passed over in every later run.
//
// All functions need the GIL, and none throws. An observer that dies while it observes has stopped.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace modcache::python {

// The class CallObserver: a new reference, or null with a Python error set.
PyObject* make_call_observer_type();

// note_harmless(code): this code object is not to be reported again. It is kept alive.
// pass_over(code): nor is what runs while this one does.
PyObject* note_harmless(PyObject* module, PyObject* code);
PyObject* pass_over(PyObject* module, PyObject* code);

}  // namespace modcache::python
