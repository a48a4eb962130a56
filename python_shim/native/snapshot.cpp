// SPDX-License-Identifier: Apache-2.0
#include "snapshot.h"

#include <utility>

#include "versions.h"

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

unsigned assigned_version_of(PyTypeObject* type) {
  // Python gives a class its version when an attribute is looked up.
  Owned found(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__init__"));
  PyErr_Clear();
  return version_of_class(type);
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
  if (made.what == Expect::kMapping) prepare_seen(made);
  expected_[place] = made;
}

// An OrderedDict may get another order without another version.
void Snapshot::prepare_seen(Expected& mapping) {
  if (!kDictsHaveVersions || mapping.type != &PyDict_Type || mapping.parts == 0) return;
  SeenDict dict;
  for (std::size_t i = 0; i < mapping.parts; i += 2) {
    if (expected_[mapping.first + i].what != Expect::kValue) return;
    const Expect value = expected_[mapping.first + i + 1].what;
    if (value != Expect::kValue && value != Expect::kAnything) dict.values.push_back({i + 1});
  }
  mapping.seen = seen_.size();
  seen_.push_back(std::move(dict));
}

}  // namespace modcache::python
