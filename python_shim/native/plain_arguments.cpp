// SPDX-License-Identifier: Apache-2.0
#include "plain_arguments.h"

#include <cstddef>

namespace modcache::python {

using ops::PlainCall;
using ops::Text;

bool read_text(PyObject* object, Text& text) {
  if (PyUnicode_CheckExact(object) == 0) return false;
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) {
    PyErr_Clear();
    return false;
  }
  text = {data, static_cast<std::size_t>(size)};
  return true;
}

bool read_input(const Connection& to, PyObject* input, std::vector<void*>& tensors) {
  if (is_tensor(to, input)) {
    tensors.push_back(impl_of(input));
    return true;
  }
  if (PyTuple_CheckExact(input) == 0 || PyTuple_GET_SIZE(input) == 0) return false;
  tensors.reserve(static_cast<std::size_t>(PyTuple_GET_SIZE(input)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(input); ++i) {
    PyObject* const item = PyTuple_GET_ITEM(input, i);
    if (!is_tensor(to, item)) return false;
    tensors.push_back(impl_of(item));
  }
  return true;
}

bool Keys::read(const Connection& to, PyObject* key, PlainCall& call) {
  if (PyUnicode_CheckExact(key) != 0) {
    if (!read_text(key, one_)) return false;
    call.texts = &one_;
    call.key_count = 1;
    return true;
  }
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

}  // namespace modcache::python
