// SPDX-License-Identifier: Apache-2.0
#include "module/call/learned_padding.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "base/process_wide.h"
#include "tensor/difference.h"

namespace modcache::module {
namespace {

using tensor::cut_to_length;
using tensor::DimSet;

struct Learned : ProcessWide<Learned> {
  static constexpr std::size_t kMost = 4096;
  std::unordered_map<Digest128, LearnedPadding, Digest128Hash> by_form MODCACHE_GUARDED_BY(mutex);
};

// A module that takes padding for data gives results that differ by about this much of them.
constexpr double kEnoughShare = 0.2;
constexpr int kMostFailures = 3;
// A length beyond the steps in which modules round sizes up, and beyond those to which they cut.
constexpr std::int64_t kFarLength = 67;

double share_between(std::int64_t a, std::int64_t b) {
  return 1 - static_cast<double>(std::min(a, b)) / static_cast<double>(std::max(a, b));
}

// Returns the sets, as bits, of one to all but one of some numbers, of which there are few.
std::vector<std::uint64_t> proper_subsets(const std::vector<unsigned>& numbers) {
  std::vector<std::uint64_t> subsets;
  for (std::uint64_t chosen = 1; chosen + 1 < (std::uint64_t{1} << numbers.size()); ++chosen) {
    std::uint64_t subset = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (((chosen >> i) & 1) != 0) subset |= std::uint64_t{1} << numbers[i];
    }
    subsets.push_back(subset);
  }
  return subsets;
}

constexpr const char* kOtherForm =
    "its result has sizes that neither stay nor follow the length that a batch is padded to; pad "
    "all batches to one length instead, without mask";

constexpr const char* kUnheeded =
    "the module does not heed its mask, or is not given it; pad all batches to one length instead, "
    "without mask";
constexpr const char* kShifted =
    "padding on the left shifts positions, and the first token, which poolers read; give the "
    "module "
    "position_ids that count from each row's first token (mask.cumsum(-1) - 1), or pad on the "
    "right (padding_side=\"right\")";

// Returns whether the mean difference is small, too: beside one large number, the largest
// difference of all others would look small.
bool are_alike_on_average(const at::Tensor& again, const at::Tensor& given, double tolerance) {
  if (!given.is_floating_point() || given.numel() == 0) return true;
  const at::Tensor wide = given.to(at::kDouble);
  const double size = at::abs(wide).mean().item<double>();
  const double apart = at::abs(at::sub(again.to(at::kDouble), wide)).mean().item<double>();
  return !(apart > tolerance * size);
}

// Returns how the dtypes of two results of the same structure differ; empty: they do not.
std::string difference_of_dtypes(const tensor::Flat& tried, const tensor::Flat& result) {
  for (std::size_t i = 0; i < result.tensors.size(); ++i) {
    const auto [one, other] =
        std::pair(tried.tensors[i].scalar_type(), result.tensors[i].scalar_type());
    if (one != other) return std::string(c10::toString(one)) + " and " + c10::toString(other);
  }
  return {};
}

// Returns the dimensions of tensors [rows, ...] that follow the length; nothing when another one
// differs.
std::optional<DimSet> dims_between(const at::Tensor& whole, std::int64_t longest,
                                   const at::Tensor& tried, std::int64_t length) {
  if (whole.dim() != tried.dim() || tried.dim() == 0 || tried.size(0) != 1) return std::nullopt;
  DimSet dims = 0;
  for (std::int64_t d = 1; d < whole.dim(); ++d) {
    if (whole.size(d) == tried.size(d)) continue;
    if (whole.size(d) != longest || tried.size(d) != length) return std::nullopt;
    dims |= DimSet{1} << (d - 1);
  }
  return dims;
}

// Returns the row with the most padding, which shows best what padding does. Empty rows come after
// all others.
std::int64_t shortest_row(const tensor::RowPadding& padding,
                          const std::vector<std::int64_t>& rows) {
  const auto rank = [&](std::int64_t row) {
    const std::int64_t length = padding.lengths[static_cast<std::size_t>(row)];
    return std::pair(length == 0, length);
  };
  return *std::min_element(rows.begin(), rows.end(),
                           [&](auto a, auto b) { return rank(a) < rank(b); });
}

// Returns a trial of the longest row that has padding, if that is another one than `first`. Beside
// a row of one place, which may agree by chance, one without padding is tried at a greater length,
// if `may_lengthen`.
std::optional<PaddingTrial> trial_of_second_row(const tensor::RowPadding& padding,
                                                const std::vector<std::int64_t>& rows,
                                                std::int64_t first, bool may_lengthen) {
  const auto length_of = [&](std::int64_t row) {
    return padding.lengths[static_cast<std::size_t>(row)];
  };
  std::int64_t second = first;
  std::int64_t whole = first;
  for (const std::int64_t row : rows) {
    const bool has_padding = length_of(row) < padding.longest;
    if (has_padding && length_of(row) > length_of(second)) second = row;
    if (!has_padding) whole = row;
  }
  if (second != first) {
    return PaddingTrial{second, length_of(second), 0, PaddingTrial::Kind::kSecondRow};
  }
  if (length_of(first) > 1 || whole == first || !may_lengthen) return std::nullopt;
  const std::int64_t longer = padding.longest + (padding.longest + 1) / 2;
  return PaddingTrial{whole, longer, 0, PaddingTrial::Kind::kSecondRow};
}

// The rows of a batch that trials are planned for.
struct BatchToTry {
  const tensor::RowPadding& padding;
  const std::vector<std::int64_t>& rows;
  bool may_lengthen;  // beyond the length of the batch
  std::int64_t shortest = shortest_row(padding, rows);

