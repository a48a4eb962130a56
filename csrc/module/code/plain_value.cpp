// SPDX-License-Identifier: Apache-2.0
#include "module/code/plain_value.h"

#include <ATen/core/class_type.h>
#include <ATen/core/function.h>
#include <ATen/core/jit_type.h>

#include "module/code/source.h"
#include "module/watch/tensor_watch.h"
#include "tensor/value_header.h"

namespace modcache::module {
namespace {

void append_number(std::string& out, std::uint64_t number) {
  out.append(std::to_string(number)).push_back(';');
}

void append_text(std::string& out, const std::string& text) {
  append_number(out, text.size());
  out += text;
}

void append_object(const at::IValue& value, PlainValue& out) {
  const auto object = value.toObject();
  const auto type = object->type();
  if (type->is_module() || type->findMethod("__getstate__") == nullptr) {
    const bool is_torchbind = object->slots().size() == 1 && object->slots()[0].isCapsule();
    if (is_torchbind) {
      out.why_not_hashable =
          "an object of the C++ class " + type->name()->qualifiedName() + " without __getstate__";
      return;
    }
    const auto [known, is_new] = out.number_of_object.try_emplace(object.get(), out.objects.size());
    out.bytes += 'o';
    append_number(out.bytes, known->second);
    if (is_new) out.objects.push_back(object);
    return;
  }
  out.bytes += 'p';
  append_text(out.bytes, type->name()->qualifiedName());
  append_plain_value((type->getMethod("__getstate__"))({value}), out);
}

void append_scalar(const at::IValue& value, PlainValue& out) {
  std::string& bytes = out.bytes;
  if (value.isNone()) {
    bytes += 'n';
  } else if (value.isBool()) {
    bytes += value.toBool() ? 'T' : 'F';
  } else if (value.isInt()) {
    bytes += 'i';
    append_number(bytes, static_cast<std::uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    bytes += 'd';
    append_number(bytes, tensor::bits_of(value.toDouble()));
  } else if (value.isComplexDouble()) {
    bytes += 'c';
    append_number(bytes, tensor::bits_of(value.toComplexDouble().real()));
    append_number(bytes, tensor::bits_of(value.toComplexDouble().imag()));
  } else if (value.isString()) {
    bytes += 's';
    append_text(bytes, value.toStringRef());
  } else if (value.isDevice()) {
    bytes += 'v';
  } else if (value.isEnum()) {
    bytes += 'e';
    append_text(bytes, without_mangling(value.toEnumHolder()->qualifiedClassName()));
    append_text(bytes, value.toEnumHolder()->name());
    append_plain_value(value.toEnumHolder()->value(), out);
  } else {
    out.why_not_hashable = "a value of type " + value.tagKind();
  }
}

}  // namespace

void append_plain_value(const at::IValue& value, PlainValue& out) {
  if (value.isTensor()) {
    if (const char* why = why_not_hashable(value.toTensor())) {
      out.why_not_hashable = std::string("a tensor that is ") + why;
    }
    out.bytes += 't';
    append_number(out.bytes, out.tensors.size());
    out.tensors.push_back(value.toTensor());
  } else if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    out.bytes += '(';
    append_number(out.bytes, elements.size());
    for (const at::IValue& element : elements) append_plain_value(element, out);
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    out.bytes += '[';
    append_number(out.bytes, elements.size());
    for (const at::IValue& element : elements) append_plain_value(element, out);
  } else if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    out.bytes += '{';
    append_number(out.bytes, dict.size());
    for (const auto& item : dict) {
      append_plain_value(item.key(), out);
      append_plain_value(item.value(), out);
    }
  } else if (value.isObject()) {
    append_object(value, out);
  } else {
    append_scalar(value, out);
  }
}

void append_objects(PlainValue& value, const ClassMark& class_mark) {
  // Fields may lead to further objects, which are appended to the list.
  for (std::size_t i = 0; i < value.objects.size(); ++i) {
    const c10::intrusive_ptr<c10::ivalue::Object> object = value.objects[i];
    value.bytes += 'O';
    append_text(value.bytes, class_mark(object->type()));
    append_number(value.bytes, object->slots().size());
    for (const at::IValue& field : object->slots()) append_plain_value(field, value);
  }
}

Digest128 constant_digest(const at::IValue& value, std::string& why_not_hashable) {
  PlainValue plain;
  append_plain_value(value, plain);
  if (!plain.objects.empty()) plain.why_not_hashable = "an object";
  if (!plain.why_not_hashable.empty()) {
    why_not_hashable = "a constant of the code is " + plain.why_not_hashable;
    return {};
  }
  Xxh3Hasher hasher;
  hasher.add(plain.bytes);
  for (const at::Tensor& tensor : plain.tensors) hasher.add(module::hash_tensor(tensor).bytes());
  return hasher.digest();
}

}  // namespace modcache::module
