// SPDX-License-Identifier: Apache-2.0
#include "hits.h"

#include <dlfcn.h>

#include <cstdint>
#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include "compiled_part.h"
#include "snapshot.h"
#include "snapshot_object.h"

namespace modcache::python {
namespace {

using ops::Answer;
using ops::LibraryCalls;
using ops::PlainCall;
using ops::Text;
using ops::Weights;

// torch's THPVariable_Wrap(const at::TensorBase&), whose argument is one pointer to the tensor.
using Wrap = PyObject* (*)(const void* tensor);
constexpr const char* kWrap = "_Z16THPVariable_WrapRKN2at10TensorBaseE";
constexpr const char* kTorchPython = "libtorch_python.so";

// The library and torch, as connect() was given them. It is leaked, since interpreters end in any
// order.
struct Connection {
  const LibraryCalls* library;
  Wrap wrap;
  PyTypeObject* tensor_type;
  PyTypeObject* parameter_type;
  Owned states;
  Owned scripted;
  Owned in_force;
  Owned outcome;
  Owned name_of_native;
  Owned name_of_known;
  Owned name_of_watch;
  Owned name_of_readiness;
};
const Connection* connection = nullptr;

// A torch.Tensor begins with its at::Tensor, which is one pointer.
void* impl_of(PyObject* tensor) {
  return *reinterpret_cast<void**>(reinterpret_cast<char*>(tensor) + sizeof(PyObject));
}

bool is_tensor(const Connection& to, PyObject* object) { return Py_TYPE(object) == to.tensor_type; }

// Returns false, with no Python error set, for text that has no UTF-8.
bool read_text(PyObject* object, Text& text) {
  if (PyUnicode_CheckExact(object) == 0) return false;
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) {
    PyErr_Clear();
    return false;
  }
  text = {data, static_cast<std::size_t>(size)};
  return true;
}

// Returns false where the input is neither a tensor nor a tuple of some.
bool read_input(const Connection& to, PyObject* input, std::vector<void*>& tensors) {
  if (is_tensor(to, input)) {
    tensors.push_back(impl_of(input));
    return true;
  }
  if (PyTuple_CheckExact(input) == 0 || PyTuple_GET_SIZE(input) == 0) return false;
  tensors.reserve(static_cast<std::size_t>(PyTuple_GET_SIZE(input)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(input); ++i) {
    PyObject* const item = PyTuple_GET_ITEM(input, i);
    if (!is_tensor(to, item)) return false;
    tensors.push_back(impl_of(item));
  }
  return true;
}

// The keys of a call, and what keeps them alive while other threads run.
class Keys {
 public:
  // Returns false where they are not plain: no str, no list of either str or int, no tensor.
  bool read(const Connection& to, PyObject* key, PlainCall& call) {
    if (PyUnicode_CheckExact(key) != 0) {
      if (!read_text(key, one_)) return false;
      call.texts = &one_;
      call.key_count = 1;
      return true;
    }
    call.is_rows = true;
    if (is_tensor(to, key)) {
      call.id_tensor = impl_of(key);
      return true;
    }
    if (PyList_CheckExact(key) == 0 || PyList_GET_SIZE(key) == 0) return false;
    call.key_count = static_cast<std::size_t>(PyList_GET_SIZE(key));
    return PyUnicode_CheckExact(PyList_GET_ITEM(key, 0)) != 0 ? read_texts(key, call)
                                                              : read_ids(key, call);
  }

 private:
  bool read_texts(PyObject* list, PlainCall& call) {
    texts_.resize(call.key_count);
    held_.reserve(call.key_count);
    for (std::size_t i = 0; i < call.key_count; ++i) {
      held_.push_back(share(PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i))));
      if (!read_text(held_.back().get(), texts_[i])) return false;
    }
    call.texts = texts_.data();
    return true;
  }

  bool read_ids(PyObject* list, PlainCall& call) {
    ids_.reserve(call.key_count);
    for (std::size_t i = 0; i < call.key_count; ++i) {
      PyObject* const item = PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i));
      if (PyLong_CheckExact(item) == 0) return false;
      int overflow = 0;
      ids_.push_back(PyLong_AsLongLongAndOverflow(item, &overflow));
      if (overflow != 0) return false;
    }
    call.ids = ids_.data();
    return true;
  }

  Text one_{};
  std::vector<Text> texts_;
  std::vector<std::int64_t> ids_;
  std::vector<Owned> held_;
};

bool refers_to(PyObject* reference, PyObject* object) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* referent = nullptr;
  if (PyWeakref_GetRef(reference, &referent) != 1) return false;
  return Owned(referent).get() == object;
#else
  return PyWeakref_GetObject(reference) == object;
#endif
}

// Returns the entry of `object` in a dict {address: (weak reference, ...)}; null: it has none.
Owned entry_of(PyObject* entries, PyObject* object) {
  const Owned address(PyLong_FromVoidPtr(object));
  if (address == nullptr) return nullptr;
  Owned entry = share(PyDict_GetItemWithError(entries, address.get()));
  if (entry == nullptr || PyTuple_CheckExact(entry.get()) == 0) return nullptr;
  PyObject* const reference = PyTuple_GET_ITEM(entry.get(), 0);
  return refers_to(reference, object) ? std::move(entry) : nullptr;
}

