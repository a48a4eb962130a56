// SPDX-License-Identifier: Apache-2.0
//
// The versions that Python gives to classes and dicts. All functions need the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

namespace modcache::python {

// Returns a version that changes with every change to an attribute of the class or of a base. 0: it
// has none.
inline unsigned version_of_class(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030D0000
  if (PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) == 0) return 0;
#endif
  return type->tp_version_tag;
}

// Returns the version of a dict: up to Python 3.12 each state of each dict has one of its own.
#if PY_VERSION_HEX < 0x030D0000
inline constexpr bool kDictsHaveVersions = true;
inline std::uint64_t version_of_dict(PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}
#else
inline constexpr bool kDictsHaveVersions = false;
inline std::uint64_t version_of_dict(PyObject* /*dict*/) { return 0; }
#endif

}  // namespace modcache::python
