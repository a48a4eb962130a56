// SPDX-License-Identifier: Apache-2.0
#include "module/exported/exported.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "base/process_wide.h"
#include "module/call/current_cache.h"
#include "module/call/learned_padding.h"
#include "module/call/row_proof.h"
#include "module/watch/watch.h"
#include "tensor/input.h"
#include "tensor/input_sampler.h"
#include "tensor/rows.h"
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
                        std::shared_ptr<const TensorWatch>* known = nullptr) {
    const WatchPtr watch = watch_of(tensors);
    std::string digest = watch->digest(tensors);
    if (known != nullptr) *known = watch->tensors();
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
                     std::shared_ptr<const TensorWatch>& known, std::string& digest) {
  if (recorded.scope_kind == ScopeKind::kNamed) return recorded.scope;
  digest = WeightWatches::instance().digest_of(weights, &known);
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
  return refuse(parts, Counter::kBypassedType, rows, "padding", not_caching(parts, why));
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
    refuse(parts, Counter::kBypassedType, rows, "arithmetic",
           not_caching(parts, "the program runs under another autocast or default dtype (" +
                                  arithmetic + ") than it was recorded under"));
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
    const auto held =
        std::make_shared<ProbedCall>(parts, call.weights, recorded.key, std::move(ids),
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

constexpr const char* kProgram = "modcache: an exported program";
constexpr const char* kTitle = "modcache site 3";
constexpr const char* kTitleOfPadded = "modcache site 4";  // with the fields of a RecordedPadding

// Reads fields such as "5:hello", one after another.
class Fields {
 public:
  explicit Fields(std::string_view text) : rest_(text) {}

  std::string next() {
    std::size_t size = 0;
    const char* const end = rest_.data() + rest_.size();
    const auto number = std::from_chars(rest_.data(), end, size);
    const auto digits = static_cast<std::size_t>(number.ptr - rest_.data());
    const bool is_sound = number.ec == std::errc() && number.ptr != end && *number.ptr == ':' &&
                          size <= rest_.size() - digits - 1;
    TORCH_CHECK_VALUE(is_sound, kProgram, " has a call of the cache that this version cannot read");
    const std::string field(rest_.substr(digits + 1, size));
    rest_.remove_prefix(digits + 1 + size);
    return field;
  }
  bool is_at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

std::string from_hex(const std::string& digits) {
  std::string bytes(digits.size() / 2, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    unsigned char byte = 0;
    std::from_chars(digits.data() + 2 * i, digits.data() + 2 * i + 2, byte, 16);
    bytes[i] = static_cast<char>(byte);
  }
  return bytes;
}

template <typename Number>
Number read_number(std::string_view text) {
  Number number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  TORCH_CHECK_VALUE(read.ec == std::errc() && read.ptr == text.data() + text.size(), kProgram,
                    " has '", text, "' where a number is");
  return number;
}

RecordedPadding read_padding(Fields& fields) {
  RecordedPadding padding;
  const std::string kind = fields.next();
  TORCH_CHECK_VALUE(kind == "mask" || kind == "lengths", kProgram,
                    " has padding of a kind that this version does not know: '", kind, "'");
  padding.has_lengths = kind == "lengths";
  const auto bits = read_number<std::uint64_t>(fields.next());
  std::memcpy(&padding.value, &bits, sizeof bits);
  const std::string dims = fields.next();
  for (std::string_view rest = dims; !rest.empty();) {
    const std::size_t end = rest.find(',');
    TORCH_CHECK_VALUE(end != std::string_view::npos, kProgram, " has no ',' after '", rest, "'");
    padding.dims.push_back(read_number<tensor::DimSet>(rest.substr(0, end)));
    rest.remove_prefix(end + 1);
  }
  padding.digest = fields.next();
  padding.signature = fields.next();
  return padding;
}

tensor::Node read_root(const std::string& field) {
  if (field.empty()) return {};
  auto header = tensor::decode_value_header(from_hex(field));
  TORCH_CHECK_VALUE(header.is_ok(), kProgram,
                    " has a structured result that cannot be read: ", header.status().message());
  return std::move(header).value().root;
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
  if (rows == 0 || is_bypassed_by_mode(parts, rows)) return Handles::none();
  if (at::GradMode::is_enabled() &&
      (any_requires_grad(call.input) || any_requires_grad(call.weights))) {
    // The weights may be in training, and an optimizer may write them without a trace.
    WeightWatches::instance().distrust(call.weights);
    refuse(parts, Counter::kBypassedGrad, rows, "grad",
           not_caching(parts,
                       "when the program was recorded its result required no grad, and now "
                       "the input or a weight does. Run the program under torch.no_grad(), "
                       "or detach the input"));
    return Handles::none();
  }
  if (call.recorded.padding.has_value()) {
    parts.padding = padding_of(call, rows);
    if (parts.padding->longest == 0) return Handles::none();
  }
  return look_up(call, std::move(parts));
}

at::Tensor no_handle(const std::string& why) {
  current_cache()->counters().add(Counter::kErrors);
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
  const auto context = parts.context(tensor::Per::kRow);
  const LearnedPadding learned = learned_padding(context->digest).value_or(LearnedPadding());
  if (learned.is_settled()) return {learned.dims, learned.signature, ""};
  if (learned.is_refused()) return {{}, "", learned.why_not};
  parts.input.arguments = tensor::arguments_of_padded(arguments, tensor::TruePart::kLast);
  const auto on_left = parts.context(tensor::Per::kRow);
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
  CallParts parts;
  parts.scope = scope;
  parts.method = method;
  parts.input.arguments = arguments;
  parts.arithmetic = arithmetic;
  const RowProof proof = row_proof_of(parts, *parts.context(tensor::Per::kRow));
  // A program takes no results with constants.
  return {proof.is_proven() && proof.constants.empty(), proof.why_not};
}

std::string weights_digest(const std::vector<at::Tensor>& tensors) {
  return WeightWatches::instance().digest_of(tensors);
}

using Clock = std::chrono::steady_clock;

namespace {

// A program was recorded with row-major results, whatever the order of an entry's dimensions is.
std::vector<at::Tensor> row_major(std::vector<at::Tensor> tensors) {
  const tensor::OrdinaryTensors ordinary;
  for (at::Tensor& tensor : tensors) tensor = tensor.contiguous();
  return tensors;
}

}  // namespace

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  tensor::OrdinaryTensors ordinary;
  std::vector<at::Tensor> copies;
  copies.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().clone(at::MemoryFormat::Contiguous));
  }
  return copies;
}

