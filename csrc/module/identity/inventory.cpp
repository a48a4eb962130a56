// SPDX-License-Identifier: Apache-2.0
#include "module/identity/inventory.h"

#include <ATen/core/class_type.h>
#include <ATen/core/jit_type.h>

#include <cstdint>
#include <unordered_map>
#include <utility>

namespace modcache::module {
namespace {

bool same_scalar(const at::IValue& a, const at::IValue& b) {
  if (a.isInt()) return b.isInt() && a.toInt() == b.toInt();
  if (a.isBool()) return b.isBool() && a.toBool() == b.toBool();
  if (a.isNone()) return b.isNone();
  if (a.isString()) return b.isString() && a.toStringRef() == b.toStringRef();
  PlainValue first;
  PlainValue second;
  append_plain_value(a, first);
  append_plain_value(b, second);
  return first.bytes == second.bytes;
}

bool is_container(const at::IValue& value) {
  return value.isList() || value.isGenericDict() || value.isTuple();
}

// Lists the attributes at paths that begin with `first` again, at paths that begin with `other`.
void append_once_more(const std::string& first, const std::string& other,
                      std::vector<Inventory::Attribute>& found) {
  const std::size_t count = found.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (found[i].path.compare(0, first.size(), first) != 0) continue;
    Inventory::Attribute again = found[i];
    if (again.first_path.empty()) again.first_path = again.path;
    again.path.replace(0, first.size(), other);
    found.push_back(std::move(again));
  }
}

}  // namespace

// Lists what the method reaches. Objects are numbered in the order in which they are found.
struct Inventory::Walk {
  Inventory& inventory;
  const Source& source;
  std::vector<at::Tensor> tensors;
  std::unordered_map<const c10::ivalue::Object*, std::size_t> seen = {};
  std::uint64_t unreached_classes = 0;

  // Classes whose methods are not called get numbers in the order in which they are found.
  const std::string& class_mark(const c10::ClassTypePtr& type) {
    auto [mark, is_new] = inventory.class_marks_.try_emplace(type);
    if (is_new) {
      const auto reached = source.classes.find(type);
      const std::uint64_t number = reached != source.classes.end()
                                       ? reached->second
                                       : source.classes.size() + unreached_classes++;
      mark->second = std::to_string(number) + ':' + source.name_in_code(*type);
    }
    return mark->second;
  }

  std::size_t visit(const ObjectPtr& object, const std::string& path) {
    const auto [known, is_new] = seen.try_emplace(object.get(), inventory.objects_.size());
    const std::size_t owner = known->second;
    if (!is_new) return owner;
    const c10::ClassTypePtr type = object->type();
    inventory.objects_.push_back(object.get());
    inventory.types_.push_back(type);
    class_mark(type);
    const auto reached = source.attributes.find(type);
    if (reached == source.attributes.end()) return owner;
    std::set<std::string> names = reached->second.read;
    names.insert(reached->second.written.begin(), reached->second.written.end());
    for (const std::string& name : names) {
      const auto index = type->findAttributeSlot(name);
      if (!index.has_value()) continue;  // a constant of the class, which is part of the code
      Slot slot;
      slot.owner = owner;
      slot.index = *index;
      slot.is_interface = type->getAttribute(*index)->kind() == c10::TypeKind::InterfaceType;
      slot.is_read = reached->second.read.count(name) != 0;
      slot.is_written = reached->second.written.count(name) != 0;
      slot.path = path.empty() ? name : path + '.' + name;
      add(std::move(slot), object->getSlot(*index));
    }
    return owner;
  }

  void add(Slot slot, const at::IValue& value) {
    const std::size_t place = inventory.slots_.size();
    inventory.slots_.push_back(slot);  // first, as compare() must check it before what it leads to
    PlainValue plain;
    slot.kind = kind_of(value);
    if (slot.kind == Kind::kObject) {
      slot.target = visit(value.toObject(), slot.path);
      inventory.slots_[place] = std::move(slot);
      return;
    }
    if (slot.kind == Kind::kScalar) slot.scalar = value;
    append_plain_value(value, plain);
    append_objects(plain, [this](const c10::ClassTypePtr& type) { return class_mark(type); });
    if (slot.kind != Kind::kTensor) slot.bytes = plain.bytes;
    slot.target = tensors.size();
    slot.tensor_count = plain.tensors.size();
    for (at::Tensor& tensor : plain.tensors) {
      tensors.push_back(std::move(tensor));
      inventory.slot_of_tensor_.push_back(place);
    }
    if (slot.is_read && !plain.why_not_hashable.empty() && inventory.why_not_hashable_.empty()) {
      inventory.why_not_hashable_ = "attribute '" + slot.path + "' is " + plain.why_not_hashable;
    }
    inventory.slots_[place] = std::move(slot);
  }
};

