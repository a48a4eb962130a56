// SPDX-License-Identifier: Apache-2.0
#include "tensor/tree.h"

#include <ATen/core/function_schema.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "tensor/storable.h"

namespace modcache::tensor {
namespace {

using Kind = Node::Kind;

constexpr const char* kNoText = "text that is no UTF-8";

Node node_of(Kind kind) {
  Node node;
  node.kind = kind;
  return node;
}

Node text_node(std::string text) {
  Node node = node_of(Kind::kString);
  node.text = std::move(text);
  return node;
}

bool is_plain(const at::IValue& value) {
  return value.isNone() || value.isBool() || value.isInt() || value.isDouble() ||
         value.isComplexDouble() || value.isString();
}

Node plain_node(const at::IValue& value) {
  Node node = node_of(Kind::kNone);
  if (value.isBool()) {
    node.kind = Kind::kBool;
    node.integer = value.toBool() ? 1 : 0;
  } else if (value.isInt()) {
    node.kind = Kind::kInt;
    node.integer = value.toInt();
  } else if (value.isDouble()) {
    node.kind = Kind::kFloat;
    node.real = value.toDouble();
  } else if (value.isComplexDouble()) {
    node.kind = Kind::kComplex;
    node.real = value.toComplexDouble().real();
    node.imaginary = value.toComplexDouble().imag();
  } else if (value.isString()) {
    return text_node(value.toStringRef());
  }
  return node;
}

class Flattener {
 public:
  explicit Flattener(Flat& flat) : flat_(flat) {}

  Node visit(const at::IValue& value, int depth) {
    if (value.isTensor()) {
      flat_.tensors.push_back(value.toTensor());
      return node_of(Kind::kTensor);
    }
    if (value.isString() && !is_utf8(value.toStringRef())) return refuse(kNoText);
    if (is_plain(value)) return plain_node(value);
    if (depth >= ValueHeader::kMostDepth) return refuse("a value nested too deeply");
    if (value.isTuple()) return tuple(value.toTupleRef(), depth);
    if (value.isList()) return list(value, depth);
    if (value.isGenericDict()) return dict(value, depth);
    return refuse("a value of type " + value.tagKind());
  }

 private:
  Node refuse(std::string why) {
    if (flat_.why_not_storable.empty()) flat_.why_not_storable = std::move(why);
    return node_of(Kind::kNone);
  }

  Node tuple(const c10::ivalue::Tuple& value, int depth) {
    Node node = node_of(Kind::kTuple);
    const auto type = value.type<c10::TupleType>();
    if (type->schema() != nullptr) {
      node.kind = Kind::kNamedTuple;
      node.text = type->name().has_value() ? type->name()->qualifiedName() : "";
      for (const auto& field : type->schema()->arguments()) node.names.push_back(field.name());
    }
    for (const at::IValue& element : value.elements()) {
      node.children.push_back(visit(element, depth + 1));
    }
    return node;
  }

  Node list(const at::IValue& value, int depth) {
    Node node = node_of(Kind::kList);
    node.types = {value.toList().elementType()->annotation_str()};
    for (const at::IValue& element : value.toListRef()) {
      node.children.push_back(visit(element, depth + 1));
    }
    return node;
  }

  Node dict(const at::IValue& value, int depth) {
    Node node = node_of(Kind::kDict);
    const auto items = value.toGenericDict();
    node.types = {items.keyType()->annotation_str(), items.valueType()->annotation_str()};
    for (const auto& item : items) {
      if (!item.key().isString() && !item.key().isInt()) {
        return refuse("a dict with keys of type " + item.key().tagKind());
      }
      if (item.key().isString() && !is_utf8(item.key().toStringRef())) return refuse(kNoText);
      node.children.push_back(plain_node(item.key()));
      node.children.push_back(visit(item.value(), depth + 1));
    }
    return node;
  }

  Flat& flat_;
};

// The tag in Python's tuples for a value that cannot be stored; the reason follows.
constexpr char kRefused = '?';

// Reads the tagged tuples that tree.h describes.
class TaggedFlattener {
 public:
  explicit TaggedFlattener(Flat& flat) : flat_(flat) {}

