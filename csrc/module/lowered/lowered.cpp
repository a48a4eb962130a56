// SPDX-License-Identifier: Apache-2.0
#include "module/lowered/lowered.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/process_wide.h"
#include "cache/cache.h"
#include "module/call/current_cache.h"
#include "module/code/plain_value.h"
#include "module/lowered/recipe.h"
#include "tensor/input.h"
#include "tensor/rows.h"
#include "tensor/tree.h"

namespace modcache::module {
namespace {

// The state of a module's attributes at one moment. Immutable.
struct Known {
  std::shared_ptr<const Recipe> recipe;
  std::string plain_bytes;  // of all values together
  std::shared_ptr<const TensorWatch> tensors;
  std::string fingerprint;
};
using KnownPtr = std::shared_ptr<const Known>;

// Modules come and go; at most this many are remembered.
constexpr std::size_t kMostKnown = 512;

struct LoweredRegistry : ProcessWide<LoweredRegistry> {
  std::unordered_map<Digest128, KnownPtr, Digest128Hash> known MODCACHE_GUARDED_BY(mutex);
};

// Connects two operators that follow each other in a graph. The fingerprint alone would not do, as
// modules of equal weights share it, but not their tensors.
struct LastIdentified {
  std::string fingerprint;
  std::shared_ptr<const TensorWatch> tensors;
};
thread_local LastIdentified last;

PlainValue written_down(const at::IValue& attributes) {
  PlainValue all;
  append_plain_value(attributes, all);
  return all;
}

// The first tensor's address is part of the key: two modules of one class share a recipe and differ
// in their tensors.
Digest128 place_of(const std::string& recipe, const PlainValue& values) {
  Xxh3Hasher hasher;
  hasher.add(recipe);
  if (!values.tensors.empty()) {
    hasher.add(reinterpret_cast<std::uintptr_t>(values.tensors[0].unsafeGetTensorImpl()));
  }
  return hasher.digest();
}

KnownPtr find(const Digest128& place) {
  LoweredRegistry& all = LoweredRegistry::instance();
  MutexLock lock(all.mutex);
  const auto found = all.known.find(place);
  return found == all.known.end() ? nullptr : found->second;
}

void keep(const Digest128& place, KnownPtr known) {
  LoweredRegistry& all = LoweredRegistry::instance();
  MutexLock lock(all.mutex);
  if (all.known.size() >= kMostKnown) all.known.clear();
  all.known[place] = std::move(known);
}

// Returns null for a recipe of another version, which is counted and logged.
std::shared_ptr<const Recipe> parsed(const std::string& text) {
  auto recipe = Recipe::parse(text);
  if (recipe.is_ok()) return std::make_shared<const Recipe>(std::move(recipe).value());
  current_cache()->counters().add(cache::Counter::kErrors);
  log_once(LogLevel::kError, "recipe",
           recipe.status().message() + ": its module runs uncached. Lower the model again with " +
               "this modcache, or load it with the newer one that lowered it");
  return nullptr;
}

// A value, serialized as `bytes`, whose tensors are numbered from `tensor` on.
struct Place {
  std::string bytes;
  std::size_t tensor_count;
  std::size_t tensor;
};

// Compares contents, as freezing makes two constants of one attribute at two paths.
bool are_one(const Place& a, const Place& b, const TensorWatch& tensors) {
  if (a.bytes != b.bytes || a.tensor_count != b.tensor_count) return false;
  for (std::size_t i = 0; i < a.tensor_count; ++i) {
    if (tensors.digest(a.tensor + i) != tensors.digest(b.tensor + i)) return false;
  }
  return true;
}

// Returns an empty text when a value cannot be hashed, or when it holds an object, whose class the
// recipe does not name.
std::string fingerprint_by(const Recipe& recipe, const at::IValue& attributes,
                           const TensorWatch& tensors) {
  const auto& values = attributes.toTupleRef().elements();
  std::vector<Place> places;  // of the steps
  AttributesHasher hasher;
  std::size_t value = 0;
  std::size_t tensor = 0;
  for (const Recipe::Step& step : recipe.steps) {
    if (step.is_submodule) {
      places.push_back({});
      hasher.add_submodule(step.path, step.object, step.class_mark);
      continue;
    }
    TORCH_CHECK(value < values.size(), "cache::_identity: the recipe wants more attributes than ",
                values.size());
    PlainValue plain = written_down(values[value]);
    if (!plain.why_not_hashable.empty() || !plain.objects.empty()) return {};
    const AttributeKind kind = kind_of(values[value++]);
    const Place& place = places.emplace_back(Place{plain.bytes, plain.tensors.size(), tensor});
    tensor += plain.tensors.size();
    if (step.same_as.has_value() && are_one(place, places.at(*step.same_as), tensors)) continue;
    hasher.add_value(step.path, kind, kind == AttributeKind::kTensor ? "" : plain.bytes);
    for (std::size_t i = 0; i < plain.tensors.size(); ++i) {
      hasher.add_tensor(tensors.digest(place.tensor + i));
    }
  }
  return fingerprint_of(recipe.code, hasher.digest());
}

}  // namespace

bool LoweredCall::prepare(CallParts& parts, tensor::Per per, std::int64_t rows) const {
  parts.class_name = constants_.class_name;
  parts.method = constants_.method;
  if (is_bypassed_by_mode(parts, rows)) return false;
  if (!read_input(parts, input_, per, rows)) return false;
  parts.grad_pattern = grad_pattern(constants_.identity.grad_pattern, parts.input);
  parts.scope = constants_.scope.empty() ? constants_.identity.fingerprint : constants_.scope;
  parts.has_fixed_shape = true;  // the graph cannot catch an exception of a check run
  if (!parts.scope.empty()) return true;
  refuse_unidentified(parts, rows, "an attribute of it cannot be hashed");
  return false;
}

LoweredCall::LoweredCall(LoweredConstants constants, at::IValue input, CallKeys keys)
    : constants_(std::move(constants)), input_(std::move(input)) {
  const auto rows = static_cast<std::int64_t>(keys.rows());
  if (!keys.is_whole()) tensor::check_rows(input_, rows);
  if (rows == 0) return;
  CallParts parts;
  if (!prepare(parts, keys.per(), rows)) return;
  Call call(parts, keys);
  Begun begun = call.begin();
  run_ = std::move(begun.run);
  std::string why_apart;
  if (!begun.value.has_value()) {
    // There is a run, or the call bypasses the cache.
  } else if (accept(*std::move(begun.value), why_apart)) {
    must_run_ = false;
  } else {
    run_ = call.reject(why_apart);
  }
}

bool LoweredCall::accept(CallValue value, std::string& why_apart) {
  value_ = constants_.declared.value_of(std::move(value), why_apart);
  return value_.has_value();
}

at::IValue LoweredCall::begin_run(const std::string& fingerprint, const at::IValue& replaceable) {
  if (constants_.scope.empty() && weights_ == nullptr) weights_ = last_identified(fingerprint);
  is_another_ = is_another_ || fingerprint != constants_.identity.fingerprint;
  if (!kept_.has_value()) kept_ = tensors_of(replaceable);
  if (run_ == nullptr) return input_;
  const Step& step = *run_->step();
  if (step.kind == Step::Kind::kRun) run_->start();
  return step.input_of(input_);
}

void LoweredCall::finish_run(const at::IValue& result, const States& states) {
  constants_.declared.check_wanted(result.isTensor(), result.tagKind());
  if (run_ == nullptr) {
    must_run_ = false;
    is_last_run_ = true;
    return;
  }
  const bool is_run = run_->step()->kind == Step::Kind::kRun;
  tensor::Flat flat = tensor::flatten(result);
  const RunFacts facts = is_run ? facts_of(flat, states) : RunFacts{};
  run_->finish(std::move(flat), facts);
  next_step(is_run);
}

void LoweredCall::next_step(bool has_own_result) {
  while (run_->step() == nullptr) {
    must_run_ = false;
    auto value = run_->value(has_own_result);
    if (!value.has_value()) {
      is_last_run_ = true;
      return;
    }
    std::string why_apart;
    if (accept(*std::move(value), why_apart)) return;
    run_->reject(why_apart);
    must_run_ = true;
  }
}

RunFacts LoweredCall::facts_of(const tensor::Flat& result, const States& states) {
  RunFacts facts;
  facts.weights = weights_;
  if (!first_state_.has_value()) first_state_ = states.before;
  if (is_another_) {
    facts.impure_because = "weights of " + constants_.class_name +
                           " changed while the call waited, or since the model was frozen";
  } else if (*first_state_ != states.after) {
    facts.impure_because = "an attribute of " + constants_.class_name + " changed during the run";
  }
  if (result.requires_grad()) {
    facts.is_scripted = true;
    facts.requiring_grad = constants_.identity.requiring_grad;
    distrust(constants_.identity.fingerprint);
  }
  return facts;
}

LoweredIdentity identify(const std::string& recipe, const at::IValue& attributes,
                         bool wants_fingerprint) {
  const PlainValue values = written_down(attributes);
  LoweredIdentity identity;
  tensor::RequiringGrad requiring;
  for (const at::Tensor& tensor : values.tensors) requiring.add(tensor);
  identity.requiring_grad = requiring.count;
  identity.grad_pattern = requiring.pattern();
  if (!wants_fingerprint || !values.why_not_hashable.empty()) return identity;

  const Digest128 place = place_of(recipe, values);
  const KnownPtr known = find(place);
  if (known != nullptr && known->plain_bytes == values.bytes &&
      known->tensors->is_true_of(values.tensors)) {
    identity.fingerprint = known->fingerprint;
    last = {known->fingerprint, known->tensors};
    return identity;
  }
  auto fresh = std::make_shared<Known>();
  fresh->recipe = known != nullptr ? known->recipe : parsed(recipe);
  if (fresh->recipe == nullptr) return identity;
  fresh->plain_bytes = values.bytes;
  fresh->tensors =
      std::make_shared<const TensorWatch>(values.tensors, TensorWatch::Hashing::kContents,
                                          known != nullptr ? known->tensors.get() : nullptr);
  fresh->fingerprint = fingerprint_by(*fresh->recipe, attributes, *fresh->tensors);
  identity.fingerprint = fresh->fingerprint;
  last = {fresh->fingerprint, fresh->tensors};
  keep(place, std::move(fresh));
  return identity;
}

std::shared_ptr<const TensorWatch> last_identified(const std::string& fingerprint) {
  return last.fingerprint == fingerprint ? last.tensors : nullptr;
}

void distrust(const std::string& fingerprint) {
  LoweredRegistry& all = LoweredRegistry::instance();
  MutexLock lock(all.mutex);
  for (auto known = all.known.begin(); known != all.known.end();) {
    known = known->second->fingerprint == fingerprint ? all.known.erase(known) : std::next(known);
  }
}

std::vector<at::Tensor> tensors_of(const at::IValue& attributes) {
  return written_down(attributes).tensors;
}

std::int64_t state_of(const at::IValue& attributes) {
  const PlainValue values = written_down(attributes);
  Xxh3Hasher hasher;
  hasher.add(values.bytes);
  const TensorWatch uncounted(values.tensors, TensorWatch::Hashing::kUncounted, nullptr);
  for (std::size_t i = 0; i < values.tensors.size(); ++i) {
    const at::Tensor& tensor = values.tensors[i];
    hasher.add(reinterpret_cast<std::uintptr_t>(tensor.unsafeGetTensorImpl()));
    if (!tensor.defined()) continue;
    hasher.add(tensor.is_inference() ? std::uint64_t{0} : tensor._version());
    if (tensor.is_inference()) hasher.add(uncounted.digest(i).bytes());
  }
  return static_cast<std::int64_t>(hasher.digest().low);
}

}  // namespace modcache::module