bool Expected::fits(const tensor::Node& found, const std::vector<at::Tensor>& tensors) const {
  std::string dtypes_found;
  std::vector<std::int64_t> sizes_found;
  for (const at::Tensor& tensor : tensors) {
    dtypes_found += tensor::dtype_name(tensor.scalar_type());
    dtypes_found += ':' + std::to_string(tensor.dim()) + ',';
    sizes_found.insert(sizes_found.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  return found == root && dtypes_found == dtypes && sizes_found == sizes;
}

bool ProbedCall::look_up() {
  MutexLock lock(mutex_);
  return look_up_locked();
}

bool ProbedCall::is_bypassed() {
  MutexLock lock(mutex_);
  return found_.empty() && run_ == nullptr;
}

std::optional<std::vector<at::Tensor>> ProbedCall::take() {
  MutexLock lock(mutex_);
  if (is_used_ && !look_up_locked()) return std::nullopt;
  is_used_ = true;
  return std::exchange(found_, {});
}

std::vector<at::Tensor> ProbedCall::complete(const std::vector<at::Tensor>& values) {
  MutexLock lock(mutex_);
  // A second question with this handle: the first answer may have been stored meanwhile.
  if (is_used_ && look_up_locked()) return std::exchange(found_, {});
  is_used_ = true;
  const tensor::Flat flat{expected_.root, values, {}};
  if (!expected_.fits(flat.root, values) || !has_padding_of(flat)) {
    const std::int64_t rows = ids_.has_value() ? ids_->numel() : 1;
    refuse(parts_, cache::Counter::kBypassedType, rows, "other result",
           not_caching(parts_,
                       "it returned other dtypes or sizes than when the program was "
                       "recorded"));
    return copies_of(values);
  }
  // It was found, or the scope was switched off meanwhile.
  if (run_ == nullptr) return found_.empty() ? copies_of(values) : std::exchange(found_, {});
  RunFacts facts;
  if (parts_.weights != nullptr && !parts_.weights->is_true_of(weights_)) {
    facts.impure_because = "weights of " + parts_.class_name + " changed during the run";
  }
  const auto elapsed = Clock::now() - started_;
  while (const Step* const step = run_->step()) {
    tensor::Flat part{flat.root, {}, {}};
    for (const at::Tensor& tensor : values) {
      part.tensors.push_back(step->is_whole_input ? tensor
                                                  : tensor::select_rows(tensor, step->rows));
    }
    // The whole input was run, so these rows get their share of the time.
    const std::int64_t rows = ids_.has_value() ? ids_->numel() : 1;
    const auto ran = step->is_whole_input ? rows : static_cast<std::int64_t>(step->rows.size());
    run_->start(Clock::now() - elapsed * ran / rows);
    run_->finish(std::move(part), facts);
    run_->give_up_lead();
  }
  auto value = run_->value();
  if (!value.has_value() || !accept(*value)) return copies_of(values);
  std::vector<at::Tensor> together = std::exchange(found_, {});
  // The outputs of an operator must not share memory with its inputs.
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (together[i].is_alias_of(values[i])) return copies_of(together);
  }
  return together;
}

// No lead is kept between lookup and result: the program may ask for the same rows a second time
// before it runs the module for the first.
bool ProbedCall::look_up_locked() {
  CallParts parts = parts_;
  parts.can_check = false;
  parts.are_rows_trusted = are_rows_proven_;
  if (parts.padding.has_value()) parts.trusted_padding = expected_.padded_dims;
  CallKeys keys = ids_.has_value() ? CallKeys::of_ids(ids_->const_data_ptr<std::int64_t>(),
                                                      static_cast<std::size_t>(ids_->numel()))
                                   : CallKeys::whole(key_);
  Call call(parts, keys);
  Begun begun = call.begin();
  run_ = std::move(begun.run);
  if (begun.value.has_value() && !accept(*begun.value)) run_ = call.reject();
  if (run_ != nullptr) run_->give_up_lead();
  started_ = Clock::now();
  return begun.value.has_value() && run_ == nullptr;
}

// Returns whether the value has the form that the program was compiled for; then found_ has it.
bool ProbedCall::accept(const CallValue& value) {
  tensor::Flat flat;
  if (const auto* const lone = std::get_if<at::Tensor>(&value)) {
    flat.tensors.push_back(*lone);
  } else if (const auto* const structured = std::get_if<tensor::Flat>(&value)) {
    flat = *structured;
  } else {
    return false;
  }
  if (!expected_.fits(flat.root, flat.tensors)) return false;
  found_ = row_major(std::move(flat.tensors));
  return true;
}

// Returns whether the result is as long as the batch where it was seen to be.
bool ProbedCall::has_padding_of(const tensor::Flat& result) const {
  return !parts_.padding.has_value() ||
         has_padded_dims(result, expected_.padded_dims, parts_.padding->longest);
}

std::uint64_t ProbedCall::question() const {
  Xxh3Hasher hasher;
  const std::string arithmetic = parts_.arithmetic_state();
  for (const std::string* const part :
       {&parts_.scope, &parts_.method, &parts_.input.arguments, &parts_.input.signature,
        &arithmetic, &key_, &expected_.dtypes}) {
    hasher.add(*part);
  }
  hasher.add(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(parts_.cache.get())));
  hasher.add(static_cast<std::uint64_t>(parts_.mode));
  hasher.add(parts_.settings().name_space);
  hasher.add(parts_.input.device.has_value() ? parts_.input.device->str() : "");
  add_padding(hasher);
  add_input(hasher);
  for (const std::int64_t size : expected_.sizes) hasher.add(static_cast<std::uint64_t>(size));
  if (ids_.has_value()) hasher.update(ids_->const_data_ptr(), ids_->nbytes());
  return hasher.digest().low;
}

