// SPDX-License-Identifier: Apache-2.0
#include "arguments.h"

#include <c10/util/Exception.h>

#include <vector>

#include "base/utf8.h"
#include "module/call/current_cache.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::ops {

void check_key(const char* op, const std::string& key) {
  TORCH_CHECK_VALUE(!key.empty(), op,
                    ": key is an empty string; give each sample a non-empty key of its own, such "
                    "as its id or file name");
  TORCH_CHECK_VALUE(is_utf8(key), op, ": key is not valid UTF-8 (", key.size(),
                    " bytes); encode binary ids as text, for instance in hexadecimal");
}

void check_scope(const char* op, const std::string& scope) {
  TORCH_CHECK_VALUE(!scope.empty(), op,
                    ": scope is an empty string; without a module there is no fingerprint, so "
                    "name the scope, for instance \"clip-vit-b32@3\"");
  TORCH_CHECK_VALUE(is_utf8(scope), op, ": scope is not valid UTF-8");
}

at::Tensor checked_ids(const char* op, const at::Tensor& ids) {
  TORCH_CHECK_VALUE(ids.scalar_type() == at::kLong && ids.dim() == 1, op,
                    ": ids must be an int64 tensor of one dimension, one id per row, but got ",
                    ids.scalar_type(), ids.sizes());
  return ids.to(at::kCPU).contiguous();
}

module::CallKeys checked_keys(const char* op, const at::IValue& keys) {
  if (keys.isTensor()) {
    const at::Tensor& ids = keys.toTensor();
    // torch makes one of None.
    TORCH_CHECK_TYPE(ids.defined(), op,
                     ": key must be a str, or one key per row: a list of str or an int64 tensor; "
                     "but got None");
    const at::Tensor here = checked_ids(op, ids);
    const char* const why = tensor::why_not_storable(here);
    TORCH_CHECK_TYPE(why == nullptr, op, ": ids must be plain numbers, but got a tensor that is ",
                     why == nullptr ? "" : why,
                     "; what torch.export and torch.compile may record is modcache.lookup_or_run "
                     "of a module that is loaded");
    return module::CallKeys::of_ids(
        reinterpret_cast<const std::int64_t*>(tensor::const_bytes(here)),
        static_cast<std::size_t>(here.numel()));
  }
  TORCH_CHECK_TYPE(keys.isList(), op, ": keys must be a list of str or a tensor of ids, but got ",
                   keys.tagKind());
  std::vector<std::string_view> texts;
  texts.reserve(keys.toListRef().size());
  for (const at::IValue& key : keys.toListRef()) {
    TORCH_CHECK_TYPE(key.isString(), op, ": key ", texts.size(), " must be a str, but is ",
                     key.tagKind());
    check_key(op, key.toStringRef());
    texts.emplace_back(key.toStringRef());
  }
  return module::CallKeys(texts);
}

module::CallKeys checked_keys(const char* op, const std::optional<c10::List<std::string>>& texts,
                              const std::optional<at::Tensor>& ids) {
  if (texts.has_value()) return checked_keys(op, at::IValue(*texts));
  return checked_keys(op, at::IValue(ids.has_value() ? *ids : at::Tensor()));
}

std::optional<tensor::RowPadding> checked_padding(const char* op, std::size_t rows,
                                                  const GivenPadding& given) {
  if (!given.mask.has_value() && !given.lengths.has_value()) return std::nullopt;
  if (module::current_cache()->mode() == cache::Mode::kOff) return std::nullopt;
  TORCH_CHECK_VALUE(!given.mask.has_value() || !given.lengths.has_value(), op,
                    ": mask and lengths say the same; give one of them");
  auto padding = given.mask.has_value()
                     ? tensor::RowPadding::of_mask(*given.mask, given.value)
                     : tensor::RowPadding::of_lengths(*given.lengths, given.longest, given.value);
  TORCH_CHECK_VALUE(padding.lengths.size() == rows, op, ": ", rows, " keys were given, but the ",
                    given.mask.has_value() ? "mask is" : "lengths are", " for ",
                    padding.lengths.size(), " rows");
  if (padding.longest == 0) return std::nullopt;
  return padding;
}

void check_ok(const char* op, const Status& status) {
  if (status.is_ok()) return;
  TORCH_CHECK_VALUE(status.code() != StatusCode::kInvalidArgument, op, ": ", status.message());
  TORCH_CHECK(false, op, ": ", status.message());
}

cache::Options given_options(const c10::Dict<std::string, std::string>& options) {
  cache::Options given;
  for (const auto& option : options) given.emplace(option.key(), option.value());
  return given;
}

cache::Cache::Tier parse_tier(const std::string& tier) {
  if (tier == "all") return cache::Cache::Tier::kAll;
  if (tier == "memory") return cache::Cache::Tier::kMemory;
  if (tier == "disk") return cache::Cache::Tier::kDisk;
  if (tier == "remote") return cache::Cache::Tier::kRemote;
  TORCH_CHECK_VALUE(false, "cache::clear: tier is '", tier,
                    "', but must be one of: all, memory, disk, remote");
}

}  // namespace modcache::ops
