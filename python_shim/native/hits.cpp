// SPDX-License-Identifier: Apache-2.0
#include "hits.h"

#include <array>
#include <cstdint>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "begun.h"
#include "compiled_part.h"
#include "connection.h"
#include "snapshot.h"
#include "snapshot_object.h"
#include "versions.h"

namespace modcache::python {
namespace {

using ops::Answer;
using ops::LibraryCalls;
using ops::PlainCall;
using ops::Text;
using ops::Weights;

// The input of a call: a tensor, or a tuple of tensors. A PlainCall points into it.
class Input {
 public:
  // Returns false, with no Python error set, where it is something else.
  bool read(const Connection& to, PyObject* input, PlainCall& call);

 private:
  void* one_ = nullptr;
  std::vector<void*> many_;
};

// The keys of a call, and what keeps them alive while other threads run.
class Keys {
 public:
  // Reads a str, a list of either str or int, or a tensor; or None, where the call has no key yet.
  // Returns false, with no Python error set, where it is something else.
  bool read(const Connection& to, PyObject* key, PlainCall& call);

 private:
  bool read_texts(PyObject* list, PlainCall& call);
  bool read_ids(PyObject* list, PlainCall& call);

  Text one_{};
  std::vector<Text> texts_;
  std::vector<std::int64_t> ids_;
  std::vector<Owned> held_;
};

bool Input::read(const Connection& to, PyObject* input, PlainCall& call) {
  if (is_tensor(to, input)) {
    one_ = impl_of(input);
    call.inputs = &one_;
    call.input_count = 1;
    return true;
  }
  if (PyTuple_CheckExact(input) == 0 || PyTuple_GET_SIZE(input) == 0) return false;
  many_.reserve(static_cast<std::size_t>(PyTuple_GET_SIZE(input)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(input); ++i) {
    PyObject* const item = PyTuple_GET_ITEM(input, i);
    if (!is_tensor(to, item)) return false;
    many_.push_back(impl_of(item));
  }
  call.inputs = many_.data();
  call.input_count = many_.size();
  return true;
}

bool Keys::read(const Connection& to, PyObject* key, PlainCall& call) {
  if (PyUnicode_CheckExact(key) != 0) {
    if (!read_text(key, one_)) return false;
    call.texts = &one_;
    call.key_count = 1;
    return true;
  }
  if (key == Py_None) return true;
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

bool Keys::read_texts(PyObject* list, PlainCall& call) {
  texts_.resize(call.key_count);
  held_.reserve(call.key_count);
  for (std::size_t i = 0; i < call.key_count; ++i) {
    held_.push_back(share(PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i))));
    if (!read_text(held_.back().get(), texts_[i])) return false;
  }
  call.texts = texts_.data();
  return true;
}

bool Keys::read_ids(PyObject* list, PlainCall& call) {
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

// Returns what a weak reference refers to; null: nothing any more.
Owned referent_of(PyObject* reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* referent = nullptr;
  if (PyWeakref_GetRef(reference, &referent) != 1) return nullptr;
  return Owned(referent);
#else
  PyObject* const referent = PyWeakref_GetObject(reference);
  return referent == Py_None ? nullptr : share(referent);
#endif
}

bool refers_to(PyObject* reference, PyObject* object) {
  return referent_of(reference).get() == object;
}

// Returns the entry of `object` in a dict {address: (weak reference, ...)}; null: it has none.
Owned entry_of(PyObject* entries, PyObject* object) {
  // The entry that was found last, while the dict has the version that it had then.
  static struct {
    std::uint64_t version;
    PyObject* object;
    PyObject* entry;
  } last{};
  const std::uint64_t version = version_of_dict(entries);
  if (version == 0 || version != last.version || object != last.object) {
    const Owned address(PyLong_FromVoidPtr(object));
    if (address == nullptr) return nullptr;
    PyObject* const found = PyDict_GetItemWithError(entries, address.get());
    if (found == nullptr || PyTuple_CheckExact(found) == 0) return nullptr;
    last = {version, object, found};
  }
  PyObject* const reference = PyTuple_GET_ITEM(last.entry, 0);
  return refers_to(reference, object) ? share(last.entry) : nullptr;
}

// Says that the call was made, and that the Python error that is set is its own.
struct RaisedByCall : std::exception {};

// Keeps the tensors of a call alive, even if other threads exchange those behind the Python
// objects.
class Retained {
 public:
  Retained(const LibraryCalls& library, const PlainCall& call) : library_(library), call_(call) {
    for_each(library.retain);
  }
  ~Retained() { for_each(library_.release); }
  Retained(const Retained&) = delete;
  Retained& operator=(const Retained&) = delete;

 private:
  void for_each(void (*function)(void* tensor)) const {
    for (std::size_t i = 0; i < call_.input_count; ++i) function(call_.inputs[i]);
    if (call_.id_tensor != nullptr) function(call_.id_tensor);
  }

  const LibraryCalls& library_;
  const PlainCall& call_;
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

// Returns the result of a call that was made. find_hit() returns None and NotImplemented for other
// reasons, so these travel in a Begun.
PyObject* made(PyObject* scope, Owned result) {
  if (result == nullptr) throw RaisedByCall{};
  if (result.get() != Py_None && result.get() != Py_NotImplemented) return result.release();
  return begun_with_value(scope, result.get());
}

// Returns what find_hit() returns for an answer; null: nothing. `scope`: that of the call.
PyObject* object_of(const Connection& to, Answer answer, void* found, PyObject* scope) {
  switch (answer) {
    case Answer::kNothing: return nullptr;
    case Answer::kFound: return wrapped(to, found);
    case Answer::kBypassed: Py_INCREF(Py_NotImplemented); return Py_NotImplemented;
    case Answer::kBegun: return begun_with_run(to, scope, found);
    case Answer::kMade:
    case Answer::kTagged:
    case Answer::kApart: break;
  }
  Owned result(PyObject_CallNoArgs(to.take_result.get()));
  if (answer == Answer::kMade) return made(scope, std::move(result));
  if (result == nullptr) throw RaisedByCall{};
  return begun_with_value(scope, result.get(), answer == Answer::kApart);
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

// Returns what a call of the method runs; null: the module has no such method.
Owned callable_of(PyObject* module, const Text& method, PyObject* name) {
  constexpr std::string_view kForward = "forward";
  if (std::string_view(method.data, method.size_bytes) == kForward) return share(module);
  Owned found(PyObject_GetAttr(module, name));
  return found != nullptr && PyCallable_Check(found.get()) != 0 ? std::move(found) : nullptr;
}

// A call of an eager module that was called before.
struct EagerCall {
  const Connection& to;
  PyObject* const* arguments;
  PlainCall& call;
  PyObject* callable;
  PyObject* state;
  const void* watch;
};

// Returns whether a class or a base of it has the function that `reference` refers to.
bool still_has(PyTypeObject* type, PyObject* name, PyObject* reference) {
  PyObject* const now = _PyType_Lookup(type, name);
  return now != nullptr && refers_to(reference, now);
}

// The function that runs, as an earlier call recorded it (record_function() in
// _call/evaluation.py). The record is a tuple: the class's function, and whether the compiled part
// may begin its calls; for a cached function also the one without the cache, the class behind that
// of a cached instance or None, and the function of that class. Functions are weak references.
struct KnownFunction {
  Owned plain;  // of a cached function the one without the cache; null: the module is called
  bool may_begin = false;
};

// Returns nullopt, perhaps with a Python error set, where nothing is known of the function that the
// class has now.
std::optional<KnownFunction> known_function(const EagerCall& eager) {
  const Owned functions(PyObject_GetAttr(eager.state, eager.to.name_of_functions.get()));
  if (functions == nullptr || PyDict_CheckExact(functions.get()) == 0) return std::nullopt;
  PyObject* const method = eager.arguments[4];
  const Owned record = share(PyDict_GetItemWithError(functions.get(), method));
  if (record == nullptr || PyTuple_CheckExact(record.get()) == 0) return std::nullopt;
  const auto part = [&](Py_ssize_t index) { return PyTuple_GET_ITEM(record.get(), index); };
  if (!still_has(Py_TYPE(eager.arguments[0]), method, part(0))) return std::nullopt;
  KnownFunction known{nullptr, part(1) == Py_True};
  if (PyTuple_GET_SIZE(record.get()) == 2) return known;
  known.plain = referent_of(part(2));
  if (known.plain == nullptr) return std::nullopt;
  auto* const behind = reinterpret_cast<PyTypeObject*>(part(3));
  if (part(3) != Py_None && !still_has(behind, method, part(4))) return std::nullopt;
  return known;
}

// Returns whether an object has neither the method nor what torch compiled in its own __dict__.
bool has_no_own(const Connection& to, PyObject* module, PyObject* method) {
  const Owned attributes(PyObject_GenericGetDict(module, nullptr));
  if (attributes == nullptr || PyDict_GetItemWithError(attributes.get(), method) != nullptr) {
    return false;
  }
  PyObject* const compiled = PyDict_GetItemWithError(attributes.get(), to.name_of_compiled.get());
  return compiled == nullptr || compiled == Py_None;
}

// Calls a function with the module and its input.
Owned called(PyObject* function, PyObject* module, PyObject* input) {
  std::vector<PyObject*> arguments{module};
  if (PyTuple_CheckExact(input) == 0) {
    arguments.push_back(input);
  } else {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(input); ++i) {
      arguments.push_back(PyTuple_GET_ITEM(input, i));
    }
  }
  return Owned(PyObject_Vectorcall(function, arguments.data(), arguments.size(), nullptr));
}

// Runs the module of a call that bypasses the cache. Returns NotImplemented where Python has to run
// it: inside a block of keys, which does not hold inside of the module, and where the function is
// not known.
PyObject* run(const EagerCall& eager) {
  PyObject* block = nullptr;
  if (PyContextVar_Get(eager.to.block.get(), Py_None, &block) != 0) return nullptr;
  const bool is_in_block = Owned(block).get() != Py_None;
  PyObject* const module = eager.arguments[0];
  PyObject* const input = eager.arguments[1];
  const auto known = is_in_block ? std::nullopt : known_function(eager);
  const bool is_plain = known.has_value() && known->plain == nullptr;
  if (!known.has_value() || (!is_plain && !has_no_own(eager.to, module, eager.arguments[4]))) {
    if (!clear_error()) return nullptr;
    Py_INCREF(Py_NotImplemented);
    return Py_NotImplemented;
  }
  if (!is_plain) return made(eager.arguments[3], called(known->plain.get(), module, input));
  return made(eager.arguments[3],
              Owned(PyTuple_CheckExact(input) != 0 ? PyObject_Call(eager.callable, input, nullptr)
                                                   : PyObject_CallOneArg(eager.callable, input)));
}

// Asks the library. A call of which something is missing begins its run, unless the function is not
// known, or something belongs before the lookup. `scope`: as the library has it. `watch`: that of
// the weights; null where the caller gave the scope.
PyObject* ask_eager(const EagerCall& eager, PyObject* scope, const void* watch) {
  const Connection& to = eager.to;
  const Owned name(PyObject_GetAttr(eager.state, to.name_of_class.get()));
  Text class_name{};
  if (name == nullptr || !read_text(name.get(), class_name)) return nullptr;
  const auto known = known_function(eager);
  if (!known.has_value() && !clear_error()) return nullptr;
  const bool may_begin = known.has_value() && known->may_begin;
  void* found = nullptr;
  const Answer answer = ask(to, eager.call, &found, [&](const PlainCall& call, void** begun) {
    return to.library->begin_eager(call, class_name, watch, may_begin, begun);
  });
  if (answer == Answer::kBypassed) return run(eager);
  return object_of(to, answer, found, scope);
}

// Asks about a module whose identity or gradients matter. Null: no answer.
PyObject* find_known(const EagerCall& eager, bool is_off, bool may_have_graph) {
  const Connection& to = eager.to;
  const Owned known(PyObject_GetAttr(eager.state, to.name_of_known.get()));
  if (known == nullptr || known.get() == Py_None) return nullptr;
  std::vector<Owned> tensors;
  if (!read_known(to, known.get(), tensors)) return nullptr;
  std::array<void*, 16> few;  // saves most modules an allocation
  std::vector<void*> many(tensors.size() > few.size() ? tensors.size() : 0);
  void** const impls = many.empty() ? few.data() : many.data();
  for (std::size_t i = 0; i < tensors.size(); ++i) impls[i] = impl_of(tensors[i].get());
  const Weights weights{impls, tensors.size()};
  // A run of a module that is trained may be followed by a step of an optimizer that leaves no
  // trace but new bytes: its weights are hashed anew then, which is left to the ordinary way.
  if (may_have_graph && to.library->requires_grad(weights)) return nullptr;
  if (is_off) return to.library->bypass(eager.call) ? run(eager) : nullptr;
  if (eager.call.scope.size_bytes != 0) return ask_eager(eager, eager.arguments[3], nullptr);
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
  const Owned callable = callable_of(arguments[0], call.method, arguments[4]);
  if (callable == nullptr) return nullptr;
  const Owned state = share(PyTuple_GET_ITEM(entry, 1));
  const Owned address(PyObject_GetAttr(state.get(), to.name_of_watch.get()));
  const void* const watch = address == nullptr ? nullptr : PyLong_AsVoidPtr(address.get());
  if (watch == nullptr) return nullptr;
  const EagerCall eager{to, arguments, call, callable.get(), state.get(), watch};
  const bool may_have_graph = to.library->is_grad_enabled();
  if (to.library->is_off_here()) {
    // Weights that were hashed may be trained, and then have to be hashed again.
    if (may_have_graph && to.library->has_hashed(eager.watch)) {
      return find_known(eager, /*is_off=*/true, may_have_graph);
    }
    return to.library->bypass(call) ? run(eager) : nullptr;
  }
  if (arguments[2] == Py_None) return nullptr;
  // With a scope and without a graph, no answer depends on the module.
  const bool is_named = call.scope.size_bytes != 0;
  if (is_named && !may_have_graph) return ask_eager(eager, arguments[3], nullptr);
  return find_known(eager, /*is_off=*/false, may_have_graph);
}

// `entry`: (weak reference, weak reference to its native part, the library's object, its address).
// Makes the whole call where there is one key.
PyObject* look_up_scripted(const Connection& to, PyObject* entry, PyObject* const* arguments,
                           PlainCall& call) {
  const Owned native(PyObject_GetAttr(arguments[0], to.name_of_native.get()));
  if (native == nullptr || arguments[2] == Py_None) return nullptr;
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
  if (arguments[2] == Py_None && !to.library->is_off_here()) return nullptr;
  PlainCall call{};
  Input input;
  Keys keys;
  if (!input.read(to, arguments[1], call) || !read_text(arguments[3], call.scope) ||
      !read_text(arguments[4], call.method) || !keys.read(to, arguments[2], call)) {
    return nullptr;
  }
  if (!to.library->is_plain_here()) return nullptr;
  if (const Owned entry = entry_of(to.states.get(), module)) {
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