// Returns whether nothing is in force that the ordinary way looks for.
bool is_plain_here(const Connection& to) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(to.in_force.get()); ++i) {
    const Owned found(PyObject_CallNoArgs(PyTuple_GET_ITEM(to.in_force.get(), i)));
    if (found == nullptr || PyObject_IsTrue(found.get()) != 0) return false;
  }
  return true;
}

// Says that the call was made, and that the Python error that is set is its own.
struct RaisedByCall : std::exception {};

// Keeps the tensors of a call alive, whatever happens to the Python objects that have them.
class Retained {
 public:
  Retained(const LibraryCalls& library, const PlainCall& call)
      : library_(library), tensors_(call.inputs, call.inputs + call.input_count) {
    if (call.id_tensor != nullptr) tensors_.push_back(call.id_tensor);
    for (void* const tensor : tensors_) library_.retain(tensor);
  }
  ~Retained() {
    for (void* const tensor : tensors_) library_.release(tensor);
  }
  Retained(const Retained&) = delete;
  Retained& operator=(const Retained&) = delete;

 private:
  const LibraryCalls& library_;
  std::vector<void*> tensors_;
};

// Wraps a stored value, and releases it.
PyObject* wrapped(const Connection& to, void* found) {
  PyObject* result = nullptr;
  try {
    result = to.wrap(static_cast<const void*>(&found));
  } catch (const std::exception&) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, "torch wraps no tensor");
  }
  to.library->release(found);
  return result;
}

// Asks the library while other threads run, as it may read files. Null: there is no answer.
template <typename Find>
PyObject* ask(const Connection& to, const PlainCall& call, Find find) {
  const Retained retained(*to.library, call);
  void* found = nullptr;
  PyThreadState* const thread = PyEval_SaveThread();
  const Answer answer = find(call, &found);
  PyEval_RestoreThread(thread);
  switch (answer) {
    case Answer::kNothing: return nullptr;
    case Answer::kFound: return wrapped(to, found);
    case Answer::kBypassed: Py_INCREF(Py_NotImplemented); return Py_NotImplemented;
    case Answer::kMade: break;
  }
  PyObject* const outcome = PyObject_CallNoArgs(to.outcome.get());
  if (outcome == nullptr) throw RaisedByCall{};
  return outcome;
}

// The module as its snapshots have it. Returns false where they no longer hold.
bool read_known(const Connection& to, PyObject* known, std::vector<Owned>& tensors) {
  PyObject* const snapshots = PyTuple_GET_ITEM(known, 0);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(snapshots); ++i) {
    const Snapshot* const snapshot = snapshot_of(PyTuple_GET_ITEM(snapshots, i));
    if (snapshot == nullptr || !snapshot->add_tensors(tensors)) return false;
  }
  for (const Owned& tensor : tensors) {
    if (!is_tensor(to, tensor.get()) && Py_TYPE(tensor.get()) != to.parameter_type) return false;
  }
  return true;
}

bool has_method(PyObject* module, const Text& method, PyObject* name) {
  constexpr std::string_view kForward = "forward";
  if (std::string_view(method.data, method.size_bytes) == kForward) return true;
  const Owned found(PyObject_GetAttr(module, name));
  return found != nullptr && PyCallable_Check(found.get()) != 0;
}

// `entry`: (weak reference, state). Null, perhaps with a Python error set: no answer.
PyObject* find_eager(const Connection& to, PyObject* entry, PlainCall& call) {
  const Owned state = share(PyTuple_GET_ITEM(entry, 1));
  const Owned is_ready(PyObject_GetAttr(state.get(), to.name_of_readiness.get()));
  if (is_ready.get() != Py_True) return nullptr;
  const auto ask_library = [&] { return ask(to, call, to.library->find_eager); };
  const Owned watch(PyObject_GetAttr(state.get(), to.name_of_watch.get()));
  if (watch == nullptr) return nullptr;
  const void* const watch_address = PyLong_AsVoidPtr(watch.get());
  // With a scope, or without the cache, and without a graph, no answer depends on the module.
  const bool is_named = call.scope.size_bytes != 0;
  const bool is_off = to.library->is_off_here();
  const bool may_have_graph = to.library->is_grad_enabled();
  if (may_have_graph ? is_off && !to.library->has_hashed(watch_address) : is_named || is_off) {
    return ask_library();
  }
  const Owned known(PyObject_GetAttr(state.get(), to.name_of_known.get()));
  if (known == nullptr || known.get() == Py_None) return nullptr;
  std::vector<Owned> tensors;
  if (!read_known(to, known.get(), tensors)) return nullptr;
  std::vector<void*> impls;
  impls.reserve(tensors.size());
  for (const Owned& tensor : tensors) impls.push_back(impl_of(tensor.get()));
  const Weights weights{impls.data(), impls.size()};
  // A run of a module that is trained may be followed by a step of an optimizer that leaves no
  // trace but new bytes: its weights are hashed anew then, which is left to the ordinary way.
  if (may_have_graph && to.library->requires_grad(weights)) return nullptr;
  if (is_named) return ask_library();
  Text digest{};
  if (!read_text(PyTuple_GET_ITEM(known.get(), 2), digest) ||
      !read_text(PyTuple_GET_ITEM(known.get(), 3), call.scope)) {
    return nullptr;
  }
  if (!is_off && !to.library->still_has(watch_address, weights, digest)) return nullptr;
  return ask_library();
}

