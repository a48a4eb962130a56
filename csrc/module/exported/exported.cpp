// SPDX-License-Identifier: Apache-2.0
#include "module/exported/exported.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "base/process_wide.h"
#include "module/call/learned_padding.h"
#include "module/call/row_proof.h"
#include "module/exported/probed_call.h"
#include "module/watch/watch.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::module {
namespace {

using cache::Counter;
constexpr const char* kOp = "modcache.lookup_or_run";
constexpr std::int64_t kNoHandle = -1;

// Maps handles to the calls that they hold, as long as the storage of the handle's number lives.
// The number is derived from the question, so equal questions have equal numbers, and a copy of the
// number finds what any of the askers holds.
class Handles : public ProcessWide<Handles> {
 public:
  // `question` is a hash of the question.
  at::Tensor issue(std::uint64_t question, const std::shared_ptr<ProbedCall>& held, bool is_found) {
    const auto number = static_cast<std::int64_t>(question >> 2) + 1;
    auto memory = std::make_shared<std::int64_t>(is_found ? number : kNoHandle - number);
    const void* const place = memory.get();
    {
      MutexLock lock(mutex);
      held_.insert({number, {place, held}});
    }
    return tensor_of(std::move(memory), [this, number, place, held] { drop(number, place); });
  }
  static at::Tensor none() {
    return tensor_of(std::make_shared<std::int64_t>(kNoHandle), [] {});
  }

  // Returns the call of this very handle, or, for a copy of a number, a call that asked the same.
  std::shared_ptr<ProbedCall> find(std::int64_t number, const void* place) {
    MutexLock lock(mutex);
    std::shared_ptr<ProbedCall> found;
    const auto [first, last] = held_.equal_range(number);
    for (auto one = first; one != last; ++one) {
      auto held = one->second.held.lock();
      if (held == nullptr) continue;
      if (one->second.place == place) return held;
      found = std::move(held);
    }
    return found;
  }

 private:
  struct Place {
    const void* place;
    std::weak_ptr<ProbedCall> held;
  };

  void drop(std::int64_t number, const void* place) {
    MutexLock lock(mutex);
    const auto [first, last] = held_.equal_range(number);
    const auto found =
        std::find_if(first, last, [&](const auto& one) { return one.second.place == place; });
    if (found != last) held_.erase(found);
  }

  template <typename Release>
  static at::Tensor tensor_of(std::shared_ptr<std::int64_t> memory, const Release& release) {
    tensor::OrdinaryTensors ordinary;
    std::int64_t* const data = memory.get();
    return at::from_blob(
        data, {}, [memory = std::move(memory), release](void*) { release(); },
        at::TensorOptions().dtype(at::kLong));
  }

  std::unordered_multimap<std::int64_t, Place> held_ MODCACHE_GUARDED_BY(mutex);
};

// Watches of weights by their addresses, as an exported program has no module to keep one with.
class WeightWatches : public ProcessWide<WeightWatches> {
 public:
  std::string digest_of(const std::vector<at::Tensor>& tensors,
                        std::shared_ptr<const WatchedContents>* contents = nullptr) {
    const WatchPtr watch = watch_of(tensors);
    std::string digest = watch->digest(tensors);
    if (contents != nullptr) *contents = watch->contents();
    return digest;
  }

  // Makes the next digest hash all of them anew.
  void distrust(const std::vector<at::Tensor>& tensors) { watch_of(tensors)->refresh(); }

 private:
  static constexpr std::size_t kMostWatches = 1024;

  // Watches are shared, so that one which another thread is about to use survives clear().
  WatchPtr watch_of(const std::vector<at::Tensor>& tensors) {
    Xxh3Hasher hasher;
    for (const at::Tensor& tensor : tensors) {
      const void* const data = tensor.has_storage() ? tensor.const_data_ptr() : nullptr;
      hasher.add(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(data)));
      hasher.add(static_cast<std::uint64_t>(tensor.numel()));
    }
    const Digest128 place = hasher.digest();
    MutexLock lock(mutex);
    const auto known = watches_.find(place);
    if (known != watches_.end()) return known->second;
    if (watches_.size() >= kMostWatches) watches_.clear();
    return watches_.emplace(place, c10::make_intrusive<Watch>()).first->second;
  }

  std::unordered_map<Digest128, WatchPtr, Digest128Hash> watches_ MODCACHE_GUARDED_BY(mutex);
};

// Returns the scope for these weights, whose digest it sets. Throws when one cannot be hashed.
std::string scope_of(const RecordedCall& recorded, const std::vector<at::Tensor>& weights,
                     std::shared_ptr<const WatchedContents>& contents, std::string& digest) {
  if (recorded.scope_kind == ScopeKind::kNamed) return recorded.scope;
  digest = WeightWatches::instance().digest_of(weights, &contents);
  if (recorded.scope_kind == ScopeKind::kBaked && digest == recorded.digest) return recorded.scope;
  return blake2b_128(recorded.scope + '/' + digest).hex();
}

