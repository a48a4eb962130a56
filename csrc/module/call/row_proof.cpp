// SPDX-License-Identifier: Apache-2.0
#include "module/call/row_proof.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/logical_and.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <limits>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "base/process_wide.h"
#include "cache/row_note.h"
#include "tensor/difference.h"
#include "tensor/input.h"
#include "tensor/rows.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::module {
namespace {

using Verdict = RowProof::Verdict;

constexpr std::int64_t kAskAgainAfterMs = 1000;

constexpr const char* kRule =
    ". With one key per row, every output needs the rows as its first dimension, and each row must "
    "depend only on its own input row. Return it so, or use one key for the whole input (a str; "
    "key=\"content\" of modcache.cached)";

// --- What is known ------------------------------------------------------------------------------

std::string row_note_about(const CallParts& parts, std::string_view scope) {
  return cache::row_note_of(parts.settings().name_space, scope);
}

// A note has a line for each context of its scope: the digest, the verdict, and what belongs to it.
std::string line_of(const Digest128& context, const RowProof& proof) {
  std::string line = context.hex();
  if (proof.is_proven()) {
    line += proof.holds_for_one ? " proven" : " several";
    for (const std::size_t constant : proof.constants) line += ' ' + std::to_string(constant);
  } else {
    line += " refuted " + proof.why_not;
    std::replace(line.begin(), line.end(), '\n', ' ');
  }
  return line + '\n';
}

RowProof proof_in(std::string_view words) {
  RowProof proof;
  constexpr std::string_view kProven = "proven";
  constexpr std::string_view kSeveral = "several";  // proven for batches of several rows
  constexpr std::string_view kRefuted = "refuted ";
  if (words.substr(0, kRefuted.size()) == kRefuted) {
    proof.verdict = Verdict::kRefuted;
    proof.why_not = words.substr(kRefuted.size());
    return proof;
  }
  proof.holds_for_one = words.substr(0, kSeveral.size()) != kSeveral;
  const std::string_view verdict = proof.holds_for_one ? kProven : kSeveral;
  if (words.substr(0, verdict.size()) != verdict) return {};
  for (words.remove_prefix(verdict.size()); !words.empty();) {
    std::size_t constant = 0;
    const char* const end = words.data() + words.size();
    const auto read = std::from_chars(words.data() + 1, end, constant);
    if (words.front() != ' ' || read.ec != std::errc()) return {};
    proof.constants.push_back(constant);
    words.remove_prefix(static_cast<std::size_t>(read.ptr - words.data()));
  }
  proof.verdict = Verdict::kProven;
  return proof;
}

// Returns the lines of a note but that of `context`, the newest ones, and what that one says.
std::string other_lines(std::string_view note, const Digest128& context, RowProof& found) {
  constexpr std::size_t kMaxLines = 256;
  const std::string digest = context.hex();
  std::vector<std::string_view> lines;
  while (!note.empty()) {
    const std::size_t end = std::min(note.find('\n'), note.size() - 1);
    const std::string_view line = note.substr(0, end);
    note.remove_prefix(end + 1);
    if (line.substr(0, digest.size()) != digest) {
      lines.push_back(line);
    } else if (line.size() > digest.size()) {
      found = proof_in(line.substr(digest.size() + 1));
    }
  }
  std::string others;
  const std::size_t first = lines.size() < kMaxLines ? 0 : lines.size() - kMaxLines + 1;
  for (std::size_t i = first; i < lines.size(); ++i) others += std::string(lines[i]) + '\n';
  return others;
}

RowProof proof_in_directory(const CallParts& parts, const store::Context& context) {
  RowProof proof;
  const auto note =
      parts.cache->find_note(row_note_about(parts, context.scope), cache::Mode::kRead);
  if (note.has_value()) other_lines(*note, context.digest, proof);
  return proof;
}

// The proofs that this process knows, each with the directory's count of removals at that time: a
// removal may have been a clear of the scope, after which the directory has no note of it. Also
// what the directory did not know; it is asked again after a second.
class Known : public ProcessWide<Known> {
 public:
  struct Proof {
    RowProof proof;
    std::string scope;
    std::uint64_t removals = 0;
    std::int64_t ask_again_at_ms = std::numeric_limits<std::int64_t>::max();
  };

  std::optional<Proof> find(const Digest128& address) {
    MutexLock lock(mutex);
    const auto known = proofs_.find(address);
    if (known == proofs_.end()) return std::nullopt;
    return known->second;
  }
  void insert(const Digest128& address, Proof proof) {
    MutexLock lock(mutex);
    // Forgetting costs a check run, and bounds the memory of training with ever new weights.
    if (proofs_.size() >= kMaxProofs) proofs_.clear();
    proofs_[address] = std::move(proof);
  }
  void forget(std::string_view scope) {
    MutexLock lock(mutex);
    for (auto known = proofs_.begin(); known != proofs_.end();) {
      known = scope.empty() || known->second.scope == scope ? proofs_.erase(known) : ++known;
    }
  }