  std::int64_t length_of(std::int64_t row) const {
    return padding.lengths[static_cast<std::size_t>(row)];
  }
  // Returns the share by which the batch is longer than its shortest row.
  double share() const {
    const std::int64_t length = length_of(shortest);
    return length == 0 ? 0 : share_between(length, padding.longest);
  }
};

// Returns trials at another padding.
std::vector<PaddingTrial> trials_of_padding(const BatchToTry& batch, const LearnedPadding& known) {
  using Kind = PaddingTrial::Kind;
  const std::int64_t longest = batch.padding.longest;
  const std::int64_t length = batch.length_of(batch.shortest);
  const double share = batch.share();
  std::vector<PaddingTrial> trials;
  const auto add = [&](std::int64_t to) {
    trials.push_back({batch.shortest, to, 0, Kind::kPadding});
  };
  if (share >= kEnoughShare) {
    if (known.agreements >= kEnoughAgreements) return trials;
    add(length);
    const auto second =
        trial_of_second_row(batch.padding, batch.rows, batch.shortest, batch.may_lengthen);
    if (second.has_value()) trials.push_back(*second);
  } else if (known.shown_share < kEnoughShare &&
             (known.shown_share == 0 || share > 2 * known.shown_share)) {
    if (batch.may_lengthen) {
      add(longest + (longest + 1) / 2);
      add(longest + (longest + 3) / 4);
    }
    if (share > 0) add(length);
    if (share == 0 && longest > 1) add(longest - 1);
  }
  return trials;
}

// Returns trials at another length, and of a part of a row.
std::vector<PaddingTrial> trials_of_length(const BatchToTry& batch) {
  using Kind = PaddingTrial::Kind;
  const std::int64_t longest = batch.padding.longest;
  const std::int64_t length = batch.length_of(batch.shortest);
  std::vector<PaddingTrial> trials;
  const auto add = [&](std::int64_t to) {
    trials.push_back({batch.shortest, to, 0, Kind::kLength});
  };
  if (batch.may_lengthen) {
    for (std::int64_t far = kFarLength; far > 2 * longest + 1; far = (far + 3) / 2) add(far);
    add(2 * longest + 1);
  }
  // Longer than the row, so that a size that follows the row shows.
  const bool has_room = length + 1 < longest;
  if (longest > 1) add(has_room ? (length + 1 + longest) / 2 : longest / 2);
  const std::int64_t largest =
      *std::max_element(batch.rows.begin(), batch.rows.end(),
                        [&](auto a, auto b) { return batch.length_of(a) < batch.length_of(b); });
  // The shortest part shows most: a module may cut its input to some length.
  if (batch.length_of(largest) > 3) trials.push_back({largest, 2, 0, Kind::kCut});
  if (batch.length_of(largest) > 1) {
    trials.push_back({largest, batch.length_of(largest) / 2, 0, Kind::kCut});
  }
  return trials;
}

}  // namespace

