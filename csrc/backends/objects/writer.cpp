// SPDX-License-Identifier: Apache-2.0
#include "backends/objects/writer.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/random.h"

namespace modcache::backends {
namespace {

constexpr int kMostDoubledWaits = 2;
constexpr std::int64_t kLeastWaitMs = 50;
constexpr std::int64_t kFirstCheckAfterMs = 1'000;
constexpr int kNeverMergedAgain = 1'000;
constexpr std::size_t kLargeSegmentBytes = std::size_t{1} << 20;
constexpr std::size_t kMostPublishedAtOnce = 2;
constexpr std::size_t kMostMergedNameBytes = std::size_t{256} << 20;
constexpr std::size_t kMostTakenOver = 64;
constexpr std::size_t kMostSegmentsTakenOver = 512;

// The latest place of each name in some segments.
class MergedPlaces {
 public:
  // Segments share the beginnings of names, so that few bytes may stand for many.
  bool is_too_large() const { return name_bytes_ > kMostMergedNameBytes; }
  bool add(const std::string& segment) {
    const Status decoded = decode_segment(segment, [&](std::string_view name, const Place& place) {
      if (is_too_large()) return;
      const auto [known, is_new] = places_.emplace(name, place);
      if (is_new) name_bytes_ += name.size();
      if (!is_new && known->second.time_us < place.time_us) known->second = place;
    });
    return decoded.is_ok();
  }
  std::string encoded() const {
    std::vector<PlacedName> names;
    names.reserve(places_.size());
    for (const auto& [name, place] : places_) names.push_back({name, place});
    return encode_segment(std::move(names));
  }
  std::vector<ObjectIndex::DigestPlace> located() const {
    std::vector<ObjectIndex::DigestPlace> located;
    located.reserve(places_.size());
    for (const auto& [name, place] : places_) located.emplace_back(digest_of_name(name), place);
    return located;
  }