Inventory::Inventory(const ObjectPtr& module, const Source& source, TensorWatch::Hashing hashing,
                     const Inventory* before)
    : is_hashed_(hashing == TensorWatch::Hashing::kContents) {
  Walk walk{*this, source, {}};
  walk.visit(module, "");
  if (!source.why_not_hashable.empty()) why_not_hashable_ = source.why_not_hashable;
  if (!why_not_hashable_.empty() && is_hashed_) {
    hashing = TensorWatch::Hashing::kNone;
    is_hashed_ = false;
  }
  // Digests are lent by index, which only means the same tensor in the same structure. So
  // TensorWatch compares identities before it takes one.
  const bool may_lend = before != nullptr && before->is_hashed_;
  tensors_ = std::make_shared<const TensorWatch>(walk.tensors, hashing,
                                                 may_lend ? before->tensors_.get() : nullptr);
}

bool Inventory::slot_is_same(const Slot& slot, const at::IValue& now) const {
  switch (slot.kind) {
    case Kind::kTensor:
      return now.isTensor() && tensors_->same_identity(slot.target, now.toTensor());
    case Kind::kObject:
      return now.isObject() && &now.toObjectRef() == objects_[slot.target] &&
             (!slot.is_interface || now.toObjectRef().type() == types_[slot.target]);
    case Kind::kScalar: return same_scalar(slot.scalar, now);
    case Kind::kContainer: break;
  }
  const PlainValue plain = written_down(now);
  if (plain.bytes != slot.bytes || plain.tensors.size() != slot.tensor_count) return false;
  for (std::size_t i = 0; i < plain.tensors.size(); ++i) {
    if (!tensors_->same_identity(slot.target + i, plain.tensors[i])) return false;
  }
  return true;
}

PlainValue Inventory::written_down(const at::IValue& value) const {
  PlainValue plain;
  append_plain_value(value, plain);
  append_objects(plain, [this](const c10::ClassTypePtr& type) {
    // A class that the module did not have at the time gets a mark that no other has.
    const auto mark = class_marks_.find(type);
    return mark != class_marks_.end() ? mark->second : "new";
  });
  return plain;
}

std::string Inventory::describe(const Slot& slot) const {
  const char* kind = slot.kind == Kind::kTensor   ? "tensor '"
                     : slot.kind == Kind::kObject ? "submodule '"
                                                  : "attribute '";
  return kind + slot.path + "'";
}

std::optional<std::string> Inventory::compare(const c10::ivalue::Object& module,
                                              Depth depth) const {
  if (&module != objects_.front() || module.type() != types_.front()) {
    return "the module itself";
  }
  for (const Slot& slot : slots_) {
    if (!slot_is_same(slot, objects_[slot.owner]->getSlot(slot.index))) return describe(slot);
  }
  if (depth == Depth::kIdentity) return std::nullopt;
  const auto changed = tensors_->find_change();
  if (!changed.has_value()) return std::nullopt;
  return describe(slots_[slot_of_tensor_[*changed]]);
}

std::optional<std::string> Inventory::changed_uncounted() const {
  if (!tensors_->has_uncounted()) return std::nullopt;
  std::size_t index = 0;
  std::optional<std::size_t> culprit;
  // Visits tensors in the order of the walk, which is that of `tensors_`.
  const bool is_same = for_each_tensor([&](const at::Tensor& tensor) {
    if (!culprit.has_value() && !tensors_->uncounted_matches(index, tensor)) culprit = index;
    ++index;
  });
  if (!is_same) return "the module itself";
  if (!culprit.has_value()) return std::nullopt;
  return describe(slots_[slot_of_tensor_[*culprit]]);
}

