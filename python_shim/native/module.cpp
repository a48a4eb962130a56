// SPDX-License-Identifier: Apache-2.0
//
// The Python module modcache._guards: the classes Snapshot (snapshot.h) and CallObserver
// (call_observer.h), and constants for places and expected values.
#include <exception>
#include <memory>
#include <new>

#include "call_observer.h"
#include "snapshot.h"

namespace modcache::python {
namespace {

struct SnapshotObject {
  PyObject_HEAD Snapshot* snapshot;
};

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  PyObject* guards = nullptr;
  PyObject* order = nullptr;
  static const char* names[] = {"guards", "order", nullptr};
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "OO:Snapshot", const_cast<char**>(names),
                                  &guards, &order) == 0) {
    return nullptr;
  }
  try {
    auto snapshot = std::make_unique<Snapshot>(guards, order);
    PyObject* object = type->tp_alloc(type, 0);
    if (object == nullptr) return nullptr;
    reinterpret_cast<SnapshotObject*>(object)->snapshot = snapshot.release();
    return object;
  } catch (const PythonError&) {
    return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<SnapshotObject*>(self)->snapshot;
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* tensors(PyObject* self, PyObject* /*nothing*/) {
  PyObject* found = reinterpret_cast<SnapshotObject*>(self)->snapshot->tensors();
  if (found != nullptr) return found;
  // After any error the module is looked at in full.
  PyErr_Clear();
  Py_RETURN_NONE;
}

PyMethodDef snapshot_methods[] = {
    {"tensors", tensors, METH_NOARGS,
     "Returns the module's tensors, in order; None if anything changed."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot snapshot_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_methods, snapshot_methods},
    {0, nullptr},
};

PyType_Spec snapshot_spec = {"modcache._guards.Snapshot", sizeof(SnapshotObject), 0,
                             Py_TPFLAGS_DEFAULT, snapshot_slots};

struct Constant {
  const char* name;
  int value;
};

template <typename Enum>
constexpr Constant constant(const char* name, Enum value) {
  return {name, static_cast<int>(value)};
}

constexpr Constant kConstants[] = {
    constant("ANYTHING", Expect::kAnything),
    constant("NOTHING", Expect::kNothing),
    constant("VALUE", Expect::kValue),
    constant("OBJECT", Expect::kObject),
    constant("TENSOR", Expect::kTensor),
    constant("ITEMS", Expect::kItems),
    constant("MAPPING", Expect::kMapping),
    constant("PARTS", Expect::kParts),
    constant("IN_ATTRIBUTES", Place::kAttributes),
    constant("IN_CLASS", Place::kClass),
    constant("IN_MEMBER", Place::kMember),
    constant("IN_MEMBER_PART", Place::kMemberPart),
    constant("IN_GLOBAL", Place::kGlobal),
    constant("IN_CELL", Place::kCell),
    constant("IN_FUNCTION", Place::kFunction),
    constant("IN_ITEM", Place::kItem),
    constant("IN_ATTRIBUTE", Place::kAttribute),
};

using MayTakeFastPath = int (*)();
MayTakeFastPath may_take_fast_path_function = nullptr;

PyObject* connect(PyObject* /*module*/, PyObject* address) {
  void* const pointer = PyLong_AsVoidPtr(address);
  if (pointer == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  may_take_fast_path_function = reinterpret_cast<MayTakeFastPath>(pointer);
  Py_RETURN_NONE;
}

PyObject* may_take_fast_path(PyObject* /*module*/, PyObject* /*nothing*/) {
  return PyBool_FromLong(may_take_fast_path_function != nullptr ? may_take_fast_path_function()
                                                                : 0);
}

PyMethodDef functions[] = {
    {"connect", connect, METH_O,
     "Sets the address of the function that answers may_take_fast_path()."},
    {"may_take_fast_path", may_take_fast_path, METH_NOARGS,
     "Whether the mode of this thread allows to return a stored value without a run."},
    {"note_harmless", note_harmless, METH_O, "No CallObserver reports this code object again."},
    {"pass_over", pass_over, METH_O, "No CallObserver reports this code, nor code inside of it."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "modcache._guards",
    "Compares an eager module with a snapshot of it; see snapshot.h.",
    -1,
    functions,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

PyObject* create() {
  Owned made(PyModule_Create(&definition));
  if (made == nullptr) return nullptr;
  const Owned type(PyType_FromSpec(&snapshot_spec));
  if (type == nullptr || PyModule_AddObjectRef(made.get(), "Snapshot", type.get()) != 0) {
    return nullptr;
  }
  const Owned observer(make_call_observer_type());
  if (observer == nullptr ||
      PyModule_AddObjectRef(made.get(), "CallObserver", observer.get()) != 0) {
    return nullptr;
  }
  for (const Constant& constant : kConstants) {
    if (PyModule_AddIntConstant(made.get(), constant.name, constant.value) != 0) return nullptr;
  }
  return made.release();
}

}  // namespace
}  // namespace modcache::python

// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): Python looks for it
PyMODINIT_FUNC PyInit__guards() { return modcache::python::create(); }