bool LearnedPadding::is_refused() const { return !why_not.empty() && failures >= kMostFailures; }

bool LearnedPadding::fits(const tensor::Flat& result, std::int64_t longest) const {
  if (!has_padded_dims(result, dims, longest)) return false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const at::Tensor& batch = result.tensors[i];
    if (batch.dim() != static_cast<std::int64_t>(sizes[i].size()) + 1) return false;
    for (std::size_t d = 0; d < sizes[i].size(); ++d) {
      const bool is_padded = d < 64 && ((dims[i] >> d) & 1) != 0;
      if (!is_padded && batch.size(static_cast<std::int64_t>(d) + 1) != sizes[i][d]) return false;
    }
  }
  return true;
}

bool LearnedPadding::is_settled() const {
  return agrees() && why_not.empty() && agreements >= kEnoughAgreements &&
         shown_share >= kEnoughShare;
}

LearnedPadding refused_padding(std::string why_not) {
  LearnedPadding refused;
  refused.why_not = std::move(why_not);
  refused.failures = kMostFailures;
  return refused;
}

std::optional<LearnedPadding> learned_padding(const Digest128& form) {
  Learned& learned = Learned::instance();
  MutexLock lock(learned.mutex);
  const auto found = learned.by_form.find(form);
  if (found == learned.by_form.end()) return std::nullopt;
  return found->second;
}

void note_padding(const Digest128& form, LearnedPadding padding) {
  Learned& learned = Learned::instance();
  MutexLock lock(learned.mutex);
  if (learned.by_form.size() >= Learned::kMost) learned.by_form.clear();
  learned.by_form[form] = std::move(padding);
}

std::vector<PaddingTrial> plan_trials(const tensor::RowPadding& padding,
                                      const std::vector<std::int64_t>& rows,
                                      const std::vector<unsigned>& padded,
                                      const std::optional<LearnedPadding>& learned,
                                      bool is_on_accelerator) {
  const BatchToTry batch{padding, rows, !is_on_accelerator};
  const LearnedPadding known = learned.value_or(LearnedPadding());
  std::vector<PaddingTrial> trials = trials_of_padding(batch, known);
  if (known.are_sizes_known) return trials;
  const auto add = [&](const std::vector<PaddingTrial>& more) {
    trials.insert(trials.end(), more.begin(), more.end());
  };
  add(trials_of_length(batch));
  // A length of 1 would be broadcast.
  const std::int64_t other = padding.longest > 3 ? padding.longest / 2 : padding.longest + 2;
  std::uint64_t all = 0;
  for (const unsigned number : padded) all |= std::uint64_t{1} << number;
  add(plan_trials_of_some({batch.shortest, other}, padded, all));
  return trials;
}

std::vector<PaddingTrial> plan_trials_of_use(const PaddingTrial& some,
                                             const std::vector<unsigned>& padded) {
  PaddingTrial trial = some;
  trial.kind = PaddingTrial::Kind::kUnused;
  trial.kept = 0;
  std::vector<PaddingTrial> trials{trial};
  for (const unsigned number : padded) {
    trial.kept = std::uint64_t{1} << number;
    trial.altered = number;
    trials.push_back(trial);
  }
  return trials;
}

