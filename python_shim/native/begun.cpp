// SPDX-License-Identifier: Apache-2.0
#include "begun.h"

#include <structmember.h>

#include <cstddef>

#include "compiled_part.h"
#include "plain_arguments.h"

namespace modcache::python {
namespace {

PyTypeObject* begun_type = nullptr;  // held; leaked, as interpreters end in any order

struct BegunObject {
  PyObject_HEAD void* run;
  PyObject* scope;
  PyObject* value;
};

BegunObject* begun_of(PyObject* self) { return reinterpret_cast<BegunObject*>(self); }

PyObject* make(PyObject* scope, void* run, PyObject* value) {
  PyObject* const object = begun_type->tp_alloc(begun_type, 0);
  if (object == nullptr) return nullptr;
  begun_of(object)->run = run;
  begun_of(object)->scope = share(scope).release();
  begun_of(object)->value = share(value).release();
  return object;
}

void destroy(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  void* const run = begun_of(self)->run;
  if (run != nullptr) connection()->library->drop_run(run);
  Py_XDECREF(begun_of(self)->scope);
  Py_XDECREF(begun_of(self)->value);
  type->tp_free(self);
  Py_DECREF(type);
}

// Returns false, perhaps with a Python error set, where the arguments are of other types.
bool read_facts(PyObject* const* arguments, ops::Facts& facts) {
  if (!read_text(arguments[0], facts.impure_because)) return false;
  facts.requiring_grad = PyLong_AsLongLong(arguments[1]);
  if (PyErr_Occurred() != nullptr) return false;
  const int is_training = PyObject_IsTrue(arguments[2]);
  const int is_checkpointed = is_training < 0 ? -1 : PyObject_IsTrue(arguments[3]);
  facts.is_training = is_training == 1;
  facts.is_checkpointed = is_checkpointed == 1;
  return is_checkpointed >= 0;
}

PyObject* finish(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "finish() takes 5 arguments");
    return nullptr;
  }
  const Connection& to = *connection();
  void* const run = begun_of(self)->run;
  if (run == nullptr || !is_tensor(to, arguments[0])) Py_RETURN_NONE;
  ops::Facts facts{};
  if (!read_facts(arguments + 1, facts)) {
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_RETURN_NONE;
  }
  // Another thread may exchange the tensor behind the object while this one copies it.
  void* const output = impl_of(arguments[0]);
  to.library->retain(output);
  PyThreadState* const thread = PyEval_SaveThread();
  const ops::Finished finished = to.library->finish_run(run, output, facts);
  PyEval_RestoreThread(thread);
  to.library->release(output);
  if (finished == ops::Finished::kRaised) return PyObject_CallNoArgs(to.take_result.get());
  return PyBool_FromLong(finished == ops::Finished::kQuietly ? 1 : 0);
}

PyObject* abandon(PyObject* self, PyObject* /*nothing*/) {
  void* const run = begun_of(self)->run;
  if (run != nullptr) connection()->library->abandon_run(run);
  Py_RETURN_NONE;
}

PyObject* address(PyObject* self, PyObject* /*nothing*/) {
  return PyLong_FromVoidPtr(begun_of(self)->run);
}

PyObject* has_run(PyObject* self, void* /*nothing*/) {
  return PyBool_FromLong(begun_of(self)->run != nullptr ? 1 : 0);
}

PyMethodDef begun_methods[] = {
    {"finish", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(finish)), METH_FASTCALL,
     "Gives the library the result. True: there is nothing to say; None: nothing was done."},
    {"abandon", abandon, METH_NOARGS, "Lets threads go on that wait for the run."},
    {"address", address, METH_NOARGS, "Returns the address of the run; 0: there is none."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef begun_members[] = {
    {"scope", T_OBJECT, offsetof(BegunObject, scope), READONLY, "The scope, or the fingerprint."},
    {"value", T_OBJECT, offsetof(BegunObject, value), READONLY, "The stored value, tagged."},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef begun_getters[] = {
    {"has_run", has_run, nullptr, "Whether there is a run to make.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot begun_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_methods, begun_methods},
    {Py_tp_members, begun_members},
    {Py_tp_getset, begun_getters},
    {0, nullptr},
};

PyType_Spec begun_spec = {"modcache._guards.Begun", sizeof(BegunObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, begun_slots};

}  // namespace

PyObject* make_begun_type() {
  PyObject* const made = PyType_FromSpec(&begun_spec);
  begun_type = reinterpret_cast<PyTypeObject*>(share(made).release());
  return made;
}

PyObject* begun_with_run(const Connection& to, PyObject* scope, void* run) {
  PyObject* const made = make(scope, run, nullptr);
  if (made == nullptr) to.library->drop_run(run);
  return made;
}

PyObject* begun_with_value(PyObject* scope, PyObject* value) { return make(scope, nullptr, value); }

}  // namespace modcache::python
