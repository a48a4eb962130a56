// SPDX-License-Identifier: Apache-2.0
//
// Rebuilds values as TorchScript's types demand: a list knows the type of its elements even when it
// is empty, and a named tuple knows its class, so that isinstance answers the same on a miss and on
// a hit.
#include <ATen/core/function_schema.h>

#include <exception>
#include <optional>
#include <utility>

#include "tensor/tree.h"

namespace modcache::tensor {
namespace {

using Kind = Node::Kind;
using c10::TypeKind;
using c10::TypePtr;

// Thrown when the tree is not a value of the requested type.
struct Mismatch : std::exception {};

bool is_known(const TypePtr& type) { return type != nullptr && type->kind() != TypeKind::AnyType; }

class Rebuilder {
 public:
  explicit Rebuilder(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {}

  at::IValue visit(const Node& node, const TypePtr& type) {
    if (!is_known(type)) return freely(node);
    switch (type->kind()) {
      case TypeKind::OptionalType:
        return node.kind == Kind::kNone
                   ? at::IValue()
                   : visit(node, type->expectRef<c10::OptionalType>().getElementType());
      case TypeKind::UnionType: return one_of(node, type->expectRef<c10::UnionType>());
      case TypeKind::TupleType: return tuple(node, type->cast<c10::TupleType>());
      case TypeKind::ListType: return list_as(node, *type->cast<c10::ListType>());
      case TypeKind::DictType: return dict(node, *type->cast<c10::DictType>());
      case TypeKind::NumberType:
        if (node.kind == Kind::kInt || node.kind == Kind::kFloat || node.kind == Kind::kComplex) {
          return freely(node);
        }
        throw Mismatch();
      default:
        if (type->kind() != kind_of(node)) throw Mismatch();
        return freely(node);
    }
  }

 private:
  // The type of a leaf; AnyType for other nodes, as no declared type of a leaf is Any.
  static TypeKind kind_of(const Node& node) {
    switch (node.kind) {
      case Kind::kTensor: return TypeKind::TensorType;
      case Kind::kNone: return TypeKind::NoneType;
      case Kind::kBool: return TypeKind::BoolType;
      case Kind::kInt: return TypeKind::IntType;
      case Kind::kFloat: return TypeKind::FloatType;
      case Kind::kComplex: return TypeKind::ComplexType;
      case Kind::kString: return TypeKind::StringType;
      default: return TypeKind::AnyType;
    }
  }

  at::IValue freely(const Node& node) {
    switch (node.kind) {
      case Kind::kTensor: return tensors_.at(next_++);
      case Kind::kNone: return {};
      case Kind::kBool: return node.integer != 0;
      case Kind::kInt: return node.integer;
      case Kind::kFloat: return node.real;
      case Kind::kComplex: return c10::complex<double>(node.real, node.imaginary);
      case Kind::kString: return node.text;
      case Kind::kTuple:
      case Kind::kNamedTuple: return tuple(node, nullptr);
      case Kind::kList: return list(node, noted_type(node, 0));
      case Kind::kDict: return dict_of(node, noted_type(node, 0), noted_type(node, 1));
      case Kind::kObject: throw Mismatch();
    }
    throw Mismatch();
  }

  // The type that the tree noted; null where there is none, and where the text is not the name of a
  // built-in type, as with classes. Then the elements tell the type; an empty container has none,
  // and is a mismatch.
  static TypePtr noted_type(const Node& node, std::size_t i) {
    TypePtr type = parse_type(node.types[i]);
    if (type == nullptr && !node.types[i].empty() && node.children.empty()) throw Mismatch();
    return type;
  }

  // Returns a value of the member type whose noted types match exactly, which tells even empty
  // lists apart; else of the first member that can hold the value.
  at::IValue one_of(const Node& node, const c10::UnionType& type) {
    const bool was_exact = is_exact_;
    for (const bool is_exact : {true, false}) {
      if (was_exact && !is_exact) break;
      is_exact_ = is_exact;
      std::optional<at::IValue> value = first_that_fits(node, type);
      is_exact_ = was_exact;
      if (value.has_value()) return *std::move(value);
    }
    throw Mismatch();
  }
  std::optional<at::IValue> first_that_fits(const Node& node, const c10::UnionType& type) {
    const std::size_t next = next_;
    for (const TypePtr& choice : type.containedTypes()) {
      try {
        return visit(node, choice);
      } catch (const Mismatch&) {
        next_ = next;
      }
    }
    return std::nullopt;
  }
  void check_noted(const std::string& noted, const TypePtr& type) const {
    if (is_exact_ && !noted.empty() && noted != type->annotation_str()) throw Mismatch();
  }

  at::IValue tuple(const Node& node, const c10::TupleTypePtr& type) {
    if (node.kind != Kind::kTuple && node.kind != Kind::kNamedTuple) throw Mismatch();
    if (type != nullptr) check_tuple(node, *type);
    std::vector<at::IValue> items;
    items.reserve(node.children.size());
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      items.push_back(visit(node.children[i], type != nullptr ? type->elements()[i] : nullptr));
    }
    if (type != nullptr && type->schema() != nullptr) {
      return c10::ivalue::Tuple::createNamed(std::move(items), type);
    }
    if (type != nullptr || node.kind == Kind::kTuple) {
      return c10::ivalue::Tuple::create(std::move(items));
    }
    std::vector<TypePtr> types;
    types.reserve(items.size());
    for (const at::IValue& item : items) types.push_back(c10::unshapedType(item.type()));
    auto named = c10::TupleType::createNamed(c10::QualifiedName(node.text), node.names, types);
    return c10::ivalue::Tuple::createNamed(std::move(items), std::move(named));
  }