bool any_requires_grad(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.requires_grad(); });
}

// Throws where the input has no one size that it was padded to.
std::int64_t longest_of(const std::vector<at::Tensor>& input) {
  std::optional<std::int64_t> longest;
  for (const at::Tensor& tensor : input) {
    if (tensor.dim() < 2) continue;
    TORCH_CHECK_VALUE(tensor.size(1) == longest.value_or(tensor.size(1)), kOp,
                      ": with lengths, the second sizes of the input's tensors must be one, but "
                      "are ",
                      *longest, " and ", tensor.size(1));
    longest = tensor.size(1);
  }
  return longest.value_or(0);
}

tensor::RowPadding padding_of(const ExportedCall& call, std::int64_t rows) {
  const RecordedPadding& recorded = *call.recorded.padding;
  auto padding = recorded.has_lengths ? tensor::RowPadding::of_lengths(
                                            call.mask, longest_of(call.input), recorded.value)
                                      : tensor::RowPadding::of_mask(call.mask, recorded.value);
  TORCH_CHECK_VALUE(static_cast<std::int64_t>(padding.lengths.size()) == rows, kOp, ": ", rows,
                    " keys were given, but the mask or the lengths are for ",
                    padding.lengths.size(), " rows");
  return padding;
}

// Returns whether the padding of such a call was seen; otherwise the call is refused. `digest` is
// that of the weights.
bool is_as_seen(const RecordedPadding& seen, const CallParts& parts, const std::string& digest,
                std::int64_t rows) {
  const bool is_on_the_right = parts.padding->true_part == tensor::TruePart::kFirst;
  const bool is_same = seen.digest == digest && seen.signature == parts.input.signature;
  if (is_same && is_on_the_right) return true;
  std::string why = "its padding was seen with other weights";
  if (seen.digest == digest) {
    why = "its padding was seen with another input (" + seen.signature + ", not " +
          parts.input.signature + ")";
  }
  why += "; record the program anew after eager calls with this";
  if (!is_on_the_right) why = "recorded programs take padding on the right alone";
  return refuse(parts, *cache::Cache::instance().session(), Counter::kBypassedType, rows, "padding",
                parts.who() + " is not cached: " + why);
}

at::Tensor look_up(const ExportedCall& call, CallParts parts) {
  const RecordedCall& recorded = call.recorded;
  const auto per = call.ids.has_value() ? tensor::Per::kRow : tensor::Per::kCall;
  const std::int64_t rows = call.ids.has_value() ? call.ids->numel() : 1;
  const tensor::RowPadding* const padding = parts.padding.has_value() ? &*parts.padding : nullptr;
  auto summary = tensor::summarize_form(recorded.input, call.input, per, padding);
  if (!read_input(parts, std::move(summary), rows)) return Handles::none();
  // An exported program that Python runs computes under the autocast state of its caller.
  const std::string arithmetic = tensor::arithmetic_state();
  if (!recorded.is_compiled && !arithmetic.empty() && arithmetic != recorded.arithmetic) {
    refuse(parts, *cache::Cache::instance().session(), Counter::kBypassedType, rows, "arithmetic",
           parts.who() +
               " is not cached: the program runs under another autocast or default dtype "
               "(" +
               arithmetic + ") than it was recorded under");
    return Handles::none();
  }
  std::string digest;
  try {
    parts.scope = scope_of(recorded, call.weights, parts.weights, digest);
  } catch (const c10::Error& error) {
    refuse_unidentified(parts, rows, error.what_without_backtrace());
    return Handles::none();
  }
  if (recorded.padding.has_value() && !is_as_seen(*recorded.padding, parts, digest, rows)) {
    return Handles::none();
  }
  try {
    std::optional<at::Tensor> ids;  // a copy, as the caller may write into its own
    if (call.ids.has_value()) ids = copies_of({*call.ids})[0];
    Expected expected{recorded.dtypes, call.sizes, recorded.root, {}};
    if (recorded.padding.has_value()) expected.padded_dims = recorded.padding->dims;
    const auto held = std::make_shared<ProbedCall>(parts, recorded.key, std::move(ids),
                                                   std::move(expected), recorded.are_rows_proven);
    const std::uint64_t question = held->question();
    const bool is_found = held->look_up();
    if (held->is_bypassed()) return Handles::none();
    return Handles::instance().issue(question, held, is_found);
  } catch (const std::exception& error) {
    report_failure(parts, "looked up", error);
    return Handles::none();
  }
}

std::int64_t number_of(const at::Tensor& handle) {
  TORCH_CHECK_VALUE(handle.scalar_type() == at::kLong && handle.numel() == 1, kOp,
                    ": a handle is one int64, but got ", handle.scalar_type(), handle.sizes());
  return handle.item<std::int64_t>();
}

