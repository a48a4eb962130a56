// SPDX-License-Identifier: Apache-2.0
//
// The arguments of a plain call (hits.h) as the library takes them. All functions need the GIL.
// They return false, with no Python error set, for arguments that no plain call has.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <vector>

#include "compiled_part.h"
#include "connection.h"
#include "snapshot.h"

namespace modcache::python {

// False: it is no str, or has no UTF-8. The text lives as long as the object.
bool read_text(PyObject* object, ops::Text& text);

// False: it is neither a tensor nor a tuple of some.
bool read_input(const Connection& to, PyObject* input, std::vector<void*>& tensors);

// The keys of a call, and what keeps them alive while other threads run.
class Keys {
 public:
  // False: it is no str, no list of either str or int, no tensor.
  bool read(const Connection& to, PyObject* key, ops::PlainCall& call);

 private:
  bool read_texts(PyObject* list, ops::PlainCall& call);
  bool read_ids(PyObject* list, ops::PlainCall& call);

  ops::Text one_{};
  std::vector<ops::Text> texts_;
  std::vector<std::int64_t> ids_;
  std::vector<Owned> held_;
};

}  // namespace modcache::python