 private:
  std::unordered_map<std::string, Place> places_;
  std::size_t name_bytes_ = 0;
};

Status read_merged(HttpClient& client, const std::vector<SegmentOfWriter>& segments,
                   MergedPlaces& merged) {
  return read_segments(client, segments,
                       [&](const SegmentOfWriter& segment, const std::string& bytes) {
                         if (!merged.add(bytes)) {
                           log_damaged(client, segment_path(segment.writer, segment.range),
                                       Status::corruption("its content is malformed"));
                         }
                         return true;
                       });
}

HttpRequest put_of(std::string path, const std::string& body) {
  HttpRequest request;
  request.method = HttpMethod::kPut;
  request.path = std::move(path);
  request.body = body;
  return request;
}

}  // namespace

Writer::Writer(HttpClient& client, ObjectIndex& index)
    : client_(client), index_(index), state_(index.borrow_writer()) {}

// One whose head is nearly full is not used again, so that the index makes another.
Writer::~Writer() {
  if (state_->segments.size() + kMostPublishedAtOnce <= kMostSegments) {
    index_.give_back(std::move(state_));
  }
}

Status Writer::put(const HttpRequest& request) {
  const HttpAnswer answer = client_.perform(request);
  return answer.is_success() ? Status::ok() : failure_of(request, answer, client_.server());
}

HttpRequest Writer::segment_put(const std::string& bytes) const {
  const SegmentRange range{state_->next_segment, state_->next_segment, 0};
  return put_of(segment_path(state_->id, range), bytes);
}

Status Writer::put_head() {
  Head head{state_->id, {}};
  for (const WriterState::Segment& segment : state_->segments) {
    head.segments.push_back(segment.range);
  }
  const std::string bytes = encode_head(head);
  return put(put_of(head_path(state_->id), bytes));
}

Status Writer::publish(std::size_t segment_bytes) {
  const std::uint32_t number = state_->next_segment++;
  const int level = segment_bytes > kLargeSegmentBytes ? kNeverMergedAgain : 0;
  state_->segments.push_back({{number, number, static_cast<std::uint32_t>(segment_bytes)}, level});
  const Status status = put_head();
  if (!status.is_ok()) state_->segments.pop_back();
  return status;
}

Status Writer::keep_up() {
  while (is_merge_due()) MODCACHE_RETURN_IF_ERROR(merge());
  const std::int64_t now_ms = steady_now_ms();
  const bool is_announced = state_->announced_at_ms != 0 &&
                            now_ms - state_->announced_at_ms < ObjectIndex::kAnnounceEveryMs;
  if (!is_announced) return announce();
  return now_ms < state_->next_check_ms ? Status::ok() : check();
}

bool Writer::is_merge_due() const {
  const auto& segments = state_->segments;
  if (segments.size() < kMergedAtOnce) return false;
  const int level = segments.back().level;
  return level != kNeverMergedAgain &&
         std::all_of(segments.end() - kMergedAtOnce, segments.end(),
                     [&](const WriterState::Segment& segment) { return segment.level == level; });
}

Status Writer::merge() {
  auto& segments = state_->segments;
  const std::vector<WriterState::Segment> before = segments;
  const auto first = segments.end() - kMergedAtOnce;
  std::vector<SegmentOfWriter> parts;
  std::size_t bytes = 0;
  for (auto segment = first; segment != segments.end(); ++segment) {
    parts.push_back({state_->id, segment->range});
    bytes += segment->range.size_bytes;
  }
  MergedPlaces merged;
  if (bytes <= kMostMergedBytes) MODCACHE_RETURN_IF_ERROR(read_merged(client_, parts, merged));
  if (bytes > kMostMergedBytes || merged.is_too_large()) {
    for (auto segment = first; segment != segments.end(); ++segment) {
      segment->level = kNeverMergedAgain;
    }
    return Status::ok();
  }
  const std::string merged_bytes = merged.encoded();
  WriterState::Segment whole = *first;
  whole.range.last = segments.back().range.last;
  whole.range.size_bytes = static_cast<std::uint32_t>(merged_bytes.size());
  ++whole.level;
  MODCACHE_RETURN_IF_ERROR(put(put_of(segment_path(state_->id, whole.range), merged_bytes)));
  segments.erase(first, segments.end());
  segments.push_back(whole);
  const Status named = put_head();
  if (!named.is_ok()) {
    segments = before;
    return named;
  }
  // Who read the head before finds them gone, and reads the new one at its next look. A server that
  // deletes nothing keeps some small objects too many.
  std::vector<HttpRequest> removals;
  for (const SegmentOfWriter& part : parts) {
    HttpRequest removal;
    removal.method = HttpMethod::kDelete;
    removal.path = segment_path(part.writer, part.range);
    removals.push_back(std::move(removal));
  }
  (void)client_.perform(removals);
  return Status::ok();
}

Status Writer::check() {
  MODCACHE_ASSIGN_OR_RETURN(const WritersList list, read_writers(client_));
  const bool is_listed = std::any_of(list.writers.begin(), list.writers.end(),
                                     [&](const ListedWriter& one) { return one.id == id(); });
  if (!is_listed) return announce();
  state_->check_after_ms *= 2;
  state_->next_check_ms = steady_now_ms() + state_->check_after_ms;
  return Status::ok();
}

// Who read the list before this writer wrote it writes it without this one. That takes about as
// long as it took here. Chance keeps writers that began together from meeting again and again.
void Writer::wait_for_rivals(int attempt, std::int64_t took_ms) const {
  const std::int64_t most_ms = std::max(kLeastWaitMs, client_.server().timeout_ms / 3);
  const std::int64_t least_ms =
      std::clamp(std::max(4 * took_ms, kLeastWaitMs << std::min(attempt, kMostDoubledWaits)),
                 kLeastWaitMs, most_ms);
  const auto more_ms = static_cast<std::int64_t>(random_number() % 1'000) * least_ms / 1'000;
  std::this_thread::sleep_for(std::chrono::milliseconds(least_ms + more_ms));
}

Status Writer::announce() {
  const std::int64_t announced_us = std::max(now_us(), state_->announced_us + 1);
  std::vector<std::uint64_t> gone;
  MODCACHE_RETURN_IF_ERROR(take_over(gone));
  const std::int64_t until_ms = steady_now_ms() + client_.server().timeout_ms;
  for (int attempt = 0; attempt == 0 || steady_now_ms() < until_ms; ++attempt) {
    const std::int64_t begun_ms = steady_now_ms();
    MODCACHE_ASSIGN_OR_RETURN(const Announced outcome, announce_once(announced_us, gone));
    if (outcome == Announced::kOthersCameBefore) continue;
    if (outcome == Announced::kWritten) {
      wait_for_rivals(attempt, steady_now_ms() - begun_ms);
      continue;
    }
    state_->announced_us = announced_us;
    state_->announced_at_ms = steady_now_ms();
    state_->check_after_ms = kFirstCheckAfterMs;
    state_->next_check_ms = state_->announced_at_ms + kFirstCheckAfterMs;
    break;
  }
  // Where others always came between, the next call tries again.
  return Status::ok();
}

Result<Writer::Announced> Writer::announce_once(std::int64_t announced_us,
                                                const std::vector<std::uint64_t>& gone) {
  MODCACHE_ASSIGN_OR_RETURN(const WritersList list, read_writers(client_));
  std::vector<ListedWriter> after;
  for (const ListedWriter& writer : list.writers) {
    if (writer.id == id() && writer.announced_us == announced_us) return Announced::kListed;
    const bool is_gone = std::find(gone.begin(), gone.end(), writer.id) != gone.end();
    if (writer.id != id() && !is_gone) after.push_back(writer);
  }
  std::sort(after.begin(), after.end(), [](const ListedWriter& a, const ListedWriter& b) {
    return a.announced_us > b.announced_us;
  });
  if (after.size() >= kMostWriters) after.resize(kMostWriters - 1);
  after.push_back({id(), announced_us});
  return put_list(list, after);
}

Result<Writer::Announced> Writer::put_list(const WritersList& before,
                                           const std::vector<ListedWriter>& after) {
  const std::string bytes = encode_writers(after);
  HttpRequest request = put_of(kWritersPath, bytes);
  if (!before.is_there) request.condition = "If-None-Match: *";
  const bool has_strong_etag = !before.etag.empty() && before.etag.front() == '"';
  if (before.is_there && has_strong_etag) request.condition = "If-Match: " + before.etag;
  HttpAnswer answer = client_.perform(request);
  if (answer.code == 409 || answer.code == 412) return Announced::kOthersCameBefore;
  if (answer.transport.is_ok() && (answer.code == 400 || answer.code == 501)) {
    request.condition.clear();  // the server knows no conditions
    answer = client_.perform(request);
  }
  if (answer.is_success()) return Announced::kWritten;
  return failure_of(request, answer, client_.server());
}

Status Writer::take_over(std::vector<std::uint64_t>& gone) {
  MODCACHE_ASSIGN_OR_RETURN(const WritersList list, read_writers(client_));
  if (list.writers.size() <= kLongList) return Status::ok();
  std::vector<ListedWriter> old;
  for (const ListedWriter& writer : list.writers) {
    const bool is_old = writer.announced_us < now_us() - ObjectIndex::kWriterIsOldUs;
    if (is_old && writer.id != id()) old.push_back(writer);
  }
  std::sort(old.begin(), old.end(), [](const ListedWriter& a, const ListedWriter& b) {
    return a.announced_us < b.announced_us;
  });
  if (old.size() > kMostTakenOver) old.resize(kMostTakenOver);
  std::vector<std::uint64_t> asked;
  asked.reserve(old.size());
  for (const ListedWriter& writer : old) asked.push_back(writer.id);
  std::vector<std::uint64_t> taken = asked;
  std::vector<SegmentOfWriter> segments;
  std::size_t bytes = 0;
  MODCACHE_RETURN_IF_ERROR(read_heads(client_, asked, [&](const Head& head, std::uint64_t) {
    std::size_t head_bytes = 0;
    for (const SegmentRange& range : head.segments) head_bytes += range.size_bytes;
    const bool is_too_much = bytes + head_bytes > kMostMergedBytes ||
                             segments.size() + head.segments.size() > kMostSegmentsTakenOver;
    if (is_too_much) {
      taken.erase(std::remove(taken.begin(), taken.end(), head.writer), taken.end());
      return;
    }
    bytes += head_bytes;
    for (const SegmentRange& range : head.segments) segments.push_back({head.writer, range});
  }));
  if (!segments.empty()) {
    MergedPlaces merged;
    MODCACHE_RETURN_IF_ERROR(read_merged(client_, segments, merged));
    if (merged.is_too_large()) return Status::ok();
    index_.apply(merged.located());
    const std::string merged_bytes = merged.encoded();
    if (merged_bytes.size() > kMostSegmentBytes) return Status::ok();
    MODCACHE_RETURN_IF_ERROR(put(segment_put(merged_bytes)));
    MODCACHE_RETURN_IF_ERROR(publish(merged_bytes.size()));
  }
  gone = std::move(taken);
  return Status::ok();
}

}  // namespace modcache::backends
