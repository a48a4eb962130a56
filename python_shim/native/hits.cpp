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

// Asks the library while other threads run, as it may read files.
template <typename Find>
Answer ask(const Connection& to, const PlainCall& call, void** found, Find find) {
  const Retained retained(*to.library, call);
  PyThreadState* const thread = PyEval_SaveThread();
  const Answer answer = find(call, found);
  PyEval_RestoreThread(thread);
  return answer;
}

// Returns what find_hit() returns for an answer; null: nothing. `scope`: that of the call.
PyObject* object_of(const Connection& to, Answer answer, void* found, PyObject* scope) {
  switch (answer) {
    case Answer::kNothing:
    case Answer::kMissing: return nullptr;
    case Answer::kFound: return wrapped(to, found);
    case Answer::kBypassed: Py_INCREF(Py_NotImplemented); return Py_NotImplemented;
    case Answer::kBegun: return begun_with_run(to, scope, found);
    case Answer::kMade:
    case Answer::kTagged: break;
  }
  Owned result(PyObject_CallNoArgs(to.take_result.get()));
  if (result == nullptr) throw RaisedByCall{};
  return answer == Answer::kMade ? result.release() : begun_with_value(scope, result.get());
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

// A call of an eager module that was called before.
struct EagerCall {
  const Connection& to;
  PyObject* const* arguments;
  PlainCall& call;
  PyObject* state;
  const void* watch;
};

// Returns whether the call may begin its run here: it has one key and one tensor, and its class
// still has the function that an earlier call found to begin with nothing that belongs before the
// look-up.
bool may_begin(const EagerCall& eager) {
  if (eager.call.is_rows || eager.call.input_count != 1) return false;
  const Owned functions(PyObject_GetAttr(eager.state, eager.to.name_of_functions.get()));
  if (functions == nullptr || PyDict_CheckExact(functions.get()) == 0) return false;
  PyObject* const method = eager.arguments[4];
  const Owned reference = share(PyDict_GetItemWithError(functions.get(), method));
  if (reference == nullptr) return false;
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(eager.arguments[0]));
  const Owned now(PyObject_GetAttr(type, method));
  return now != nullptr && refers_to(reference.get(), now.get());
}

// Asks the library. A call for which nothing is stored begins its run if it may. `scope`: as the
// library has it. `watch`: that of the weights; null where the caller gave the scope.
PyObject* ask_eager(const EagerCall& eager, PyObject* scope, const void* watch) {
  const Connection& to = eager.to;
  void* found = nullptr;
  Answer answer = ask(to, eager.call, &found, to.library->find_eager);
  if (answer == Answer::kMissing && may_begin(eager)) {
    const Owned name(PyObject_GetAttr(eager.state, to.name_of_class.get()));
    Text class_name{};
    if (name == nullptr || !read_text(name.get(), class_name)) return nullptr;
    answer = ask(to, eager.call, &found, [&](const PlainCall& call, void** begun) {
      return to.library->begin_eager(call, class_name, watch, begun);
    });
  }
  return object_of(to, answer, found, scope);
}

// Asks about a module whose identity or gradients matter. Null: no answer.
PyObject* find_known(const EagerCall& eager, bool is_off, bool may_have_graph) {
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
  // In mode `off` the weights are not compared, so no scope may be given: the mode may end
  // meanwhile.
  const bool is_named = eager.call.scope.size_bytes != 0;
  if (is_named || is_off) return ask_eager(eager, eager.arguments[3], nullptr);
  Text digest{};
  PyObject* const fingerprint = PyTuple_GET_ITEM(known.get(), 3);
  if (!read_text(PyTuple_GET_ITEM(known.get(), 2), digest) ||
      !read_text(fingerprint, eager.call.scope) ||
      !to.library->still_has(eager.watch, weights, digest)) {
    return nullptr;
  }
  return ask_eager(eager, fingerprint, eager.watch);
}

// `entry`: (weak reference, state). Null, perhaps with a Python error set: no answer.
PyObject* find_eager(const Connection& to, PyObject* entry, PyObject* const* arguments,
                     PlainCall& call) {
  const Owned state = share(PyTuple_GET_ITEM(entry, 1));
  const Owned is_ready(PyObject_GetAttr(state.get(), to.name_of_readiness.get()));
  if (is_ready.get() != Py_True) return nullptr;
  const Owned watch(PyObject_GetAttr(state.get(), to.name_of_watch.get()));
  if (watch == nullptr) return nullptr;
  const EagerCall eager{to, arguments, call, state.get(), PyLong_AsVoidPtr(watch.get())};
  // With a scope, or without the cache, and without a graph, no answer depends on the module.
  const bool is_named = call.scope.size_bytes != 0;
  const bool is_off = to.library->is_off_here();
  const bool may_have_graph = to.library->is_grad_enabled();
  if (may_have_graph ? is_off && !to.library->has_hashed(eager.watch) : is_named || is_off) {
    return ask_eager(eager, arguments[3], nullptr);
  }
  return find_known(eager, is_off, may_have_graph);
}

// `entry`: (weak reference, weak reference to its native part, the library's object, its address).
// Makes the whole call where there is one key.
PyObject* look_up_scripted(const Connection& to, PyObject* entry, PyObject* const* arguments,
                           PlainCall& call) {
  const Owned native(PyObject_GetAttr(arguments[0], to.name_of_native.get()));
  if (native == nullptr) return nullptr;
  if (!refers_to(PyTuple_GET_ITEM(entry, 1), native.get())) return nullptr;
  const void* const held = PyLong_AsVoidPtr(PyTuple_GET_ITEM(entry, 3));
  void* found = nullptr;
  const Answer answer = ask(to, call, &found, [&](const PlainCall& question, void** given) {
    return to.library->look_up_scripted(question, held, given);
  });
  return object_of(to, answer, found, arguments[3]);
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
  if (!to.library->is_plain_here()) return nullptr;
  if (const Owned entry = entry_of(to.states.get(), module)) {
    if (!has_method(module, call.method, arguments[4])) return nullptr;
    return find_eager(to, entry.get(), arguments, call);
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
