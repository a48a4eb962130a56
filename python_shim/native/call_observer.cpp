// SPDX-License-Identifier: Apache-2.0
#include "call_observer.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "snapshot.h"

namespace modcache::python {
namespace {

// A program that makes code endlessly must not fill the memory. At this size the set is emptied,
// and all code is reported once more.
constexpr std::size_t kMostHarmless = 1U << 18U;

// The set is leaked, since interpreters end in any order.
std::unordered_set<PyObject*>& harmless() {
  static auto* const codes = new std::unordered_set<PyObject*>;
  return *codes;
}

// These are few, and never removed. The vector is leaked, too.
std::vector<PyObject*>& passed_over() {
  static auto* const codes = new std::vector<PyObject*>;
  return *codes;
}

bool is_passed_over(PyObject* code) {
  const auto& codes = passed_over();
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

struct ObserverObject {
  PyObject_HEAD std::unordered_map<PyObject*, PyObject*>* seen;  // code -> globals, both held
  Py_tracefunc previous;
  PyObject* previous_argument;  // held
  PyThreadState* thread;        // null: the observer is stopped
  Py_ssize_t depth;             // of nested calls of code that is passed over
};

ObserverObject* observer_of(PyObject* self) { return reinterpret_cast<ObserverObject*>(self); }

void note_call(ObserverObject* observer, PyFrameObject* frame) {
  auto* code = reinterpret_cast<PyObject*>(PyFrame_GetCode(frame));
  const Owned kept(code);
  if (is_passed_over(code)) ++observer->depth;
  if (observer->depth != 0) return;
  if (harmless().count(code) != 0 || observer->seen->count(code) != 0) return;
  Owned globals(PyFrame_GetGlobals(frame));
  if (globals == nullptr) {
    PyErr_Clear();
    return;
  }
  observer->seen->emplace(code, globals.get());
  globals.release();  // NOLINT(bugprone-unused-return-value): `seen` holds it
  Py_INCREF(code);
}

void note_return(ObserverObject* observer, PyFrameObject* frame) {
  const Owned code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  if (is_passed_over(code.get())) --observer->depth;
}

int on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* argument) {
  ObserverObject* observer = observer_of(self);
  if (what == PyTrace_CALL) {
    try {
      note_call(observer, frame);
    } catch (const std::exception&) {
      PyErr_NoMemory();
      return -1;
    }
  } else if (what == PyTrace_RETURN && observer->depth != 0) {
    note_return(observer, frame);
  }
  if (observer->previous == nullptr) return 0;
  return observer->previous(observer->previous_argument, frame, what, argument);
}

PyObject* make_observer(PyTypeObject* type, PyObject* /*arguments*/, PyObject* /*keywords*/) {
  PyObject* object = type->tp_alloc(type, 0);
  if (object == nullptr) return nullptr;
  observer_of(object)->seen = new (std::nothrow) std::unordered_map<PyObject*, PyObject*>;
  if (observer_of(object)->seen != nullptr) return object;
  Py_DECREF(object);
  return PyErr_NoMemory();
}

void forget_seen(ObserverObject* observer) {
  if (observer->seen == nullptr) return;
  std::unordered_map<PyObject*, PyObject*> seen;
  seen.swap(*observer->seen);
  // NOLINTNEXTLINE(bugprone-nondeterministic-pointer-iteration-order): any order will do
  for (const auto& [code, globals] : seen) {
    Py_DECREF(code);
    Py_DECREF(globals);
  }
}

void destroy_observer(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  forget_seen(observer_of(self));
  delete observer_of(self)->seen;
  Py_XDECREF(observer_of(self)->previous_argument);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* start(PyObject* self, PyObject* /*nothing*/) {
  ObserverObject* observer = observer_of(self);
  PyThreadState* thread = PyThreadState_Get();
  if (observer->thread != nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "it observes already");
    return nullptr;
  }
  observer->thread = thread;
  observer->depth = 0;
  observer->previous = thread->c_profilefunc;
  observer->previous_argument = share(thread->c_profileobj).release();
  PyEval_SetProfile(on_event, self);
  Py_RETURN_NONE;
}

// Installs the previous profiler again, unless another one was installed meanwhile.
void restore(ObserverObject* observer, PyObject* self) {
  PyThreadState* thread = PyThreadState_Get();
  const Owned previous(observer->previous_argument);
  observer->previous_argument = nullptr;
  const Py_tracefunc function = observer->previous;
  observer->previous = nullptr;
  const bool is_ours = thread == observer->thread && thread->c_profilefunc == on_event &&
                       thread->c_profileobj == self;
  observer->thread = nullptr;
  if (is_ours) PyEval_SetProfile(function, previous.get());
}

PyObject* stop(PyObject* self, PyObject* /*nothing*/) {
  ObserverObject* observer = observer_of(self);
  if (observer->thread != nullptr) restore(observer, self);
  Owned found(PyList_New(0));
  if (found == nullptr) return nullptr;
  for (const auto& [code, globals] : *observer->seen) {
    const Owned pair(PyTuple_Pack(2, code, globals));
    if (pair == nullptr || PyList_Append(found.get(), pair.get()) != 0) return nullptr;
  }
  forget_seen(observer);
  return found.release();
}

PyMethodDef observer_methods[] = {
    {"start", start, METH_NOARGS, "Starts recording this thread's calls."},
    {"stop", stop, METH_NOARGS,
     "Stops, and returns the code that ran since start(), with its globals, without harmless "
     "code."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot observer_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(make_observer)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy_observer)},
    {Py_tp_methods, observer_methods},
    {0, nullptr},
};

PyType_Spec observer_spec = {"modcache._guards.CallObserver", sizeof(ObserverObject), 0,
                             Py_TPFLAGS_DEFAULT, observer_slots};

}  // namespace

PyObject* make_call_observer_type() { return PyType_FromSpec(&observer_spec); }

PyObject* pass_over(PyObject* /*module*/, PyObject* code) {
  if (PyCode_Check(code) == 0) {
    PyErr_SetString(PyExc_TypeError, "pass_over() takes a code object");
    return nullptr;
  }
  try {
    if (!is_passed_over(code)) {
      passed_over().push_back(code);
      Py_INCREF(code);
    }
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

PyObject* note_harmless(PyObject* /*module*/, PyObject* code) {
  if (PyCode_Check(code) == 0) {
    PyErr_SetString(PyExc_TypeError, "note_harmless() takes a code object");
    return nullptr;
  }
  try {
    if (harmless().size() >= kMostHarmless) {
      std::unordered_set<PyObject*> codes;
      codes.swap(harmless());
      // NOLINTNEXTLINE(bugprone-nondeterministic-pointer-iteration-order): any order will do
      for (PyObject* each : codes) Py_DECREF(each);
    }
    if (harmless().insert(code).second) Py_INCREF(code);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

}  // namespace modcache::python