  static Digest128 address_of(const CallParts& parts, const store::Context& context) {
    return store::address_of(context.digest, parts.settings().dir);
  }

 private:
  static constexpr std::size_t kMaxProofs = 1 << 14;

  std::unordered_map<Digest128, Proof, Digest128Hash> proofs_ MODCACHE_GUARDED_BY(mutex);
};

// --- Check runs --------------------------------------------------------------------------------

bool has_equal_rows(const at::Tensor& tensor, std::int64_t row, std::int64_t other) {
  return at::equal(tensor.select(0, row), tensor.select(0, other));
}

// Returns whether all rows of a result are equal.
bool has_equal_rows(const at::Tensor& tensor) {
  const at::Tensor rows = tensor::as_operable(tensor.detach());
  if (rows.numel() == 0) return false;  // nothing in them can be wrong
  return rows.size(0) < 2 ||
         at::equal(rows.narrow(0, 0, rows.size(0) - 1), rows.narrow(0, 1, rows.size(0) - 1));
}

bool differ(const std::vector<at::Tensor>& tensors, std::int64_t row, std::int64_t other) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return !has_equal_rows(tensor::as_operable(tensor.detach()), row, other);
  });
}

bool differs_reversed(const std::vector<at::Tensor>& tensors, std::int64_t row) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    if (tensor.dim() < 2 || tensor.size(-1) < 2) return false;
    const at::Tensor one = tensor::as_operable(tensor.detach()).select(0, row);
    return !at::equal(one, at::flip(one, {-1}));
  });
}

bool differs_made(const std::vector<at::Tensor>& tensors, std::int64_t row, bool exchanges_bits) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    if (tensor.dim() < 2) return false;
    const at::Tensor one = tensor.detach().narrow(0, row, 1);
    return !at::equal(tensor::as_operable(one),
                      tensor::as_operable(made_rows(one, exchanges_bits)));
  });
}

tensor::Flat lone(const at::Tensor& tensor) { return {{}, {tensor}, {}}; }

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

std::string name_of_output(std::size_t i, const tensor::Flat& result) {
  return result.tensors.size() == 1 ? "its output" : "output " + std::to_string(i);
}

// The evidence of a check run about one tensor of a result.
struct TensorVerdict {
  enum class Kind { kRows, kConstant, kUnclear, kNeither };
  Kind kind = Kind::kNeither;
  std::string why_not = {};
};

std::string rows_in_words(std::int64_t rows) {
  return rows == 1 ? "one row" : std::to_string(rows) + " rows";
}

TensorVerdict verdict_of(const CheckedRun& run, const at::Tensor& tensor, const at::Tensor& checked,
                         const RowCheck& check) {
  const std::int64_t rows = run.rows;
  const auto has_rows = [](const at::Tensor& one, std::int64_t count) {
    return one.dim() > 0 && one.size(0) == count;
  };
  const bool is_same = tensor.sizes() == checked.sizes() &&
                       tensor::difference(lone(checked), lone(tensor), run.tolerance).empty();
  const bool has_first_sizes = has_rows(tensor, rows) && has_rows(checked, check.rows);
  const bool has_row_shape = has_first_sizes && tensor.sizes().slice(1) == checked.sizes().slice(1);
  if (run.is_ragged && has_first_sizes && !has_row_shape) return {TensorVerdict::Kind::kRows};
  if (is_same && has_row_shape) return {TensorVerdict::Kind::kUnclear};
  // In a batch of the same shape, a value may depend on the number of rows.
  if (is_same && check.kind == RowCheck::Kind::kSameShape) return {TensorVerdict::Kind::kUnclear};
  if (is_same) return {TensorVerdict::Kind::kConstant};
  if (!has_row_shape) {
    return {TensorVerdict::Kind::kNeither, " has the shape " + shape_of(tensor) + " for " +
                                               rows_in_words(rows) + " and " + shape_of(checked) +
                                               " for " + rows_in_words(check.rows) +
                                               ", so it does not consist of one entry per row"};
  }
  const at::Tensor row = tensor.select(0, rows - 1);
  const std::string difference =
      tensor::difference(lone(checked.select(0, check.rows - 1)), lone(row), run.tolerance);
  if (difference.empty()) return {TensorVerdict::Kind::kRows};
  return {TensorVerdict::Kind::kNeither,
          ", of shape " + shape_of(tensor) +
              ", has other values for a row when the other rows of its "
              "batch change: " +
              difference};
}

}  // namespace