  Node visit(const at::IValue& value, int depth) {
    if (value.isTensor()) {
      flat_.tensors.push_back(value.toTensor());
      return node_of(Kind::kTensor);
    }
    if (is_plain(value)) return plain_node(value);
    if (depth >= ValueHeader::kMostDepth) {
      flat_.why_not_storable = "a value nested too deeply";
      return node_of(Kind::kNone);
    }
    const auto& parts = elements_of(value);
    check(!parts.empty() && parts[0].isString() && parts[0].toStringRef().size() == 1);
    const char tag = parts[0].toStringRef()[0];
    if (tag == kRefused) {
      check(parts.size() == 2);
      flat_.why_not_storable = parts[1].toStringRef();
      return node_of(Kind::kNone);
    }
    Node node = node_of(static_cast<Kind>(tag));
    std::size_t items = 1;
    switch (node.kind) {
      case Kind::kTuple: break;
      case Kind::kList: node.types = {""}; break;
      case Kind::kDict: return dict(parts, depth);
      case Kind::kNamedTuple:
        check(parts.size() == 4);
        node.text = parts[1].toStringRef();
        for (const at::IValue& field : elements_of(parts[2])) {
          node.names.push_back(field.toStringRef());
        }
        check(node.names.size() == elements_of(parts[3]).size());
        items = 3;
        break;
      case Kind::kObject:
        check(parts.size() == 4);
        node.text = parts[1].toStringRef();
        node.types = {parts[2].toStringRef()};
        items = 3;
        break;
      default: check(false);
    }
    check(parts.size() == items + 1);
    for (const at::IValue& item : elements_of(parts[items])) {
      node.children.push_back(visit(item, depth + 1));
    }
    return node;
  }

 private:
  static void check(bool is_so) { TORCH_CHECK(is_so, "modcache: not a tagged value"); }
  static c10::ArrayRef<at::IValue> elements_of(const at::IValue& value) {
    check(value.isTuple());
    return value.toTupleRef().elements();
  }

  Node dict(c10::ArrayRef<at::IValue> parts, int depth) {
    check(parts.size() == 3);
    Node node = node_of(Kind::kDict);
    node.types = {"", ""};
    const auto keys = elements_of(parts[1]);
    const auto values = elements_of(parts[2]);
    check(keys.size() == values.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      check(keys[i].isString() || keys[i].isInt());
      node.children.push_back(plain_node(keys[i]));
      node.children.push_back(visit(values[i], depth + 1));
    }
    return node;
  }

  Flat& flat_;
};

class Tagger {
 public:
  explicit Tagger(const std::vector<at::Tensor>& tensors) : next_(tensors.data()) {}

  at::IValue visit(const Node& node) {
    switch (node.kind) {
      case Kind::kTensor: return *next_++;
      case Kind::kNone: return {};
      case Kind::kBool: return node.integer != 0;
      case Kind::kInt: return node.integer;
      case Kind::kFloat: return node.real;
      case Kind::kComplex: return c10::complex<double>(node.real, node.imaginary);
      case Kind::kString: return node.text;
      case Kind::kDict: return dict(node);
      default: break;
    }
    std::vector<at::IValue> parts{tag_of(node)};
    if (node.kind == Kind::kNamedTuple) {
      parts.emplace_back(node.text);
      parts.push_back(tuple(std::vector<at::IValue>(node.names.begin(), node.names.end())));
    } else if (node.kind == Kind::kObject) {
      parts.emplace_back(node.text);
      parts.emplace_back(node.types[0]);
    }
    std::vector<at::IValue> items;
    items.reserve(node.children.size());
    for (const Node& child : node.children) items.push_back(visit(child));
    parts.push_back(tuple(std::move(items)));
    return tuple(std::move(parts));
  }

 private:
  static at::IValue tag_of(const Node& node) {
    return std::string(1, static_cast<char>(node.kind));
  }
  static at::IValue tuple(std::vector<at::IValue> items) {
    return c10::ivalue::Tuple::create(std::move(items));
  }
  at::IValue dict(const Node& node) {
    std::vector<at::IValue> keys;
    std::vector<at::IValue> values;
    for (std::size_t i = 0; i + 1 < node.children.size(); i += 2) {
      keys.push_back(visit(node.children[i]));
      values.push_back(visit(node.children[i + 1]));
    }
    return tuple({tag_of(node), tuple(std::move(keys)), tuple(std::move(values))});
  }

