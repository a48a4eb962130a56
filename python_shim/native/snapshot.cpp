// SPDX-License-Identifier: Apache-2.0
#include "snapshot.h"

#include <cstdint>
#include <string>
#include <utility>

namespace modcache::python {
namespace {

constexpr const char* kDeathName = "modcache.death";

// The callback of every weak reference of a snapshot. It has the flag instead of the snapshot, so
// that there is no circle of references.
PyObject* note_death(PyObject* capsule, PyObject* /*reference*/) {
  auto* flag = static_cast<std::shared_ptr<bool>*>(PyCapsule_GetPointer(capsule, kDeathName));
  if (flag == nullptr) return nullptr;
  **flag = true;
  Py_RETURN_NONE;
}

void free_flag(PyObject* capsule) {
  delete static_cast<std::shared_ptr<bool>*>(PyCapsule_GetPointer(capsule, kDeathName));
}

// The function object keeps a pointer to this.
PyMethodDef note_death_definition = {"note_death", note_death, METH_O, nullptr};

Owned checked(PyObject* made) {
  if (made == nullptr) throw PythonError{};
  return Owned(made);
}

PyObject* part_of(PyObject* told, Py_ssize_t index) {
  if (!PyTuple_Check(told)) {
    PyErr_SetString(PyExc_TypeError, "a guard is a tuple");
    throw PythonError{};
  }
  if (index >= PyTuple_GET_SIZE(told)) {
    PyErr_SetString(PyExc_TypeError, "a guard is too short");
    throw PythonError{};
  }
  return PyTuple_GET_ITEM(told, index);
}

Py_ssize_t number_of(PyObject* number) {
  const Py_ssize_t value = PyLong_AsSsize_t(number);
  if (value == -1 && PyErr_Occurred() != nullptr) throw PythonError{};
  return value;
}

void require(bool condition, const char* what) {
  if (condition) return;
  PyErr_SetString(PyExc_TypeError, what);
  throw PythonError{};
}

template <typename Enum>
Enum one_of(PyObject* number, Enum last) {
  const Py_ssize_t value = number_of(number);
  require(value >= 0 && value <= static_cast<Py_ssize_t>(last), "a guard of an unknown kind");
  return static_cast<Enum>(value);  // NOLINT(clang-analyzer-optin.core.EnumCastOutOfRange): it is
}

// The version changes with every change to an attribute of the class or of a base. 0: no version.
unsigned version_of(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030D0000
  if (PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) == 0) return 0;
#endif
  return type->tp_version_tag;
}

unsigned assigned_version_of(PyTypeObject* type) {
  // Python gives a class its version when an attribute is looked up.
  Owned found(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__init__"));
  PyErr_Clear();
  return version_of(type);
}

}  // namespace

Snapshot::Snapshot(PyObject* guards, PyObject* order) {
  auto flag = std::make_unique<std::shared_ptr<bool>>(is_dead_);
  Owned capsule = checked(PyCapsule_New(flag.get(), kDeathName, free_flag));
  flag.release();  // NOLINT(bugprone-unused-return-value): the capsule frees it
  death_ = checked(PyCFunction_New(&note_death_definition, capsule.get()));

  Owned all = checked(PySequence_Fast(guards, "guards must be a sequence"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(all.get()); ++i) {
    add_guard(PySequence_Fast_GET_ITEM(all.get(), i));
  }
  Owned numbers = checked(PySequence_Fast(order, "order must be a sequence"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(numbers.get()); ++i) {
    const Py_ssize_t number = number_of(PySequence_Fast_GET_ITEM(numbers.get(), i));
    require(number >= 0 && number < distinct_, "no tensor has this number");
    is_in_order_ = is_in_order_ && number == i;
    order_.push_back(number);
  }
  is_in_order_ = is_in_order_ && distinct_ == static_cast<Py_ssize_t>(order_.size());
}

PyObject* Snapshot::hold(PyObject* object) {
  held_.push_back(share(object));
  return object;
}

PyObject* Snapshot::watch(PyObject* object) {
  if (watched_.count(object) != 0) return object;
  held_.push_back(checked(PyWeakref_NewRef(object, death_.get())));
  watched_.insert(object);
  return object;
}

PyTypeObject* Snapshot::watch_type(PyObject* type) {
  require(PyType_Check(type) != 0, "a guard names a type");
  auto* known = reinterpret_cast<PyTypeObject*>(type);
  if (PyType_HasFeature(known, Py_TPFLAGS_HEAPTYPE) != 0) watch(type);
  return known;
}

void Snapshot::note_function(Guard& guard) {
  require(PyFunction_Check(guard.owner) != 0, "a guard of a function names a function");
  auto* function = reinterpret_cast<PyFunctionObject*>(guard.owner);
  guard.key = hold(function->func_code);
  guard.defaults = function->func_defaults;
  guard.keyword_defaults = function->func_kwdefaults;
  guard.has_attributes =
      function->func_dict != nullptr && PyDict_GET_SIZE(function->func_dict) != 0;
}

void Snapshot::add_guard(PyObject* told) {
  Guard guard;
  guard.place = one_of<Place>(part_of(told, 0), Place::kAttribute);
  PyObject* owner = part_of(told, 1);
  guard.owner_type = Py_TYPE(owner);
  if (guard.place == Place::kItem) {
    require(PyDict_CheckExact(owner) != 0, "a guard of an item names a dict");
    guard.owner = hold(owner);
  } else {
    guard.owner = watch(owner);
    watch_type(reinterpret_cast<PyObject*>(Py_TYPE(owner)));
  }
  const bool is_of_class = guard.place == Place::kClass || guard.place == Place::kMember ||
                           guard.place == Place::kMemberPart;
  require(!is_of_class || PyType_Check(owner) != 0, "a guard of a class names a class");
  const bool is_of_function = guard.place == Place::kGlobal || guard.place == Place::kCell;
  require(!is_of_function || PyFunction_Check(owner) != 0, "this guard names a function");
  Py_ssize_t next = 2;
  switch (guard.place) {
    case Place::kClass:
      guard.version = assigned_version_of(reinterpret_cast<PyTypeObject*>(owner));
      require(guard.version != 0, "the class has no version");
      guards_.push_back(guard);
      return;
    case Place::kFunction:
      note_function(guard);
      guards_.push_back(guard);
      return;
    case Place::kCell: guard.index = number_of(part_of(told, next++)); break;
    case Place::kMemberPart:
      guard.key = hold(part_of(told, next++));
      guard.part = hold(part_of(told, next++));
      break;
    case Place::kAttributes: break;
    case Place::kMember:
    case Place::kGlobal:
    case Place::kItem:
    case Place::kAttribute: guard.key = hold(part_of(told, next++)); break;
  }
  guard.expected = add_expected(part_of(told, next));
  guards_.push_back(guard);
}

std::size_t Snapshot::add_expected(PyObject* told) {
  const std::size_t place = expected_.size();
  expected_.emplace_back();
  read_expected(place, told);
  return place;
}

void Snapshot::read_expected(std::size_t place, PyObject* told) {
  Expected made;
  made.what = one_of<Expect>(part_of(told, 0), Expect::kParts);
  Py_ssize_t parts_from = PyTuple_GET_SIZE(told);
  switch (made.what) {
    case Expect::kAnything:
    case Expect::kNothing: break;
    case Expect::kValue:
    case Expect::kObject:
      made.object = made.what == Expect::kValue ? hold(part_of(told, 1)) : watch(part_of(told, 1));
      made.type = watch_type(reinterpret_cast<PyObject*>(Py_TYPE(made.object)));
      break;
    case Expect::kTensor:
      made.number = number_of(part_of(told, 1));
      require(made.number >= 0, "a tensor's number is not negative");
      made.type = watch_type(part_of(told, 2));
      if (made.number >= distinct_) distinct_ = made.number + 1;
      break;
    case Expect::kParts:
      made.type = watch_type(part_of(told, 1));
      made.object = hold(part_of(told, 2));
      require(PyTuple_Check(made.object) != 0, "the names of parts are a tuple");
      parts_from = 3;
      break;
    case Expect::kItems:
    case Expect::kMapping:
      made.type = watch_type(part_of(told, 1));
      parts_from = 2;
      break;
  }
  made.parts = static_cast<std::size_t>(PyTuple_GET_SIZE(told) - parts_from);
  made.first = expected_.size();
  expected_.resize(expected_.size() + made.parts);
  for (std::size_t i = 0; i < made.parts; ++i) {
    read_expected(made.first + i, part_of(told, parts_from + static_cast<Py_ssize_t>(i)));
  }
  expected_[place] = made;
}

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
    case Place::kClass: return version_of(type) == guard.version;
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
  PyObject* key = nullptr;
  PyObject* item = nullptr;
  Py_ssize_t position = 0;
  for (std::size_t i = 0; i < expected.parts; i += 2) {
    if (PyDict_Next(value, &position, &key, &item) == 0) return false;
    if (!holds(parts[i], key, found) || !holds(parts[i + 1], item, found)) return false;
  }
  return true;
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
