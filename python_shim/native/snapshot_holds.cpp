// SPDX-License-Identifier: Apache-2.0
//
// The comparison of a snapshot with what is there now.
#include <cstdint>
#include <utility>

#include "snapshot.h"
#include "versions.h"

namespace modcache::python {

bool Snapshot::add_tensors(std::vector<Owned>& tensors) const {
  Found found(static_cast<std::size_t>(distinct_));
  for (const Guard& guard : guards_) {
    if (*is_dead_ || !holds(guard, found)) return false;
  }
  if (*is_dead_) return false;
  for (const Owned& tensor : found) {
    if (tensor == nullptr) return false;
  }
  if (is_in_order_ && tensors.empty()) {
    tensors = std::move(found);
    return true;
  }
  for (const Py_ssize_t number : order_) {
    tensors.push_back(share(found[static_cast<std::size_t>(number)].get()));
  }
  return true;
}

namespace {

Owned own_dict_of(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030C0000
  return Owned(PyType_GetDict(type));
#else
  return share(type->tp_dict);
#endif
}

}  // namespace

bool Snapshot::holds(const Guard& guard, Found& found) const {
  // Comparing may run code of an iterator or of the garbage collector, which may free the owner.
  const Owned kept = share(guard.owner);
  if (Py_TYPE(guard.owner) != guard.owner_type) return false;
  auto* type = reinterpret_cast<PyTypeObject*>(guard.owner);
  auto* function = reinterpret_cast<PyFunctionObject*>(guard.owner);
  switch (guard.place) {
    case Place::kClass: return version_of_class(type) == guard.version;
    case Place::kAttributes: {
      const Owned dict(PyObject_GenericGetDict(guard.owner, nullptr));
      return dict != nullptr && holds(expected_[guard.expected], dict.get(), found);
    }
    case Place::kMember: return holds_dict_item(guard, own_dict_of(type).get(), found);
    case Place::kMemberPart: {
      const Owned dict = own_dict_of(type);
      const Owned member = share(PyDict_GetItemWithError(dict.get(), guard.key));
      return member != nullptr &&
             holds_attribute(member.get(), guard.part, expected_[guard.expected], found);
    }
    case Place::kGlobal: return holds_dict_item(guard, function->func_globals, found);
    case Place::kCell: {
      PyObject* cells = function->func_closure;
      if (cells == nullptr || guard.index >= PyTuple_GET_SIZE(cells)) return false;
      PyObject* cell = PyTuple_GET_ITEM(cells, guard.index);
      return holds(expected_[guard.expected], PyCell_GET(cell), found);
    }
    case Place::kFunction: {
      const bool has_attributes =
          function->func_dict != nullptr && PyDict_GET_SIZE(function->func_dict) != 0;
      return function->func_code == guard.key && function->func_defaults == guard.defaults &&
             function->func_kwdefaults == guard.keyword_defaults &&
             has_attributes == guard.has_attributes;
    }
    case Place::kItem: return holds_dict_item(guard, guard.owner, found);
    case Place::kAttribute:
      return holds_attribute(guard.owner, guard.key, expected_[guard.expected], found);
  }
  return false;
}

bool Snapshot::holds_dict_item(const Guard& guard, PyObject* dict, Found& found) const {
  if (dict == nullptr) return false;
  return holds(expected_[guard.expected], PyDict_GetItemWithError(dict, guard.key), found);
}

bool Snapshot::holds_attribute(PyObject* owner, PyObject* name, const Expected& expected,
                               Found& found) const {
  const Owned value(PyObject_GetAttr(owner, name));
  if (value == nullptr) {
    const bool is_missing = PyErr_ExceptionMatches(PyExc_AttributeError) != 0;
    return clear_error() && is_missing && expected.what == Expect::kNothing;
  }
  return holds(expected, value.get(), found);
}

// `value`: null if the place is empty.
bool Snapshot::holds(const Expected& expected, PyObject* value, Found& found) const {
  if (expected.what == Expect::kAnything) return true;
  if (value == nullptr) return expected.what == Expect::kNothing;
  Owned kept = share(value);
  switch (expected.what) {
    case Expect::kAnything: return true;
    case Expect::kNothing: return false;
    case Expect::kValue:
    case Expect::kObject: return value == expected.object && Py_TYPE(value) == expected.type;
    case Expect::kTensor: {
      if (Py_TYPE(value) != expected.type) return false;
      Owned& known = found[static_cast<std::size_t>(expected.number)];
      if (known != nullptr) return known.get() == value;
      known = std::move(kept);
      return true;
    }
    case Expect::kItems: return holds_items(expected, value, found);
    case Expect::kMapping: return holds_mapping(expected, value, found);
    case Expect::kParts: return holds_parts(expected, value, found);
  }
  return false;
}

bool Snapshot::holds_items(const Expected& expected, PyObject* value, Found& found) const {
  if (Py_TYPE(value) != expected.type) return false;
  const auto* parts = expected_.data() + expected.first;
  const auto count = static_cast<Py_ssize_t>(expected.parts);
  if (PyList_Check(value) != 0 || PyTuple_Check(value) != 0) {
    if (PySequence_Fast_GET_SIZE(value) != count) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (PySequence_Fast_GET_SIZE(value) != count) return false;
      if (!holds(parts[i], PySequence_Fast_GET_ITEM(value, i), found)) return false;
    }
    return true;
  }
  const Owned iterator(PyObject_GetIter(value));
  for (Py_ssize_t i = 0; iterator != nullptr; ++i) {
    const Owned item(PyIter_Next(iterator.get()));
    if (item == nullptr) {
      const bool is_end = PyErr_Occurred() == nullptr;
      return clear_error() && is_end && i == count;
    }
    if (i >= count || !holds(parts[i], item.get(), found)) return false;
  }
  (void)clear_error();
  return false;
}