// `entry`: (weak reference, weak reference to its native part, the library's object, its address).
// Makes the whole call where there is one key.
PyObject* look_up_scripted(const Connection& to, PyObject* entry, PyObject* module,
                           PlainCall& call) {
  const Owned native(PyObject_GetAttr(module, to.name_of_native.get()));
  if (native == nullptr) return nullptr;
  if (!refers_to(PyTuple_GET_ITEM(entry, 1), native.get())) return nullptr;
  const void* const held = PyLong_AsVoidPtr(PyTuple_GET_ITEM(entry, 3));
  return ask(to, call, [&](const PlainCall& question, void** found) {
    return to.library->look_up_scripted(question, held, found);
  });
}

PyObject* find(const Connection& to, PyObject* const* arguments) {
  PyObject* const module = arguments[0];
  PlainCall call{};
  Keys keys;
  std::vector<void*> inputs;
  if (!read_input(to, arguments[1], inputs) || !read_text(arguments[3], call.scope) ||
      !read_text(arguments[4], call.method) || !keys.read(to, arguments[2], call)) {
    return nullptr;
  }
  call.inputs = inputs.data();
  call.input_count = inputs.size();
  if (!is_plain_here(to)) return nullptr;
  if (const Owned entry = entry_of(to.states.get(), module)) {
    if (!has_method(module, call.method, arguments[4])) return nullptr;
    return find_eager(to, entry.get(), call);
  }
  const Owned entry = entry_of(to.scripted.get(), module);
  return entry == nullptr ? nullptr : look_up_scripted(to, entry.get(), module, call);
}

Wrap wrap_of_torch() {
  void* const torch = dlopen(kTorchPython, RTLD_NOW | RTLD_NOLOAD);
  if (torch == nullptr) return nullptr;
  void* const found = dlsym(torch, kWrap);
  dlclose(torch);  // it was loaded before, and stays
  return reinterpret_cast<Wrap>(found);
}

// Returns whether impl_of() is what torch says of a tensor, and wrapping that gives it again.
bool fits_torch(PyObject* tensor, Wrap wrap) {
  const Owned address(PyObject_GetAttrString(tensor, "_cdata"));
  if (address == nullptr) return false;
  void* const impl = PyLong_AsVoidPtr(address.get());
  if (impl == nullptr || impl_of(tensor) != impl) return false;
  const Owned again(wrap(static_cast<const void*>(&impl)));
  return again.get() == tensor;
}

}  // namespace

PyObject* connect(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 8) {
    PyErr_SetString(PyExc_TypeError, "connect() takes 8 arguments");
    return nullptr;
  }
  const auto* library = static_cast<const LibraryCalls*>(PyLong_AsVoidPtr(arguments[0]));
  if (library == nullptr) return nullptr;
  if (library->version != LibraryCalls::kVersion) {
    PyErr_SetString(PyExc_RuntimeError, "the compiled part is for another libmodcache.so");
    return nullptr;
  }
  const Wrap wrap = wrap_of_torch();
  if (wrap == nullptr || Py_TYPE(arguments[1]) != reinterpret_cast<PyTypeObject*>(arguments[2]) ||
      !fits_torch(arguments[1], wrap)) {
    PyErr_SetString(PyExc_RuntimeError, "the compiled part does not know this torch");
    return nullptr;
  }
  auto* made = new Connection{library,
                              wrap,
                              Py_TYPE(arguments[1]),
                              reinterpret_cast<PyTypeObject*>(share(arguments[3]).release()),
                              share(arguments[4]),
                              share(arguments[5]),
                              share(arguments[6]),
                              share(arguments[7]),
                              Owned(PyUnicode_InternFromString("_c")),
                              Owned(PyUnicode_InternFromString("known")),
                              Owned(PyUnicode_InternFromString("watch_address")),
                              Owned(PyUnicode_InternFromString("is_plain"))};
  connection = made;
  Py_RETURN_NONE;
}

PyObject* find_hit(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "find_hit() takes 5 arguments");
    return nullptr;
  }
  if (connection == nullptr) Py_RETURN_NONE;
  PyObject* hit = nullptr;
  try {
    hit = find(*connection, arguments);
  } catch (const RaisedByCall&) {
    return nullptr;
  } catch (const std::exception&) {
    hit = nullptr;
  }
  if (hit != nullptr || !clear_error()) return hit;
  Py_RETURN_NONE;
}

}  // namespace modcache::python