  void check_tuple(const Node& node, const c10::TupleType& type) const {
    if (type.elements().size() != node.children.size()) throw Mismatch();
    const bool is_named = node.kind == Kind::kNamedTuple;
    if (is_exact_ && is_named != (type.schema() != nullptr)) throw Mismatch();
    if (!is_named || type.schema() == nullptr) return;
    const auto& fields = type.schema()->arguments();
    if (node.names.size() != fields.size()) throw Mismatch();
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].name() != node.names[i]) throw Mismatch();
    }
  }

  // The type of elements for which no type is known: that of the first one, where all have it.
  static TypePtr type_of(const std::vector<at::IValue>& items) {
    if (items.empty()) return c10::TensorType::get();  // as TorchScript types an empty []
    TypePtr type = c10::unshapedType(items[0].type());
    for (const at::IValue& item : items) {
      if (*c10::unshapedType(item.type()) != *type) return c10::AnyType::get();
    }
    return type;
  }

  at::IValue list_as(const Node& node, const c10::ListType& type) {
    if (node.kind != Kind::kList) throw Mismatch();
    check_noted(node.types[0], type.getElementType());
    return list(node, type.getElementType());
  }

  at::IValue list(const Node& node, TypePtr element) {
    std::vector<at::IValue> items;
    items.reserve(node.children.size());
    for (const Node& child : node.children) items.push_back(visit(child, element));
    if (element == nullptr) element = type_of(items);
    c10::impl::GenericList list(std::move(element));
    list.reserve(items.size());
    for (at::IValue& item : items) list.push_back(std::move(item));
    return list;
  }

  at::IValue dict(const Node& node, const c10::DictType& type) {
    if (node.kind != Kind::kDict) throw Mismatch();
    check_noted(node.types[0], type.getKeyType());
    check_noted(node.types[1], type.getValueType());
    return dict_of(node, type.getKeyType(), type.getValueType());
  }

  at::IValue dict_of(const Node& node, TypePtr key, TypePtr value) {
    std::vector<at::IValue> keys;
    std::vector<at::IValue> values;
    for (std::size_t i = 0; i + 1 < node.children.size(); i += 2) {
      keys.push_back(visit(node.children[i], key));
      values.push_back(visit(node.children[i + 1], value));
    }
    if (key == nullptr) key = keys.empty() ? TypePtr(c10::StringType::get()) : type_of(keys);
    if (value == nullptr) value = type_of(values);
    if (key->kind() == TypeKind::AnyType) throw Mismatch();  // TorchScript has no such dict
    c10::impl::GenericDict dict(std::move(key), std::move(value));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      dict.insert(std::move(keys[i]), std::move(values[i]));
    }
    return dict;
  }

  const std::vector<at::Tensor>& tensors_;
  std::size_t next_ = 0;
  bool is_exact_ = false;
};

}  // namespace

std::optional<at::IValue> rebuild(const Node& root, const std::vector<at::Tensor>& tensors,
                                  const TypePtr& type) {
  try {
    return Rebuilder(tensors).visit(root, type);
  } catch (const Mismatch&) {
    return std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;  // torch refused a class name, field name or key
  }
}

}  // namespace modcache::tensor
