// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/reclaim_plan.h"

#include <algorithm>
#include <utility>

namespace modcache::store {
namespace {

constexpr std::uint64_t kLeastDeadShare = 4;  // a quarter
constexpr std::uint64_t kMostHeldShare = 4;

std::uint64_t gain_bytes(const SegmentUse& segment) {
  return segment.size_bytes - std::min(segment.size_bytes, segment.kept_bytes);
}

// Shares are compared in whole numbers: sizes are far below 2^48, shares in 1/65536.
std::uint64_t gain_share(const SegmentUse& segment) {
  return segment.size_bytes == 0 ? 65536 : (gain_bytes(segment) << 16) / segment.size_bytes;
}

// The least `half` of ranks with which `wanted_bytes` are reached.
std::uint64_t least_half(const std::vector<std::uint64_t>& bytes_by_half, std::uint64_t& wanted) {
  for (std::uint64_t half = 0; half < bytes_by_half.size(); ++half) {
    if (bytes_by_half[half] >= wanted) return half;
    wanted -= bytes_by_half[half];
  }
  return bytes_by_half.size();
}

}  // namespace

Excess excess_over(std::uint64_t to_bytes, std::uint64_t used_bytes, const RetiredSegments& retired,
                   std::uint64_t budget_bytes) {
  const std::uint64_t over = used_bytes - std::min(used_bytes, to_bytes + retired.leaving_bytes);
  const std::uint64_t held = retired.held_bytes - retired.leaving_bytes;
  if (budget_bytes == 0 || held <= budget_bytes / kMostHeldShare || over == 0) return {over, false};
  return {over - std::min(over, held), true};
}

std::vector<SegmentUse> with_dead_space(std::vector<SegmentUse> segments) {
  for (SegmentUse& segment : segments) segment.kept_bytes = segment.live_bytes;
  const auto is_too_full = [](const SegmentUse& segment) {
    return gain_bytes(segment) * kLeastDeadShare < segment.size_bytes;
  };
  segments.erase(std::remove_if(segments.begin(), segments.end(), is_too_full), segments.end());
  return by_gain(std::move(segments));
}

std::uint64_t dead_bytes(const std::vector<SegmentUse>& segments) {
  std::uint64_t sum = 0;
  for (const SegmentUse& segment : segments) {
    sum += segment.size_bytes - std::min(segment.size_bytes, segment.live_bytes);
  }
  return sum;
}

std::vector<SegmentUse> by_gain(std::vector<SegmentUse> segments) {
  const auto gives_nothing = [](const SegmentUse& segment) { return gain_bytes(segment) == 0; };
  segments.erase(std::remove_if(segments.begin(), segments.end(), gives_nothing), segments.end());
  std::sort(segments.begin(), segments.end(), [](const SegmentUse& one, const SegmentUse& other) {
    const std::uint64_t share = gain_share(one);
    const std::uint64_t other_share = gain_share(other);
    if (share != other_share) return share > other_share;
    return std::pair(one.first_sequence, one.id) < std::pair(other.first_sequence, other.id);
  });
  return segments;
}

// Two rounds over half of the bits each: ranks of ten million entries are not worth their memory.
std::uint64_t rank_above(const RankedSizes& for_each, std::uint64_t wanted_bytes) {
  std::uint64_t wanted = wanted_bytes;
  std::vector<std::uint64_t> bytes(1 << 16);
  for_each([&](std::uint32_t rank, std::uint64_t size) { bytes[rank >> 16] += size; });
  const std::uint64_t high = least_half(bytes, wanted);
  if (high == bytes.size()) return std::uint64_t{1} << 32;
  std::fill(bytes.begin(), bytes.end(), 0);
  for_each([&](std::uint32_t rank, std::uint64_t size) {
    if (rank >> 16 == high) bytes[rank & 0xffff] += size;
  });
  // Entries may have come and gone between the rounds.
  const std::uint64_t low = std::min<std::uint64_t>(least_half(bytes, wanted), 0xffff);
  return ((high << 16) | low) + 1;
}

}  // namespace modcache::store
