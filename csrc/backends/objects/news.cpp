// SPDX-License-Identifier: Apache-2.0
#include "backends/objects/news.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"

namespace modcache::backends {
namespace {

constexpr std::size_t kMostRequestsAtOnce = 64;
constexpr int kMostTimeoutsOfALook = 3;

HttpRequest fresh_get(std::string path, std::size_t most_bytes) {
  HttpRequest request;
  request.path = std::move(path);
  request.most_bytes = most_bytes;
  request.is_fresh = true;
  return request;
}

// Not ok where the server cannot be used. What is there but of no use is logged, and counts as not
// there.
Status is_readable(const HttpClient& client, const HttpRequest& request, const HttpAnswer& answer,
                   bool& is_there) {
  is_there = answer.is_success();
  if (is_there || answer.is_not_there()) return Status::ok();
  const Status failure = failure_of(request, answer, client.server());
  if (failure.code() != StatusCode::kCorruption) return failure;
  log_damaged(client, request.path, failure);
  return Status::ok();
}

// The segments from `first` on that are read together.
std::vector<HttpRequest> next_requests(const std::vector<SegmentOfWriter>& segments,
                                       std::size_t first) {
  std::vector<HttpRequest> requests;
  std::size_t bytes = 0;
  for (std::size_t i = first; i < segments.size(); ++i) {
    const SegmentOfWriter& segment = segments[i];
    bytes += segment.range.size_bytes;
    if (!requests.empty() &&
        (bytes > kMostSegmentBytes || requests.size() == kMostRequestsAtOnce)) {
      break;
    }
    HttpRequest request;
    request.path = segment_path(segment.writer, segment.range);
    request.most_bytes = segment.range.size_bytes;
    requests.push_back(std::move(request));
  }
  return requests;
}

void take_segment(const HttpClient& client, ObjectIndex& index, const SegmentOfWriter& segment,
                  const std::string& bytes) {
  std::vector<ObjectIndex::DigestPlace> places;
  const Status decoded = decode_segment(bytes, [&](std::string_view name, const Place& place) {
    places.emplace_back(digest_of_name(name), place);
  });
  if (!decoded.is_ok()) {
    log_damaged(client, segment_path(segment.writer, segment.range), decoded);
    return;
  }
  index.apply(places);
  index.note_read(segment.writer, segment.range);
}

// Reads what is new of some writers. False: time ran out.
Result<bool> take_news_of(HttpClient& client, ObjectIndex& index,
                          const std::vector<std::uint64_t>& writers, std::int64_t deadline_ms) {
  std::vector<SegmentOfWriter> segments;
  std::map<std::uint64_t, std::uint64_t> heads;  // their checksums, by writer; 0: it has none
  MODCACHE_RETURN_IF_ERROR(read_heads(client, writers, [&](const Head& head, std::uint64_t sum) {
    for (const SegmentRange& range : index.segments_to_read(head, sum)) {
      segments.push_back({head.writer, range});
    }
    heads[head.writer] = sum;
  }));
  // A segment that was merged into another meanwhile is not there: the next head says where it is.
  std::map<std::uint64_t, std::size_t> unread;
  for (const SegmentOfWriter& segment : segments) ++unread[segment.writer];
  bool is_in_time = true;
  MODCACHE_RETURN_IF_ERROR(read_segments(
      client, segments, [&](const SegmentOfWriter& segment, const std::string& bytes) {
        take_segment(client, index, segment, bytes);
        --unread[segment.writer];
        is_in_time = steady_now_ms() < deadline_ms;
        return is_in_time;
      }));
  if (!is_in_time) return false;
  // A writer without a head is not asked again before it announces itself anew.
  for (const std::uint64_t writer : writers) {
    if (unread[writer] == 0) index.note_head(writer, heads[writer]);
  }
  return true;
}

}  // namespace

void log_damaged(const HttpClient& client, const std::string& path, const Status& why) {
  const std::string url = client.server().url;
  log(LogLevel::kWarning, "remote-damaged:" + url,
      url + path + " is damaged (" + why.message() + "); what it says is left out");
}

Result<WritersList> read_writers(HttpClient& client) {
  const HttpRequest request = fresh_get(kWritersPath, kMostWritersBytes);
  HttpAnswer answer = client.perform(request);
  WritersList list;
  MODCACHE_RETURN_IF_ERROR(is_readable(client, request, answer, list.is_there));
  if (!list.is_there) return list;
  list.etag = std::move(answer.etag);
  auto decoded = decode_writers(answer.body);
  if (decoded.is_ok()) {
    list.writers = std::move(decoded).value();
  } else if (decoded.status().code() == StatusCode::kUnsupportedVersion) {
    return Status::invalid_argument(client.server().url +
                                    ": a newer modcache writes there; give another path");
  } else {
    log_damaged(client, kWritersPath, decoded.status());
  }
  return list;
}

Status read_heads(HttpClient& client, const std::vector<std::uint64_t>& writers,
                  const VisitHead& visit) {
  std::vector<HttpRequest> requests;
  requests.reserve(writers.size());
  for (const std::uint64_t writer : writers) {
    requests.push_back(fresh_get(head_path(writer), kMostHeadBytes));
  }
  const std::vector<HttpAnswer> answers = client.perform(requests);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    bool is_there = false;
    MODCACHE_RETURN_IF_ERROR(is_readable(client, requests[i], answers[i], is_there));
    if (!is_there) continue;
    const auto head = decode_head(answers[i].body, writers[i]);
    if (!head.is_ok()) {
      log_damaged(client, requests[i].path, head.status());
      continue;
    }
    visit(head.value(), xxh3_64(answers[i].body.data(), answers[i].body.size()));
  }
  return Status::ok();
}

