// SPDX-License-Identifier: Apache-2.0
#include "backends/objects/value_reader.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "backends/objects/news.h"
#include "remote/backend.h"

namespace modcache::backends {
namespace {

std::uint64_t end_of(const Place& place) { return std::uint64_t{place.offset} + place.size; }

// A part of shared bytes.
SharedBytes part_of(const SharedBytes& whole, std::size_t offset, std::size_t size) {
  return {whole.owner, whole.data + offset, size};
}

}  // namespace

std::vector<ValueReader::Group> ValueReader::packed_groups(std::vector<WantedValue>& wanted) const {
  std::vector<std::size_t> packed;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].place.kind != PlaceKind::kPacked) continue;
    if (wanted[i].place.size == 0) {
      wanted[i].value = share_bytes({});
    } else {
      packed.push_back(i);
    }
  }
  const auto order = [&](std::size_t i) {
    const Place& place = wanted[i].place;
    return std::make_tuple(place.writer, place.pack, place.offset);
  };
  std::sort(packed.begin(), packed.end(),
            [&](std::size_t a, std::size_t b) { return order(a) < order(b); });
  const std::uint64_t most_gap =
      ignores_ranges_ ? std::numeric_limits<std::uint32_t>::max() : kJoinedGapBytes;
  std::vector<Group> groups;
  for (const std::size_t i : packed) {
    const Place& place = wanted[i].place;
    if (!groups.empty()) {
      const Place& first = wanted[groups.back().members.front()].place;
      HttpRequest& request = groups.back().request;
      const std::uint64_t end = request.range_offset + request.range_size;
      if (first.writer == place.writer && first.pack == place.pack &&
          place.offset <= end + most_gap) {
        request.range_size = std::max(end, end_of(place)) - request.range_offset;
        groups.back().members.push_back(i);
        continue;
      }
    }
    Group group;
    group.request.path = pack_path(place.writer, place.pack);
    group.request.range_offset = place.offset;
    group.request.range_size = place.size;
    group.members.push_back(i);
    groups.push_back(std::move(group));
  }
  return groups;
}

ValueReader::Group ValueReader::own_object_group(const WantedValue& wanted, std::size_t number) {
  const bool is_control = wanted.place.kind == PlaceKind::kControl;
  Group group;
  group.request.path = is_control ? control_path(wanted.name) : whole_path(wanted.name);
  group.request.most_bytes = remote::kMostValueBytes;
  group.request.is_fresh = is_control;
  group.members.push_back(number);
  return group;
}

void ValueReader::hand_out(const Group& group, HttpAnswer answer,
                           std::vector<WantedValue>& wanted) {
  const SharedBytes bytes = share_bytes(std::move(answer.body));
  for (const std::size_t i : group.members) {
    WantedValue& one = wanted[i];
    if (one.place.kind == PlaceKind::kWhole) {
      one.value = bytes;
    } else if (one.place.kind == PlaceKind::kControl) {
      std::string_view value;
      if (decode_control(bytes.view(), value)) one.value = part_of(bytes, 1, value.size());
    } else {
      const std::uint64_t offset = one.place.offset - group.request.range_offset;
      if (offset + one.place.size > bytes.size_bytes) {
        log_damaged(client_, group.request.path, Status::corruption("it ends too early"));
        one.is_gone = true;
      } else if (group.members.size() == 1) {
        one.value = bytes;
      } else {
        // A copy, since one value that somebody keeps would keep all that came with it.
        one.value = share_bytes(std::string(bytes.view().substr(offset, one.place.size)));
      }
    }
  }
}

Status ValueReader::read(std::vector<WantedValue>& wanted) {
  std::vector<Group> groups = packed_groups(wanted);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const PlaceKind kind = wanted[i].place.kind;
    if (kind == PlaceKind::kWhole || kind == PlaceKind::kControl) {
      groups.push_back(own_object_group(wanted[i], i));
    }
  }
  std::vector<HttpRequest> requests;
  requests.reserve(groups.size());
  for (const Group& group : groups) requests.push_back(group.request);
  std::vector<HttpAnswer> answers = client_.perform(requests);
  Status first_failure;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    ignores_ranges_ = ignores_ranges_ || answers[i].ignored_range;
    // 416: the pack ends before the value begins.
    if (answers[i].is_success()) {
      hand_out(groups[i], std::move(answers[i]), wanted);
    } else if (answers[i].is_not_there() || answers[i].code == 416) {
      for (const std::size_t member : groups[i].members) wanted[member].is_gone = true;
    } else if (first_failure.is_ok()) {
      first_failure = failure_of(requests[i], answers[i], client_.server());
    }
  }
  return first_failure;
}

}  // namespace modcache::backends
