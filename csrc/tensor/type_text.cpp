// SPDX-License-Identifier: Apache-2.0
#include "tensor/type_text.h"

#include <cstddef>
#include <exception>
#include <unordered_map>
#include <utility>
#include <vector>

namespace modcache::tensor {
namespace {

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

}  // namespace

TypePtr parse_type(std::string_view text) {
  try {
    TypeReader reader(text);
    TypePtr type = reader.next();
    return reader.is_at_end() ? type : nullptr;
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // namespace modcache::tensor
