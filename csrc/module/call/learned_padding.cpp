// SPDX-License-Identifier: Apache-2.0
#include "module/call/learned_padding.h"

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
  std::unordered_map<Digest128, LearnedPadding, Digest128Hash> by_context
      MODCACHE_GUARDED_BY(mutex);
};

// A module that takes padding for data gives results that differ by about this much of them.
constexpr double kEnoughShare = 0.2;

double share_between(std::int64_t a, std::int64_t b) {
  return 1 - static_cast<double>(std::min(a, b)) / static_cast<double>(std::max(a, b));
}

constexpr const char* kOtherForm =
    "its result has another form for a batch that is padded to another length";

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

}  // namespace

std::optional<LearnedPadding> learned_padding(const Digest128& context) {
  Learned& learned = Learned::instance();
  MutexLock lock(learned.mutex);
  const auto found = learned.by_context.find(context);
  if (found == learned.by_context.end()) return std::nullopt;
  return found->second;
}

void note_padding(const Digest128& context, LearnedPadding padding) {
  Learned& learned = Learned::instance();
  MutexLock lock(learned.mutex);
  if (learned.by_context.size() >= Learned::kMost) learned.by_context.clear();
  learned.by_context[context] = std::move(padding);
}

std::optional<PaddingTrial> plan_trial(const tensor::RowPadding& padding,
                                       const std::vector<std::int64_t>& rows,
                                       const std::optional<LearnedPadding>& learned,
                                       std::size_t attempt) {
  const auto length_of = [&](std::int64_t row) {
    return padding.lengths[static_cast<std::size_t>(row)];
  };
  // The row with the most padding shows best what padding does.
  std::int64_t shortest = rows[0];
  for (const std::int64_t row : rows) {
    const bool is_shorter = length_of(row) < length_of(shortest) || length_of(shortest) == 0;
    if (length_of(row) > 0 && is_shorter) shortest = row;
  }
  const std::int64_t length = length_of(shortest);
  const std::int64_t longest = padding.longest;
  const double share = length == 0 ? 0 : share_between(length, longest);
  if (learned.has_value()) {
    const double shown = learned->shown_share;
    if (shown >= kEnoughShare || (shown > 0 && share <= 2 * shown)) return std::nullopt;
  }
  std::vector<std::int64_t> lengths;
  if (share >= kEnoughShare) {
    lengths = {length};
  } else {
    lengths = {longest + (longest + 1) / 2, longest + (longest + 3) / 4};
    if (share > 0) lengths.push_back(length);
    if (share == 0 && longest > 1) lengths.push_back(longest - 1);
  }
  if (attempt >= lengths.size()) return std::nullopt;
  return PaddingTrial{shortest, lengths[attempt]};
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

LearnedPadding judge_trial(const tensor::Flat& result, std::int64_t place,
                           const tensor::Flat& tried, const PaddingTrial& trial,
                           const tensor::RowPadding& padding, double tolerance) {
  LearnedPadding learned;
  if (result.root != tried.root || result.tensors.size() != tried.tensors.size()) {
    learned.why_not = kOtherForm;
    return learned;
  }
  const std::int64_t true_length = padding.lengths[static_cast<std::size_t>(trial.row)];
  // A trial that cuts a part of the row off shows shapes alone.
  const bool is_compared = true_length > 0 && trial.length >= true_length;
  tensor::Flat given{result.root, {}, {}};
  tensor::Flat again{tried.root, {}, {}};
  for (std::size_t i = 0; i < result.tensors.size(); ++i) {
    const auto dims =
        dims_between(result.tensors[i], padding.longest, tried.tensors[i], trial.length);
    if (!dims.has_value()) {
      learned.why_not = kOtherForm;
      return learned;
    }
    learned.dims.push_back(*dims);
    if (!is_compared) continue;
    const auto true_part = [&](const at::Tensor& batch, std::int64_t row) {
      return cut_to_length(batch.detach().select(0, row), *dims, true_length);
    };
    given.tensors.push_back(true_part(result.tensors[i], place));
    again.tensors.push_back(true_part(tried.tensors[i], 0));
  }
  if (!is_compared) return learned;
  const std::string difference = tensor::difference(again, given, {tolerance, tolerance});
  if (difference.empty()) {
    learned.shown_share = share_between(trial.length, padding.longest);
  } else {
    learned.why_not = "a row gives another result where its batch is padded otherwise (" +
                      difference + "): the module does not heed its mask, or is not given it";
  }
  return learned;
}

}  // namespace modcache::module