  const at::Tensor* next_;
};

using c10::TypePtr;

// Bounds the recursion, as stored text may come from a stranger. No type that people write nests so
// deep.
constexpr int kMostNested = 64;

TypePtr type_named(std::string_view name) {
  static const auto* const types = new std::unordered_map<std::string_view, TypePtr>{
      {"Tensor", c10::TensorType::get()},    {"int", c10::IntType::get()},
      {"float", c10::FloatType::get()},      {"bool", c10::BoolType::get()},
      {"complex", c10::ComplexType::get()},  {"str", c10::StringType::get()},
      {"number", c10::NumberType::get()},    {"None", c10::NoneType::get()},
      {"NoneType", c10::NoneType::get()},    {"Any", c10::AnyType::get()},
      {"Device", c10::DeviceObjType::get()}, {"Stream", c10::StreamObjType::get()},
      {"Capsule", c10::CapsuleType::get()},  {"list", c10::AnyListType::get()},
      {"tuple", c10::AnyTupleType::get()},
  };
  const auto found = types->find(name);
  return found == types->end() ? nullptr : found->second;
}

// Makes `name`[`items`]. Throws what torch throws, for instance for a dict whose keys are lists.
TypePtr type_of(std::string_view name, std::vector<TypePtr> items) {
  if (name == "Tuple") return c10::TupleType::create(std::move(items));
  if (name == "Union") return c10::UnionType::create(std::move(items));
  if (name == "Dict" && items.size() == 2) return c10::DictType::create(items[0], items[1]);
  if (items.size() != 1) return nullptr;
  if (name == "List") return c10::ListType::create(items[0]);
  if (name == "Optional") return c10::OptionalType::create(items[0]);
  if (name == "Future") return c10::FutureType::create(items[0]);
  return nullptr;
}

// Reads types one after another from the front of a text.
class TypeReader {
 public:
  explicit TypeReader(std::string_view text) : rest_(text) {}

  bool is_at_end() const { return rest_.empty(); }

  TypePtr next(int depth = 0) {
    const std::string_view name = rest_.substr(0, rest_.find_first_of("[], "));
    rest_.remove_prefix(name.size());
    if (!skip("[")) return type_named(name);
    std::vector<TypePtr> items;
    if (depth == kMostNested) return nullptr;
    if (skip("()]")) return type_of(name, {});  // Tuple[()]
    do {
      TypePtr item = next(depth + 1);
      if (item == nullptr) return nullptr;
      items.push_back(std::move(item));
    } while (skip(", "));
    return skip("]") ? type_of(name, std::move(items)) : nullptr;
  }

 private:
  bool skip(std::string_view text) {
    if (rest_.substr(0, text.size()) != text) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  std::string_view rest_;
};

using c10::TypeKind;

// Thrown when the tree is not a value of the requested type.
struct Mismatch : std::exception {};

bool is_known(const TypePtr& type) { return type != nullptr && type->kind() != TypeKind::AnyType; }

// Rebuilds a value as TorchScript's type demands: a list has its element type even when it is
// empty, and a named tuple has its class, so that isinstance answers the same on a miss and on a
// hit.
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

bool Flat::requires_grad() const {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  });
}

at::IValue with_tensors(const at::IValue& value,
                        const std::function<at::Tensor(const at::Tensor&)>& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTuple()) {
    std::vector<at::IValue> items;
    for (const at::IValue& item : value.toTupleRef().elements()) {
      items.push_back(with_tensors(item, replace));
    }
    const auto type = value.toTupleRef().type<c10::TupleType>();
    return type->schema() != nullptr ? c10::ivalue::Tuple::createNamed(std::move(items), type)
                                     : c10::ivalue::Tuple::create(std::move(items));
  }
  if (value.isList()) {
    c10::impl::GenericList list(value.toList().elementType());
    for (const at::IValue& item : value.toListRef()) list.push_back(with_tensors(item, replace));
    return list;
  }
  if (value.isGenericDict()) {
    const auto items = value.toGenericDict();
    c10::impl::GenericDict dict(items.keyType(), items.valueType());
    for (const auto& item : items) dict.insert(item.key(), with_tensors(item.value(), replace));
    return dict;
  }
  return value;
}

Flat flatten(const at::IValue& value) {
  Flat flat;
  flat.root = Flattener(flat).visit(value, 0);
  return flat;
}

Flat flatten_tagged(const at::IValue& value) {
  Flat flat;
  flat.root = TaggedFlattener(flat).visit(value, 0);
  return flat;
}

std::string why_not_storable(const Flat& value) {
  if (!value.why_not_storable.empty()) return value.why_not_storable;
  for (const at::Tensor& tensor : value.tensors) {
    if (const char* why = why_not_storable(tensor)) return why;
  }
  return {};
}

at::IValue rebuild_tagged(const Node& root, const std::vector<at::Tensor>& tensors) {
  return Tagger(tensors).visit(root);
}

TypePtr parse_type(std::string_view text) {
  try {
    TypeReader reader(text);
    TypePtr type = reader.next();
    return reader.is_at_end() ? type : nullptr;
  } catch (const std::exception&) {
    return nullptr;
  }
}

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