RowProof row_proof_of(const CallParts& parts, const store::Context& context) {
  try {
    const Digest128 address = Known::address_of(parts, context);
    auto known = Known::instance().find(address);
    const std::uint64_t removals = parts.configuration->tiers.disk->removals();
    const std::int64_t now_ms = steady_now_ms();
    if (known.has_value() && known->removals == removals && now_ms < known->ask_again_at_ms) {
      return std::move(known->proof);
    }
    Known::Proof asked{proof_in_directory(parts, context), context.scope, removals};
    if (!asked.proof.is_known()) asked.ask_again_at_ms = now_ms + kAskAgainAfterMs;
    Known::instance().insert(address, asked);
    return std::move(asked.proof);
  } catch (const std::exception&) {  // it cannot be read, so nothing is known
    return {};
  }
}

void note_row_proof(const CallParts& parts, const store::Context& context, const RowProof& proof,
                    bool is_for_process) {
  try {
    const bool is_kept = proof.is_known() && !is_for_process && may_write(parts.mode) &&
                         parts.settings().disk_bytes > 0;
    Known::instance().insert(Known::address_of(parts, context),
                             {proof, context.scope, parts.cache->removals()});
    if (!is_kept) return;
    const std::string about = row_note_about(parts, context.scope);
    RowProof former;
    const auto note = parts.cache->find_note(about, cache::Mode::kRead);
    const std::string others = other_lines(note.value_or(""), context.digest, former);
    parts.cache->keep_note(about, others + line_of(context.digest, proof), parts.mode);
  } catch (const std::exception&) {  // the next process makes a check run of its own
    parts.cache->counters().add(cache::Counter::kErrors);
  }
}

void forget_row_proofs(const CallParts& parts, const std::string& scope) {
  try {
    Known::instance().forget(scope);
    const std::string about = row_note_about(parts, scope);
    if (scope.empty() || !parts.cache->find_note(about, cache::Mode::kRead).has_value()) return;
    parts.cache->keep_note(about, "", parts.mode);
  } catch (const std::exception&) {
    parts.cache->counters().add(cache::Counter::kErrors);
  }
}

std::vector<RowCheck> plan_row_checks(const std::vector<at::Tensor>& tensors,
                                      const std::vector<std::int64_t>& rows, bool has_fixed_shape) {
  using Kind = RowCheck::Kind;
  const tensor::OrdinaryTensors ordinary;
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t last = rows.back();
  RowCheck alone{Kind::kAlone, last, 1};
  for (const std::int64_t other : rows) {
    if (other == last || !differ(tensors, last, other)) continue;
    if (!has_fixed_shape) return {alone};
    return {RowCheck{Kind::kSameShape, last, count}};
  }
  // Rows without elements are equal, and no row can depend on them.
  const bool are_empty = std::all_of(tensors.begin(), tensors.end(),
                                     [](const at::Tensor& tensor) { return tensor.numel() == 0; });
  // A first size that stays is told from one that follows the rows.
  RowCheck beside{Kind::kBeside, last, count == 2 ? 3 : 2};
  if (has_fixed_shape) return {};
  if (count == 1) {
    if (!are_empty && !differs_reversed(tensors, last)) return {};
    return {beside};
  }
  beside.exchanges_bits = !differs_made(tensors, last, /*exchanges_bits=*/false);
  const bool is_other_row =
      !beside.exchanges_bits || differs_made(tensors, last, /*exchanges_bits=*/true);
  if (are_empty || is_other_row) return {alone, beside};
  alone.needs_different_results = true;
  return {alone};
}

at::Tensor check_rows_of(const at::Tensor& tensor, const RowCheck& check) {
  const tensor::OrdinaryTensors ordinary;
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(check.rows), check.row);
  at::Tensor made = tensor::select_rows(tensor.detach(), rows);
  if (!check.has_made_rows() || made.dim() < 2) return made;
  const at::Tensor others = made.narrow(0, 0, check.rows - 1);
  others.copy_(made_rows(others, check.exchanges_bits));
  return made;
}

at::Tensor made_rows(const at::Tensor& rows, bool exchanges_bits) {
  const tensor::OrdinaryTensors ordinary;
  const at::ScalarType type = rows.scalar_type();
  // Numbers that no operator takes are bytes here.
  const at::Tensor operable = tensor::as_operable(rows);
  const at::Tensor reversed = at::flip(operable, {-1});
  if (rows.numel() == 0 || operable.scalar_type() != type) {
    return reversed.scalar_type() == type ? reversed : reversed.view(type);
  }
  if (type == at::kBool) return exchanges_bits ? reversed.logical_not() : reversed;
  // Numbers from 0 to 1 stay there, and only rows of 0.5 alone stay as they are.
  if (!at::isIntegralType(type, /*includeBool=*/true)) return reversed.mul(0.5).add(0.25).to(type);
  const at::Tensor wide = reversed.to(at::kLong);
  const bool is_mask = at::logical_and(wide.ge(0), wide.le(1)).all().item<bool>();
  if (is_mask) return exchanges_bits ? wide.mul(-1).add(1).to(type) : reversed;
  return wide.div(2, "trunc").to(type);
}

