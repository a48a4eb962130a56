// SPDX-License-Identifier: Apache-2.0
#include "hits.h"

#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include "begun.h"
#include "compiled_part.h"
#include "connection.h"
#include "plain_arguments.h"
#include "snapshot.h"
#include "snapshot_object.h"

namespace modcache::python {
namespace {

using ops::Answer;
using ops::LibraryCalls;
using ops::PlainCall;
using ops::Text;
using ops::Weights;

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

// Asks the library while other threads run, as it may read files. `scope`: that of the call. Null:
// there is no answer.
template <typename Find>
PyObject* ask(const Connection& to, const PlainCall& call, PyObject* scope, Find find) {
  const Retained retained(*to.library, call);
  void* found = nullptr;
  PyThreadState* const thread = PyEval_SaveThread();
  const Answer answer = find(call, &found);
  PyEval_RestoreThread(thread);
  switch (answer) {
    case Answer::kNothing: return nullptr;
    case Answer::kFound: return wrapped(to, found);
    case Answer::kBypassed: Py_INCREF(Py_NotImplemented); return Py_NotImplemented;
    case Answer::kBegun: return begun_with_run(to, scope, found);
    case Answer::kMade:
    case Answer::kTagged: break;
  }
  Owned outcome(PyObject_CallNoArgs(to.outcome.get()));
  if (outcome == nullptr) throw RaisedByCall{};
  return answer == Answer::kMade ? outcome.release() : begun_with_value(scope, outcome.get());
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

// An eager module that is known, in a call.
struct EagerCall {
  const Connection& to;
  PlainCall& call;
  PyObject* state;
  PyObject* scope;  // as given
  const void* watch;
};

// Has the call begin its run where nothing is stored, if it has one key and one tensor, and the
// module has a name, which its first call gives it. The text lives as long as what is returned;
// null: a Python error is set.
Owned let_begin(const EagerCall& eager) {
  Owned name(PyObject_GetAttr(eager.state, eager.to.name_of_class.get()));
  Text text{};
  if (name == nullptr) return nullptr;
  const bool is_simple = !eager.call.is_rows && eager.call.input_count == 1;
  if (is_simple && read_text(name.get(), text)) eager.call.class_name = text;
  return name;
}

// The same for a module whose identity or gradients matter. `is_named`: the caller gave the scope.
PyObject* find_known(const EagerCall& eager, bool is_named, bool is_off, bool may_have_graph) {
  const Connection& to = eager.to;
  const Owned known(PyObject_GetAttr(eager.state, to.name_of_known.get()));
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
  if (is_named) return ask(to, eager.call, eager.scope, to.library->find_eager);
  Text digest{};
  PyObject* const fingerprint = PyTuple_GET_ITEM(known.get(), 3);
  if (!read_text(PyTuple_GET_ITEM(known.get(), 2), digest) ||
      !read_text(fingerprint, eager.call.scope)) {
    return nullptr;
  }
  if (!is_off && !to.library->still_has(eager.watch, weights, digest)) return nullptr;
  eager.call.watch = eager.watch;
  return ask(to, eager.call, fingerprint, to.library->find_eager);
}

// `entry`: (weak reference, state). Null, perhaps with a Python error set: no answer.
PyObject* find_eager(const Connection& to, PyObject* entry, PyObject* scope, PlainCall& call) {
  const Owned state = share(PyTuple_GET_ITEM(entry, 1));
  const Owned is_ready(PyObject_GetAttr(state.get(), to.name_of_readiness.get()));
  if (is_ready.get() != Py_True) return nullptr;
  const Owned watch(PyObject_GetAttr(state.get(), to.name_of_watch.get()));
  if (watch == nullptr) return nullptr;
  const EagerCall eager{to, call, state.get(), scope, PyLong_AsVoidPtr(watch.get())};
  const Owned name = let_begin(eager);
  if (name == nullptr) return nullptr;
  // With a scope, or without the cache, and without a graph, no answer depends on the module.
  const bool is_named = call.scope.size_bytes != 0;
  const bool is_off = to.library->is_off_here();
  const bool may_have_graph = to.library->is_grad_enabled();
  if (may_have_graph ? is_off && !to.library->has_hashed(eager.watch) : is_named || is_off) {
    return ask(to, call, scope, to.library->find_eager);
  }
  return find_known(eager, is_named, is_off, may_have_graph);
}

// `entry`: (weak reference, weak reference to its native part, the library's object, its address).
// Makes the whole call where there is one key.
PyObject* look_up_scripted(const Connection& to, PyObject* entry, PyObject* const* arguments,
                           PlainCall& call) {
  const Owned native(PyObject_GetAttr(arguments[0], to.name_of_native.get()));
  if (native == nullptr) return nullptr;
  if (!refers_to(PyTuple_GET_ITEM(entry, 1), native.get())) return nullptr;
  const void* const held = PyLong_AsVoidPtr(PyTuple_GET_ITEM(entry, 3));
  return ask(to, call, arguments[3], [&](const PlainCall& question, void** found) {
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
    return find_eager(to, entry.get(), arguments[3], call);
  }
  const Owned entry = entry_of(to.scripted.get(), module);
  return entry == nullptr ? nullptr : look_up_scripted(to, entry.get(), arguments, call);
}

}  // namespace

PyObject* find_hit(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "find_hit() takes 5 arguments");
    return nullptr;
  }
  if (connection() == nullptr) Py_RETURN_NONE;
  PyObject* hit = nullptr;
  try {
    hit = find(*connection(), arguments);
  } catch (const RaisedByCall&) {
    return nullptr;
  } catch (const std::exception&) {
    hit = nullptr;
  }
  if (hit != nullptr || !clear_error()) return hit;
  Py_RETURN_NONE;
}

}  // namespace modcache::python