Status read_segments(HttpClient& client, const std::vector<SegmentOfWriter>& segments,
                     const VisitSegment& visit) {
  for (std::size_t first = 0; first < segments.size();) {
    const std::vector<HttpRequest> requests = next_requests(segments, first);
    const std::vector<HttpAnswer> answers = client.perform(requests);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      bool is_there = false;
      MODCACHE_RETURN_IF_ERROR(is_readable(client, requests[i], answers[i], is_there));
      if (is_there && !visit(segments[first + i], answers[i].body)) return Status::ok();
    }
    first += requests.size();
  }
  return Status::ok();
}

Result<WritersList> look_for_news(HttpClient& client, ObjectIndex& index) {
  const std::int64_t deadline_ms =
      steady_now_ms() + kMostTimeoutsOfALook * client.server().timeout_ms;
  bool is_complete = false;
  std::size_t asked = 0;
  auto list = read_writers(client);
  Status status = list.status();
  if (status.is_ok()) {
    const std::vector<std::uint64_t> writers = index.writers_to_ask(list.value().writers);
    is_complete = true;
    while (is_complete && status.is_ok() && asked < writers.size()) {
      const std::size_t count = std::min(kMostRequestsAtOnce, writers.size() - asked);
      const auto from = writers.begin() + static_cast<std::ptrdiff_t>(asked);
      const auto taken = take_news_of(
          client, index, {from, from + static_cast<std::ptrdiff_t>(count)}, deadline_ms);
      asked += count;
      status = taken.status();
      is_complete = taken.is_ok() && taken.value() &&
                    (asked == writers.size() || steady_now_ms() < deadline_ms);
    }
  }
  index.end_look(is_complete, asked);
  if (!status.is_ok()) return status;
  return list;
}

Status visit_names(HttpClient& client, std::string_view prefix, const VisitName& visit) {
  MODCACHE_ASSIGN_OR_RETURN(const WritersList list, read_writers(client));
  bool goes_on = true;
  const auto visit_segment = [&](const SegmentOfWriter& segment, const std::string& bytes) {
    const Status decoded = decode_segment(bytes, [&](std::string_view name, const Place&) {
      if (goes_on && name.substr(0, prefix.size()) == prefix) goes_on = visit(name);
    });
    if (!decoded.is_ok()) {
      log_damaged(client, segment_path(segment.writer, segment.range), decoded);
    }
    return goes_on;
  };
  for (std::size_t first = 0; goes_on && first < list.writers.size();) {
    std::vector<std::uint64_t> writers;
    for (; writers.size() < kMostRequestsAtOnce && first < list.writers.size(); ++first) {
      writers.push_back(list.writers[first].id);
    }
    std::vector<SegmentOfWriter> segments;
    MODCACHE_RETURN_IF_ERROR(read_heads(client, writers, [&](const Head& head, std::uint64_t) {
      for (const SegmentRange& range : head.segments) segments.push_back({head.writer, range});
    }));
    MODCACHE_RETURN_IF_ERROR(read_segments(client, segments, visit_segment));
  }
  return Status::ok();
}

}  // namespace modcache::backends
