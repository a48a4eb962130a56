// SPDX-License-Identifier: Apache-2.0
#include "begun.h"

#include <structmember.h>

#include <cstddef>

#include "compiled_part.h"
#include "connection.h"

namespace modcache::python {
namespace {

PyTypeObject* begun_type = nullptr;  // held; leaked, as interpreters end in any order

struct BegunObject {
  PyObject_HEAD void* run;
  PyObject* scope;
  PyObject* value;
  char is_apart;
};

BegunObject* begun_of(PyObject* self) { return reinterpret_cast<BegunObject*>(self); }

PyObject* make(PyObject* scope, void* run, PyObject* value, bool is_apart) {
  PyObject* const object = begun_type->tp_alloc(begun_type, 0);
  if (object == nullptr) return nullptr;
  begun_of(object)->run = run;
  begun_of(object)->scope = share(scope).release();
  begun_of(object)->value = share(value).release();
  begun_of(object)->is_apart = is_apart ? 1 : 0;
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

// The library's Run, which is shared with this object.
Owned whole_run_of(PyObject* self) {
  const Owned address(PyLong_FromVoidPtr(begun_of(self)->run));
  if (address == nullptr) return nullptr;
  return Owned(PyObject_CallOneArg(connection()->run_at.get(), address.get()));
}

// Methods of the Run are those of this object, too.
PyObject* attribute_of(PyObject* self, PyObject* name) {
  PyObject* const own = PyObject_GenericGetAttr(self, name);
  if (own != nullptr || PyErr_ExceptionMatches(PyExc_AttributeError) == 0) return own;
  PyErr_Clear();
  const Owned run = whole_run_of(self);
  return run == nullptr ? nullptr : PyObject_GetAttr(run.get(), name);
}

// finish(output, impure_because, requiring_grad, is_training, is_checkpointed)
PyObject* finish(PyObject* self, PyObject* arguments) {
  const Connection& to = *connection();
  ops::Facts facts{};
  PyObject* output = nullptr;
  Py_ssize_t size = 0;
  long long requiring_grad = 0;
  int is_training = 0;
  int is_checkpointed = 0;
  if (PyArg_ParseTuple(arguments, "Os#Lpp:finish", &output, &facts.impure_because.data, &size,
                       &requiring_grad, &is_training, &is_checkpointed) == 0) {
    return nullptr;
  }
  void* const run = begun_of(self)->run;
  if (run == nullptr || !is_tensor(to, output)) {
    const Owned whole = whole_run_of(self);
    const Owned method(whole == nullptr ? nullptr : PyObject_GetAttrString(whole.get(), "finish"));
    return method == nullptr ? nullptr : PyObject_Call(method.get(), arguments, nullptr);
  }
  facts.impure_because.size_bytes = static_cast<std::size_t>(size);
  facts.requiring_grad = requiring_grad;
  facts.is_training = is_training != 0;
  facts.is_checkpointed = is_checkpointed != 0;
  // Another thread may exchange the tensor behind the object while this one copies it.
  void* const tensor = impl_of(output);
  to.library->retain(tensor);
  PyThreadState* const thread = PyEval_SaveThread();
  const ops::Finished finished = to.library->finish_run(run, tensor, facts);
  PyEval_RestoreThread(thread);
  to.library->release(tensor);
  if (finished == ops::Finished::kRaised) return PyObject_CallNoArgs(to.take_result.get());
  if (finished == ops::Finished::kQuietly) return Py_BuildValue("(Oss)", Py_False, "", "");
  const Owned whole = whole_run_of(self);
  return whole == nullptr ? nullptr : PyObject_CallMethod(whole.get(), "outcome", nullptr);
}

PyObject* address(PyObject* self, PyObject* /*nothing*/) {
  return PyLong_FromVoidPtr(begun_of(self)->run);
}

PyObject* has_run(PyObject* self, void* /*nothing*/) {
  return PyBool_FromLong(begun_of(self)->run != nullptr ? 1 : 0);
}

PyMethodDef begun_methods[] = {
    {"finish", finish, METH_VARARGS, "Gives the library the result, and returns Run.outcome()."},
    {"address", address, METH_NOARGS, "Returns the address of the run; 0: there is none."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef begun_members[] = {
    {"scope", T_OBJECT, offsetof(BegunObject, scope), READONLY, "The scope, or the fingerprint."},
    {"value", T_OBJECT, offsetof(BegunObject, value), READONLY, "The stored value, tagged."},
    {"is_apart", T_BOOL, offsetof(BegunObject, is_apart), READONLY, "The value is a list of rows."},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef begun_getters[] = {
    {"has_run", has_run, nullptr, "Whether there is a run to make.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot begun_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_getattro, reinterpret_cast<void*>(attribute_of)},
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
  PyObject* const made = make(scope, run, nullptr, /*is_apart=*/false);
  if (made == nullptr) to.library->drop_run(run);
  return made;
}

PyObject* begun_with_value(PyObject* scope, PyObject* value, bool is_apart) {
  return make(scope, nullptr, value, is_apart);
}

}  // namespace modcache::python