at::IValue check_input(const at::IValue& input, const RowCheck& check) {
  return tensor::with_tensors(
      input, [&](const at::Tensor& tensor) { return check_rows_of(tensor, check); });
}

RowProof judge_row_check(const CheckedRun& run, const tensor::Flat& checked,
                         const RowCheck& check) {
  const tensor::Flat& result = run.result;
  const tensor::OrdinaryTensors ordinary;
  RowProof proof;
  const auto refuted = [&](const std::string& why) {
    return RowProof::refuted(run.who + ": " + why + kRule);
  };
  if (result.root != checked.root || result.tensors.size() != checked.tensors.size()) {
    return refuted("its plain values, or its structure, depend on the number of rows");
  }
  bool has_rows = false;
  bool has_unclear = false;
  bool is_unclear = check.needs_different_results;
  for (std::size_t i = 0; i < result.tensors.size(); ++i) {
    if (result.tensors[i].scalar_type() != checked.tensors[i].scalar_type()) {
      return refuted(name_of_output(i, result) + " changes its dtype with the number of rows");
    }
    const TensorVerdict seen = verdict_of(run, result.tensors[i], checked.tensors[i], check);
    switch (seen.kind) {
      case TensorVerdict::Kind::kRows:
        has_rows = true;
        is_unclear = is_unclear &&
                     has_equal_rows(check.has_made_rows() ? checked.tensors[i] : result.tensors[i]);
        break;
      case TensorVerdict::Kind::kConstant: proof.constants.push_back(i); break;
      case TensorVerdict::Kind::kUnclear: has_unclear = true; break;
      case TensorVerdict::Kind::kNeither: return refuted(name_of_output(i, result) + seen.why_not);
    }
  }
  is_unclear = is_unclear || has_unclear;
  if (!is_unclear && has_rows) proof.verdict = Verdict::kProven;
  proof.holds_for_one = check.kind != RowCheck::Kind::kSameShape;
  if (!has_unclear && !has_rows) return refuted("none of its outputs depends on its input rows");
  return proof;
}

tensor::Tolerance row_tolerance(const CallParts& parts, const tensor::Flat& result) {
  constexpr double kTolerance = 1e-4;
  constexpr double kToleranceOfFewBits = 1e-2;
  // Convolutions of cuDNN compute in TF32 unless that is switched off.
  const bool is_on_cuda = parts.input.device.has_value() && parts.input.device->is_cuda();
  const bool has_few_bits =
      is_on_cuda || tensor::is_of_few_bits(parts.arithmetic_state()) ||
      std::any_of(result.tensors.begin(), result.tensors.end(), [](const at::Tensor& tensor) {
        return tensor.is_floating_point() && tensor.element_size() < 4;
      });
  return {has_few_bits ? kToleranceOfFewBits : kTolerance, 0};
}

std::string why_not_rows(const std::string& who, const tensor::Flat& result, std::int64_t rows) {
  return who + ": it was run on " + rows_in_words(rows) + ", one key each, and returned " +
         tensor::why_no_rows(result, rows) + kRule;
}

bool has_first_sizes(const tensor::Flat& result, std::int64_t rows,
                     const std::vector<std::size_t>& constants) {
  for (const std::size_t constant : constants) {
    if (constant >= result.tensors.size()) return false;
  }
  for (std::size_t i = 0; i < result.tensors.size(); ++i) {
    const at::Tensor& tensor = result.tensors[i];
    if (std::find(constants.begin(), constants.end(), i) != constants.end()) continue;
    if (tensor.dim() == 0 || tensor.size(0) != rows) return false;
  }
  return result.tensors.size() > constants.size();
}

tensor::Flat with_constants_by_row(const tensor::Flat& result, std::int64_t rows,
                                   const std::vector<std::size_t>& constants) {
  tensor::Flat by_row = result;
  for (const std::size_t i : constants) {
    const at::Tensor one = result.tensors[i].unsqueeze(0);
    std::vector<std::int64_t> sizes = one.sizes().vec();
    sizes[0] = rows;
    by_row.tensors[i] = one.expand(sizes).contiguous();
  }
  return by_row;
}

}  // namespace modcache::module