// An OrderedDict has another order than the dict that it derives from.
bool Snapshot::holds_ordered_mapping(const Expected& expected, PyObject* value,
                                     Found& found) const {
  const auto* parts = expected_.data() + expected.first;
  const Owned keys(PyObject_GetIter(value));
  for (std::size_t i = 0; keys != nullptr && i < expected.parts; i += 2) {
    const Owned key(PyIter_Next(keys.get()));
    if (key == nullptr || !holds(parts[i], key.get(), found)) return false;
    if (!holds(parts[i + 1], PyDict_GetItemWithError(value, key.get()), found)) return false;
  }
  return keys != nullptr;
}

bool Snapshot::holds_mapping(const Expected& expected, PyObject* value, Found& found) const {
  if (Py_TYPE(value) != expected.type || PyDict_Check(value) == 0) return false;
  const auto* parts = expected_.data() + expected.first;
  if (PyDict_GET_SIZE(value) * 2 != static_cast<Py_ssize_t>(expected.parts)) return false;
  if (expected.parts == 0) return true;
  if (PyODict_CheckExact(value) != 0) return holds_ordered_mapping(expected, value, found);
  if (expected.seen != kNotSeen && seen_[expected.seen].version == version_of_dict(value)) {
    return holds_seen(expected, value, found);
  }
  PyObject* key = nullptr;
  PyObject* item = nullptr;
  Py_ssize_t position = 0;
  const std::uint64_t version = version_of_dict(value);
  for (std::size_t i = 0; i < expected.parts; i += 2) {
    if (PyDict_Next(value, &position, &key, &item) == 0) return false;
    if (!holds(parts[i], key, found) || !holds(parts[i + 1], item, found)) return false;
  }
  if (expected.seen != kNotSeen && version == version_of_dict(value)) note_seen(expected, value);
  return true;
}

// Comparing a value may run code that changes the dict, whose values may be freed then. So its
// version is looked at before each of them.
bool Snapshot::holds_seen(const Expected& expected, PyObject* dict, Found& found) const {
  const auto* parts = expected_.data() + expected.first;
  const SeenDict& seen = seen_[expected.seen];
  const std::uint64_t version = seen.version;
  for (const SeenValue& of_dict : seen.values) {
    if (version_of_dict(dict) != version || seen.version != version) return false;
    const Expected& part = parts[of_dict.part];
    PyObject* const value = of_dict.value;
    const bool is_empty = part.what == Expect::kMapping && part.parts == 0;
    if (part.what == Expect::kObject || is_empty) {
      if (Py_TYPE(value) != part.type) return false;
      if (is_empty && (PyDict_Check(value) == 0 || PyDict_GET_SIZE(value) != 0)) return false;
    } else if (!holds(part, value, found)) {
      return false;
    }
  }
  return true;
}

// REQUIRES: the dict holds. Runs no code of others.
void Snapshot::note_seen(const Expected& expected, PyObject* dict) const {
  SeenDict& seen = seen_[expected.seen];
  auto next = seen.values.begin();
  PyObject* key = nullptr;
  PyObject* item = nullptr;
  Py_ssize_t position = 0;
  for (std::size_t part = 1; next != seen.values.end(); part += 2) {
    if (PyDict_Next(dict, &position, &key, &item) == 0) return;
    if (next->part == part) (next++)->value = item;
  }
  seen.version = version_of_dict(dict);
}

bool Snapshot::holds_parts(const Expected& expected, PyObject* value, Found& found) const {
  if (Py_TYPE(value) != expected.type) return false;
  const auto* parts = expected_.data() + expected.first;
  for (std::size_t i = 0; i < expected.parts; ++i) {
    PyObject* name = PyTuple_GET_ITEM(expected.object, static_cast<Py_ssize_t>(i));
    if (!holds_attribute(value, name, parts[i], found)) return false;
  }
  return true;
}

}  // namespace modcache::python
