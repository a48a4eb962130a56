// SPDX-License-Identifier: Apache-2.0
#include "snapshot_object.h"

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <vector>

namespace modcache::python {
namespace {

PyTypeObject* snapshot_type = nullptr;  // held; leaked, as interpreters end in any order

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

PyObject* list_of(std::vector<Owned>& tensors) {
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(tensors.size()));
  if (list == nullptr) return nullptr;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), tensors[i].release());
  }
  return list;
}

PyObject* tensors(PyObject* self, PyObject* /*nothing*/) {
  try {
    std::vector<Owned> found;
    if (reinterpret_cast<SnapshotObject*>(self)->snapshot->add_tensors(found)) {
      PyObject* const list = list_of(found);
      if (list != nullptr) return list;
    }
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  if (!clear_error()) return nullptr;
  Py_RETURN_NONE;  // after any error the module is looked at in full
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

}  // namespace

PyObject* make_snapshot_type() {
  PyObject* const made = PyType_FromSpec(&snapshot_spec);
  snapshot_type = reinterpret_cast<PyTypeObject*>(share(made).release());
  return made;
}

const Snapshot* snapshot_of(PyObject* object) {
  if (Py_TYPE(object) != snapshot_type) return nullptr;
  return reinterpret_cast<SnapshotObject*>(object)->snapshot;
}

}  // namespace modcache::python
