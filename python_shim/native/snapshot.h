// SPDX-License-Identifier: Apache-2.0
//
// Snapshot: what one look at an eager module saw, kept so that the next look need only compare.
//
// It is made of guards: places (the attributes of an object, a global of a function, a member of a
// class, ...), and what was there. What was there is told by identity: plain values are held, other
// objects are watched through weak references and the snapshot is dead once one of them is gone, so
// that no address can come back under another object. What takes no weak reference (lists, dicts,
// ...) is compared by what it holds. Tensors are not compared but handed out: the library knows
// more of them, and torch.utils.swap_tensors refuses tensors with weak references.
//
// Keeps no module, tensor, function or class alive. All functions need the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <unordered_set>
#include <vector>

namespace modcache::python {

struct Release {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Release>;

inline Owned share(PyObject* object) {
  Py_XINCREF(object);
  return Owned(object);
}

// A Python error is set.
struct PythonError : std::exception {};

// What is expected at a place.
enum class Expect : int {
  kAnything,  // ()
  kNothing,   // (): the place is empty
  kValue,     // (value): this very object, which is held
  kObject,    // (object): the same, watched
  kTensor,    // (number, type): any tensor of exactly this type; one number is one tensor
  kItems,     // (type, expected...): a sequence or set of exactly this type, in order
  kMapping,   // (type, key, value, key, value, ...), likewise
  kParts,     // (type, names, expected...): these attributes of an object of exactly this type
};

// Where something is expected.
enum class Place : int {
  kAttributes,  // (object, expected): its whole __dict__
  kClass,       // (class): every attribute of it and of its bases
  kMember,      // (class, name, expected): in the class's own dict
  kMemberPart,  // (class, name, attribute, expected): of such a member
  kGlobal,      // (function, name, expected)
  kCell,        // (function, index, expected)
  kFunction,    // (function): its code, and which defaults it has
  kItem,        // (dict, key, expected): of a dict that lives as long as Python
  kAttribute,   // (object, name, expected)
};

class Snapshot {
 public:
  // `guards`: a sequence of tuples that begin with a Place; what is expected is a tuple that begins
  // with an Expect. `order`: for each tensor that is handed out, its number. Throws PythonError:
  // TypeError for what can be neither held nor watched.
  Snapshot(PyObject* guards, PyObject* order);
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // The tensors, as a new list; null, without an error, when anything is not as it was.
  PyObject* tensors() const;

 private:
  struct Expected {
    Expect what = Expect::kAnything;
    PyObject* object = nullptr;
    PyTypeObject* type = nullptr;
    Py_ssize_t number = 0;
    std::size_t first = 0;  // of its parts, which follow each other
    std::size_t parts = 0;
  };
  struct Guard {
    Place place = Place::kClass;
    PyObject* owner = nullptr;
    PyTypeObject* owner_type = nullptr;
    PyObject* key = nullptr;
    PyObject* part = nullptr;
    Py_ssize_t index = 0;
    unsigned version = 0;
    const void* defaults = nullptr;
    const void* keyword_defaults = nullptr;
    bool has_attributes = false;
    std::size_t expected = 0;
  };

  // While made.
  void add_guard(PyObject* told);
  void note_function(Guard& guard);
  std::size_t add_expected(PyObject* told);
  void read_expected(std::size_t place, PyObject* told);
  PyObject* hold(PyObject* object);
  PyObject* watch(PyObject* object);
  PyTypeObject* watch_type(PyObject* type);

  // While compared. `found` is a list with room for every tensor.
  bool holds(const Guard& guard, PyObject* found) const;
  bool holds(const Expected& expected, PyObject* value, PyObject* found) const;
  bool holds_dict_item(const Guard& guard, PyObject* dict, PyObject* found) const;
  bool holds_items(const Expected& expected, PyObject* value, PyObject* found) const;
  bool holds_mapping(const Expected& expected, PyObject* value, PyObject* found) const;
  bool holds_ordered_mapping(const Expected& expected, PyObject* value, PyObject* found) const;
  bool holds_parts(const Expected& expected, PyObject* value, PyObject* found) const;
  bool holds_attribute(PyObject* owner, PyObject* name, const Expected& expected,
                       PyObject* found) const;

  std::vector<Expected> expected_;
  std::vector<Guard> guards_;
  std::vector<Py_ssize_t> order_;
  Py_ssize_t distinct_ = 0;  // tensors
  bool is_in_order_ = true;
  std::vector<Owned> held_;  // also the weak references
  std::unordered_set<PyObject*> watched_;
  Owned death_;  // a capsule, whose flag is set when anything watched dies
  std::shared_ptr<bool> is_dead_ = std::make_shared<bool>(false);
};

}  // namespace modcache::python