template <typename Visit>
bool Inventory::for_each_tensor(Visit&& visit) const {
  for (const Slot& slot : slots_) {
    const at::IValue& now = objects_[slot.owner]->getSlot(slot.index);
    if (slot.kind == Kind::kObject) {
      if (!slot_is_same(slot, now)) return false;
    } else if (slot.kind == Kind::kTensor) {
      if (!now.isTensor()) return false;
      visit(now.toTensor());
    } else if (slot.kind == Kind::kScalar) {
      if (now.isTensor()) return false;
    } else if (slot.tensor_count != 0 || is_container(now)) {
      const PlainValue plain = written_down(now);
      if (plain.tensors.size() != slot.tensor_count) return false;
      for (const at::Tensor& tensor : plain.tensors) visit(tensor);
    }
  }
  return true;
}

std::optional<tensor::RequiringGrad> Inventory::requiring_grad(
    const c10::ivalue::Object& module) const {
  if (&module != objects_.front() || module.type() != types_.front()) return std::nullopt;
  tensor::RequiringGrad found;
  const bool is_known = for_each_tensor([&](const at::Tensor& tensor) { found.add(tensor); });
  if (!is_known) return std::nullopt;
  return found;
}

Digest128 Inventory::digest() const {
  AttributesHasher hasher;
  for (const Slot& slot : slots_) {
    if (!slot.is_read) continue;
    if (slot.kind == Kind::kObject) {
      hasher.add_submodule(slot.path, slot.target, class_marks_.at(types_[slot.target]));
      continue;
    }
    hasher.add_value(slot.path, slot.kind, slot.bytes);
    for (std::size_t i = 0; i < slot.tensor_count; ++i) {
      hasher.add_tensor(tensors_->digest(slot.target + i));
    }
  }
  return hasher.digest();
}

std::vector<Inventory::AttributeDigest> Inventory::attribute_digests() const {
  std::vector<AttributeDigest> found;
  for (const Slot& slot : slots_) {
    if (!slot.is_read) continue;
    if (slot.kind == Kind::kTensor) {
      found.push_back({slot.path, true, tensors_->digest(slot.target)});
      continue;
    }
    Xxh3Hasher hasher;
    hasher.add(slot.kind == Kind::kObject ? class_marks_.at(types_[slot.target]) : slot.bytes);
    for (std::size_t i = 0; i < slot.tensor_count; ++i) {
      hasher.add(tensors_->digest(slot.target + i).bytes());
    }
    found.push_back({slot.path, false, hasher.digest()});
  }
  return found;
}

std::vector<Inventory::Attribute> Inventory::attributes() const {
  std::vector<Attribute> found;
  found.reserve(slots_.size());
  std::map<std::size_t, std::string> first_paths;  // by object
  for (const Slot& slot : slots_) {
    const bool is_object = slot.kind == Kind::kObject;
    found.push_back({slot.path, slot.kind, slot.is_read, slot.is_written, slot.is_interface,
                     is_object ? slot.target : 0,
                     is_object ? class_marks_.at(types_[slot.target]) : std::string(), ""});
    if (!is_object) continue;
    const auto [first, is_new] = first_paths.try_emplace(slot.target, slot.path);
    if (!is_new) append_once_more(first->second + '.', slot.path + '.', found);
  }
  return found;
}

AttributeKind kind_of(const at::IValue& value) {
  if (value.isTensor()) return AttributeKind::kTensor;
  if (value.isObject()) {
    return value.toObjectRef().type()->is_module() ? AttributeKind::kObject
                                                   : AttributeKind::kContainer;
  }
  const bool is_container = value.isList() || value.isGenericDict() || value.isTuple();
  return is_container ? AttributeKind::kContainer : AttributeKind::kScalar;
}

void AttributesHasher::add_submodule(const std::string& path, std::size_t object,
                                     const std::string& class_mark) {
  hasher_.add(path);
  hasher_.add(static_cast<std::uint64_t>(AttributeKind::kObject));
  hasher_.add(static_cast<std::uint64_t>(object));
  hasher_.add(class_mark);
}

void AttributesHasher::add_value(const std::string& path, AttributeKind kind,
                                 const std::string& bytes) {
  hasher_.add(path);
  hasher_.add(static_cast<std::uint64_t>(kind));
  hasher_.add(bytes);
}

std::string fingerprint_of(const Digest128& code, const Digest128& attributes) {
  Xxh3Hasher hasher;
  hasher.add("modcache fingerprint 1");
  hasher.add(code.bytes());
  hasher.add(attributes.bytes());
  return hasher.digest().hex();
}

}  // namespace modcache::module