std::vector<PaddingTrial> plan_trials_of_some(const PaddingTrial& some,
                                              const std::vector<unsigned>& padded,
                                              std::uint64_t used) {
  std::vector<PaddingTrial> trials;
  for (const std::uint64_t kept : proper_subsets(padded)) {
    if ((kept & used) == 0 || (kept & used) == used) continue;
    trials.push_back({some.row, some.length, kept, PaddingTrial::Kind::kSome});
  }
  return trials;
}

bool has_padded_dims(const tensor::Flat& result, const std::vector<DimSet>& dims,
                     std::int64_t longest) {
  if (result.tensors.size() != dims.size()) return false;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const at::Tensor& batch = result.tensors[i];
    for (std::int64_t d = 0; d < 64; ++d) {
      if (((dims[i] >> d) & 1) == 0) continue;
      if (d + 1 >= batch.dim() || batch.size(d + 1) != longest) return false;
    }
  }
  return true;
}

void judge_trial(const tensor::Flat& result, const tensor::Flat& tried, const PaddingTrial& trial,
                 const tensor::RowPadding& padding, double tolerance, LearnedPadding& learned) {
  std::vector<DimSet> dims;
  const bool is_alike = result.root == tried.root && result.tensors.size() == tried.tensors.size();
  for (std::size_t i = 0; is_alike && i < result.tensors.size(); ++i) {
    const auto follow =
        dims_between(result.tensors[i], padding.longest, tried.tensors[i], trial.length);
    if (!follow.has_value()) break;
    dims.push_back(*follow);
  }
  const bool is_first = learned.dims.empty();
  if (!is_alike || dims.size() != result.tensors.size() || (!is_first && dims != learned.dims)) {
    learned.why_not = kOtherForm;
    return;
  }
  learned.dims = dims;
  learned.sizes.clear();
  for (const at::Tensor& batch : result.tensors) {
    learned.sizes.push_back(batch.sizes().slice(1).vec());
  }
  const std::int64_t true_length = padding.lengths[static_cast<std::size_t>(trial.row)];
  // A trial that cuts a part of the row off shows sizes alone.
  const bool shows_padding =
      trial.kind == PaddingTrial::Kind::kPadding || trial.kind == PaddingTrial::Kind::kSecondRow;
  if (!shows_padding || true_length == 0 || trial.length < true_length) return;
  const std::string dtypes = difference_of_dtypes(tried, result);
  if (!dtypes.empty()) {
    learned.failures = kMostFailures;
    learned.why_not = "a row gives another dtype where its batch is padded otherwise (" + dtypes +
                      "), as attentions do under autocast; convert the module to the dtype that "
                      "you want instead";
    return;
  }
  tensor::Flat given{result.root, {}, {}};
  tensor::Flat again{tried.root, {}, {}};
  bool is_alike_on_average = true;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const auto true_part = [&](const at::Tensor& batch, std::int64_t row) {
      return cut_to_length(batch.detach().select(0, row), dims[i], true_length, padding.true_part);
    };
    given.tensors.push_back(true_part(result.tensors[i], trial.place));
    again.tensors.push_back(true_part(tried.tensors[i], 0));
    is_alike_on_average = is_alike_on_average &&
                          are_alike_on_average(again.tensors[i], given.tensors[i], tolerance / 5);
  }
  std::string difference = tensor::difference(again, given, {tolerance, 0});
  if (difference.empty() && !is_alike_on_average) difference = "most of its numbers";
  if (difference.empty()) {
    learned.shown_share =
        std::max(learned.shown_share, share_between(trial.length, padding.longest));
    if (trial.kind == PaddingTrial::Kind::kPadding) ++learned.agreements;
    return;
  }
  learned.failures = kMostFailures;
  learned.why_not = "a row gives another result where its batch is padded otherwise (" +
                    difference +
                    "): " + (padding.true_part == tensor::TruePart::kLast ? kShifted : kUnheeded);
}

}  // namespace modcache::module
