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
#include "module/code/plain_value.h"
#include "module/lowered/recipe.h"
#include "module/watch/tensor_watch.h"
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
  std::shared_ptr<const WatchedContents> contents;
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
  cache::Cache::instance().counters().add(cache::Counter::kErrors);
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

std::optional<CallParts> LoweredCallBase::prepare(tensor::Per per, std::int64_t rows) const {
  if (is_bypassed_by_mode(rows)) return std::nullopt;
  CallParts parts;
  parts.class_name = constants_.class_name;
  parts.method = constants_.method;
  if (!read_input(parts, tensor::summarize_input(input_, per), rows)) return std::nullopt;
  parts.grad_pattern = grad_pattern(constants_.identity.grad_pattern, parts.input);
  parts.scope = constants_.scope.empty() ? constants_.identity.fingerprint : constants_.scope;
  if (parts.scope.empty()) {
    refuse_unidentified(parts, rows, "an attribute of it cannot be hashed");
    return std::nullopt;
  }
  return parts;
}

void LoweredCallBase::note_begin(const std::string& fingerprint, const at::IValue& replaceable) {
  if (constants_.scope.empty() && weights_ == nullptr) weights_ = last_identified(fingerprint);
  is_another_ = is_another_ || fingerprint != constants_.identity.fingerprint;
  if (!kept_.has_value()) kept_ = tensors_of(replaceable);
}

RunFacts LoweredCallBase::facts_of(const tensor::Flat& result, const States& states) {
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

LoweredCall::LoweredCall(LoweredConstants constants, at::IValue input, const std::string& key)
    : LoweredCallBase(std::move(constants), std::move(input)) {
  auto parts = prepare(tensor::Per::kCall, 1);
  if (!parts.has_value()) return;
  call_ = std::make_unique<Call>(*std::move(parts), key);
  const auto hit = call_->lookup();
  if (call_->is_bypassed()) call_.reset();
  if (hit == nullptr) return;
  hit_ = constants_.declared.value_of(*hit, call_->parts().input.device);
  if (!hit_.has_value()) call_->reject_hit();
}

void LoweredCall::begin_run(const std::string& fingerprint, const at::IValue& replaceable) {
  note_begin(fingerprint, replaceable);
  if (call_ != nullptr) call_->begin_run();
}

void LoweredCall::finish(const at::IValue& result, const States& states) {
  check_wanted(result);
  if (call_ == nullptr) return;
  const tensor::Flat flat = tensor::flatten(result);
  call_->finish_run(flat, facts_of(flat, states));
}

LoweredRowsCall::LoweredRowsCall(LoweredConstants constants, at::IValue input, BatchKeys keys)
    : LoweredCallBase(std::move(constants), std::move(input)) {
  const auto count = static_cast<std::int64_t>(keys.rows());
  tensor::check_rows(input_, count);
  if (count == 0) return;
  auto parts = prepare(tensor::Per::kRow, count);
  if (!parts.has_value()) return;
  call_ = std::make_unique<RowsCall>(*std::move(parts), std::move(keys));
  call_->check_in_same_shape();  // the graph cannot catch an exception
  go_on();
}

at::IValue LoweredRowsCall::begin_run(const std::string& fingerprint,
                                      const at::IValue& replaceable) {
  note_begin(fingerprint, replaceable);
  if (call_ == nullptr) return input_;
  if (check_.has_value()) return check_input(input_, *check_);
  at::IValue rows =
      call_->is_whole_input(running_) ? input_ : tensor::select_rows(input_, running_);
  call_->begin_run();
  return rows;
}

void LoweredRowsCall::finish_run(const at::IValue& result, const States& states) {
  check_wanted(result);
  if (call_ == nullptr) {
    must_run_ = false;
    is_last_run_ = true;
    return;
  }
  tensor::Flat flat = tensor::flatten(result);
  if (check_.has_value()) {
    call_->finish_check(flat);
    check_ = call_->next_check();
    if (!check_.has_value()) go_on();
    return;
  }
  const RunFacts facts = facts_of(flat, states);
  call_->finish_run(std::move(flat), facts);
  check_ = call_->next_check();
  is_last_run_ = !check_.has_value() && call_->is_whole_input(running_);
  if (check_.has_value()) return;  // must_run_ is still set
  go_on();
}

void LoweredRowsCall::go_on() {
  while (true) {
    if (auto rows = call_->next_rows()) {
      if (call_->is_bypassed()) {
        call_.reset();  // must_run_ is set from the beginning
        return;
      }
      must_run_ = true;
      running_ = *std::move(rows);
      return;
    }
    must_run_ = false;
    if (is_last_run_) return;
    rows_ = constants_.declared.rows_of(*call_);
    if (rows_.has_value()) return;
    call_->reject_hits();
  }
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
    last = {known->fingerprint, known->tensors->contents()};
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
  if (known != nullptr) known->tensors->hand_over_to(*fresh->tensors);
  last = {fresh->fingerprint, fresh->tensors->contents()};
  keep(place, std::move(fresh));
  return identity;
}

std::shared_ptr<const WatchedContents> last_identified(const std::string& fingerprint) {
  return last.fingerprint == fingerprint ? last.contents : nullptr;
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