void ProbedCall::add_padding(Xxh3Hasher& hasher) const {
  if (!parts_.padding.has_value()) return;
  hasher.add(static_cast<std::uint64_t>(parts_.padding->longest));
  hasher.add(tensor::bits_of(parts_.padding->value));
  for (const std::int64_t length : parts_.padding->lengths) {
    hasher.add(static_cast<std::uint64_t>(length));
  }
}

// Adds a sample of the input, as one key with two inputs is two questions.
void ProbedCall::add_input(Xxh3Hasher& hasher) const {
  const auto per = ids_.has_value() ? tensor::Per::kRow : tensor::Per::kCall;
  const tensor::InputSampler input = sampler_of(parts_, per);
  if (parts_.settings().match != cache::Match::kInput || input.is_costly()) return;
  const std::int64_t rows = ids_.has_value() ? ids_->numel() : 1;
  for (std::int64_t row = 0; row < rows; ++row) {
    hasher.add(
        cache::Cache::sample_to_store(*parts_.configuration, input, static_cast<std::size_t>(row))
            .bytes());
  }
}

RecordedCall RecordedCall::parse(const std::string& text) {
  Fields fields(text);
  RecordedCall recorded;
  const std::string title = fields.next();
  TORCH_CHECK_VALUE(title == kTitle || title == kTitleOfPadded, kProgram,
                    " was recorded by another version of modcache");
  const std::string kind = fields.next();
  TORCH_CHECK_VALUE(kind == "n" || kind == "b" || kind == "e", kProgram,
                    " has a scope of a kind that this version does not know: '", kind, "'");
  recorded.scope_kind = static_cast<ScopeKind>(kind[0]);
  recorded.scope = fields.next();
  recorded.digest = fields.next();
  recorded.method = fields.next();
  recorded.class_name = fields.next();
  recorded.key = fields.next();
  recorded.input.signature = fields.next();
  recorded.input.arguments = fields.next();
  recorded.is_compiled = fields.next() == "compiled";
  recorded.arithmetic = fields.next();
  recorded.dtypes = fields.next();
  recorded.root = read_root(fields.next());
  recorded.are_rows_proven = fields.next() == "rows";
  if (title == kTitleOfPadded) recorded.padding = read_padding(fields);
  TORCH_CHECK_VALUE(fields.is_at_end(), kProgram, " was recorded by a newer version of modcache");
  return recorded;
}

}  // namespace modcache::module
