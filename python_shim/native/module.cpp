// SPDX-License-Identifier: Apache-2.0
//
// The Python module modcache._guards: the class Snapshot (snapshot.h), plain calls (hits.h,
// begun.h), and constants for places and expected values.
#include "begun.h"
#include "connection.h"
#include "hits.h"
#include "snapshot.h"
#include "snapshot_object.h"

namespace modcache::python {
namespace {

struct Constant {
  const char* name;
  int value;
};

template <typename Enum>
constexpr Constant constant(const char* name, Enum value) {
  return {name, static_cast<int>(value)};
}

constexpr Constant kConstants[] = {
    constant("ANYTHING", Expect::kAnything),
    constant("NOTHING", Expect::kNothing),
    constant("VALUE", Expect::kValue),
    constant("OBJECT", Expect::kObject),
    constant("TENSOR", Expect::kTensor),
    constant("ITEMS", Expect::kItems),
    constant("MAPPING", Expect::kMapping),
    constant("PARTS", Expect::kParts),
    constant("IN_ATTRIBUTES", Place::kAttributes),
    constant("IN_CLASS", Place::kClass),
    constant("IN_MEMBER", Place::kMember),
    constant("IN_MEMBER_PART", Place::kMemberPart),
    constant("IN_GLOBAL", Place::kGlobal),
    constant("IN_CELL", Place::kCell),
    constant("IN_FUNCTION", Place::kFunction),
    constant("IN_ITEM", Place::kItem),
    constant("IN_ATTRIBUTE", Place::kAttribute),
};

PyMethodDef functions[] = {
    {"connect", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(connect)), METH_FASTCALL,
     "Tells find_hit() where the library and torch have what it needs."},
    {"find_hit", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(find_hit)),
     METH_FASTCALL,
     "Returns the stored tensor of a plain hit, or a call that was begun; None for every other."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "modcache._guards",
    "Compares an eager module with a snapshot of it, and finds plain hits.",
    -1,
    functions,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

PyObject* create() {
  Owned made(PyModule_Create(&definition));
  if (made == nullptr) return nullptr;
  const Owned type(make_snapshot_type());
  if (type == nullptr || PyModule_AddObjectRef(made.get(), "Snapshot", type.get()) != 0) {
    return nullptr;
  }
  const Owned begun(make_begun_type());
  if (begun == nullptr || PyModule_AddObjectRef(made.get(), "Begun", begun.get()) != 0) {
    return nullptr;
  }
  const Owned block(PyContextVar_New("modcache.keys", Py_None));
  if (block == nullptr || PyModule_AddObjectRef(made.get(), kBlock, block.get()) != 0) {
    return nullptr;
  }
  for (const Constant& constant : kConstants) {
    if (PyModule_AddIntConstant(made.get(), constant.name, constant.value) != 0) return nullptr;
  }
  return made.release();
}

}  // namespace
}  // namespace modcache::python

// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): Python looks for it
PyMODINIT_FUNC PyInit__guards() { return modcache::python::create(); }