std::shared_ptr<ProbedCall> held_by(const at::Tensor& handle, std::int64_t number) {
  if (number <= 0) return nullptr;
  return Handles::instance().find(number, handle.has_storage() ? handle.const_data_ptr() : nullptr);
}

}  // namespace

at::Tensor probe(const ExportedCall& call) {
  const std::int64_t rows = call.ids.has_value() ? call.ids->numel() : 1;
  if (call.ids.has_value()) {
    tensor::check_rows(at::IValue(c10::ivalue::Tuple::create(
                           std::vector<at::IValue>(call.input.begin(), call.input.end()))),
                       rows);
  }
  CallParts parts;
  parts.method = call.recorded.method;
  parts.class_name = call.recorded.class_name;
  parts.arithmetic = call.recorded.arithmetic;
  if (rows == 0 || is_bypassed_by_mode(rows)) return Handles::none();
  if (at::GradMode::is_enabled() &&
      (any_requires_grad(call.input) || any_requires_grad(call.weights))) {
    // The weights may be in training, and an optimizer may write them without a trace.
    WeightWatches::instance().distrust(call.weights);
    refuse(parts, *cache::Cache::instance().session(), Counter::kBypassedGrad, rows, "grad",
           parts.who() +
               " is not cached: when the program was recorded its result required no "
               "grad, and now the input or a weight does. Run the program under "
               "torch.no_grad(), or detach the input");
    return Handles::none();
  }
  if (call.recorded.padding.has_value()) {
    parts.padding = padding_of(call, rows);
    if (parts.padding->longest == 0) return Handles::none();
  }
  return look_up(call, std::move(parts));
}

at::Tensor no_handle(const std::string& why) {
  cache::Cache::instance().counters().add(Counter::kErrors);
  log_once(LogLevel::kError, "no handle", why + ": it runs without the cache");
  return Handles::none();
}

std::vector<at::Tensor> fetch(const at::Tensor& handle) {
  const std::int64_t number = number_of(handle);
  const auto held = held_by(handle, number);
  auto found = held == nullptr ? std::nullopt : held->take();
  TORCH_CHECK(found.has_value(), kOp, ": handle ", number,
              " of an exported program holds no result (any more): it outlived the tensor that "
              "cache::_probe gave. Please report how the program was compiled, and run it with "
              "MODCACHE_MODE=off meanwhile");
  return *std::move(found);
}

std::vector<at::Tensor> put(const at::Tensor& handle, const std::vector<at::Tensor>& values) {
  const auto held = held_by(handle, kNoHandle - number_of(handle));
  return held == nullptr ? copies_of(values) : held->complete(values);
}

SeenPadding seen_padding(const std::string& scope, const std::string& method,
                         const std::string& arguments, const std::string& arithmetic) {
  CallParts parts;
  parts.scope = scope;
  parts.method = method;
  parts.input.arguments = tensor::arguments_of_padded(arguments, tensor::TruePart::kFirst);
  parts.arithmetic = arithmetic;
  const auto context = context_of(*cache::Cache::instance().session(), parts, tensor::Per::kRow);
  const LearnedPadding learned = learned_padding(context->digest).value_or(LearnedPadding());
  if (learned.is_settled()) return {learned.dims, learned.signature, ""};
  if (learned.is_refused()) return {{}, "", learned.why_not};
  parts.input.arguments = tensor::arguments_of_padded(arguments, tensor::TruePart::kLast);
  const auto on_left = context_of(*cache::Cache::instance().session(), parts, tensor::Per::kRow);
  if (learned_padding(on_left->digest).has_value()) {
    return {{},
            "",
            "its batches are padded on the left, and recorded programs take padding on the right "
            "alone (padding_side=\"right\")"};
  }
  return {{},
          "",
          "a program cannot run a row once more to see how it is padded, and only " +
              std::to_string(learned.agreements) + " of " + std::to_string(kEnoughAgreements) +
              " batches have shown that yet; call modcache.lookup_or_run, without recording it, "
              "with so many padded batches that are not stored (or under "
              "modcache.mode(\"refresh\")), and then record"};
}

SeenRows seen_rows(const std::string& scope, const std::string& method,
                   const std::string& arguments, const std::string& arithmetic) {
  const auto session = cache::Cache::instance().session();
  const auto context =
      context_of(*session, scope, method, tensor::Per::kRow, arguments, arithmetic);
  const RowProof proof = row_proof_of(*session, *context);
  // A program takes no results with constants.
  return {proof.is_proven() && proof.constants.empty(), proof.why_not};
}

std::string weights_digest(const std::vector<at::Tensor>& tensors) {
  return WeightWatches::instance().digest_of(tensors);
}

}  // namespace modcache::module
