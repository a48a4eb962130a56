// SPDX-License-Identifier: Apache-2.0
//
// Snapshot: what one look at an eager module saw, so that the next look only has to compare.
//
// A snapshot consists of guards. A guard is a place (the attributes of an object, a global of a
// function, a member of a class, ...) with the value that was there. Values are compared by
// identity. Plain values are held. Other objects are watched through weak references, and the
// snapshot is dead once one of them is freed, since another object may get its address. Objects
// that take no weak reference (lists, dicts, ...) are compared by their contents. Tensors are
// returned, not compared: the library knows more about them, and torch.utils.swap_tensors refuses
// tensors with weak references.
//
// A snapshot keeps no module, tensor, function or class alive. All functions need the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>
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

// Clears a Python error, if one is set. Returns false, and leaves it, if it is no Exception but one
// such as KeyboardInterrupt, which nothing may swallow.
inline bool clear_error() {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0) return false;
  PyErr_Clear();
  return true;
}

// Says that a Python error is set.
struct PythonError : std::exception {};

// The kind of a value that is expected at a place.
enum class Expect : int {
  kAnything,  // ()
  kNothing,   // (): the place is empty
  kValue,     // (value): this very object of the same type, which the snapshot holds
  kObject,    // (object): this very object of the same type, which the snapshot watches
  kTensor,    // (number, type): any tensor of exactly this type; equal numbers are one tensor
  kItems,     // (type, expected...): a sequence or set of exactly this type, in order
  kMapping,   // (type, key, value, key, value, ...): a dict of exactly this type, in order
  kParts,     // (type, names, expected...): an object of exactly this type, by these attributes
};

// The kind of a place.
enum class Place : int {
  kAttributes,  // (object, expected): its whole __dict__
  kClass,       // (class): every attribute of the class and of its bases
  kMember,      // (class, name, expected): in the class's own dict
  kMemberPart,  // (class, name, attribute, expected): an attribute of such a member
  kGlobal,      // (function, name, expected)
  kCell,        // (function, index, expected)
  kFunction,    // (function): its code and its defaults
  kItem,        // (dict, key, expected): the dict lives as long as Python
  kAttribute,   // (object, name, expected)
};

class Snapshot {
 public:
  // `guards`: a sequence of tuples that begin with a Place; an expected value is a tuple that
  // begins with an Expect. `order`: the number of each tensor that add_tensors() adds. Throws
  // PythonError: TypeError for an object that can be neither held nor watched.
  Snapshot(PyObject* guards, PyObject* order);
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Adds the tensors to `tensors`, in order. Returns false, perhaps with a Python error set, if
  // anything changed; `tensors` is then of no use.
  bool add_tensors(std::vector<Owned>& tensors) const;

 private:
  struct Expected {
    Expect what = Expect::kAnything;
    PyObject* object = nullptr;
    PyTypeObject* type = nullptr;
    Py_ssize_t number = 0;
    std::size_t first = 0;  // index of its first part; the others follow it
    std::size_t parts = 0;
    std::size_t seen = kNotSeen;  // index in seen_, of a dict that is known by its version
  };
  // A dict as it was when it last held. While it has this version, it has the same keys and values,
  // of which only those that may change within themselves are compared again.
  struct SeenValue {
    std::size_t part = 0;
    PyObject* value = nullptr;  // the dict keeps it alive
  };
  struct SeenDict {
    std::uint64_t version = 0;  // 0: not seen yet
    std::vector<SeenValue> values;
  };
  static constexpr std::size_t kNotSeen = static_cast<std::size_t>(-1);
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

  // These build the snapshot.
  void add_guard(PyObject* told);
  void note_function(Guard& guard);
  std::size_t add_expected(PyObject* told);
  void read_expected(std::size_t place, PyObject* told);
  void prepare_seen(Expected& mapping);
  PyObject* hold(PyObject* object);
  PyObject* watch(PyObject* object);
  PyTypeObject* watch_type(PyObject* type);

  // These compare. `found` has room for every tensor, by number.
  using Found = std::vector<Owned>;
  bool holds(const Guard& guard, Found& found) const;
  bool holds(const Expected& expected, PyObject* value, Found& found) const;
  bool holds_dict_item(const Guard& guard, PyObject* dict, Found& found) const;
  bool holds_items(const Expected& expected, PyObject* value, Found& found) const;
  bool holds_mapping(const Expected& expected, PyObject* value, Found& found) const;
  bool holds_seen(const Expected& expected, PyObject* dict, Found& found) const;
  void note_seen(const Expected& expected, PyObject* dict) const;
  bool holds_ordered_mapping(const Expected& expected, PyObject* value, Found& found) const;
  bool holds_parts(const Expected& expected, PyObject* value, Found& found) const;
  bool holds_attribute(PyObject* owner, PyObject* name, const Expected& expected,
                       Found& found) const;

  std::vector<Expected> expected_;
  mutable std::vector<SeenDict> seen_;
  std::vector<Guard> guards_;
  std::vector<Py_ssize_t> order_;
  Py_ssize_t distinct_ = 0;  // number of different tensors
  bool is_in_order_ = true;
  std::vector<Owned> held_;  // values and weak references
  std::unordered_set<PyObject*> watched_;
  Owned death_;  // the callback that sets the flag when a watched object is freed
  std::shared_ptr<bool> is_dead_ = std::make_shared<bool>(false);
};

}  // namespace modcache::python
