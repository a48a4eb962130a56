// SPDX-License-Identifier: Apache-2.0
#include "backends/objects/value_writer.h"

#include <cstddef>
#include <deque>
#include <unordered_map>
#include <utility>

#include "backends/objects/news.h"

namespace modcache::backends {
namespace {

constexpr std::string_view kControlPart = "/ctl/";

HttpRequest request_of(HttpMethod method, std::string path, std::string_view body = {}) {
  HttpRequest request;
  request.method = method;
  request.path = std::move(path);
  request.body = body;
  return request;
}

Status check_value(const remote::NamedValue& value) {
  if (value.name.empty() || value.name.size() > kMostNameBytes) {
    return Status::invalid_argument("a name has " + std::to_string(value.name.size()) +
                                    " bytes; valid are 1 to " + std::to_string(kMostNameBytes));
  }
  if (value.value.size() > remote::kMostValueBytes) {
    return Status::invalid_argument("a value has more than 4 GiB");
  }
  return Status::ok();
}

void note_first(Status& first, Status failure) {
  if (first.is_ok()) first = std::move(failure);
}

}  // namespace

bool is_control_name(std::string_view name) {
  return name.find(kControlPart) != std::string_view::npos;
}

// A name that is written. Where it comes several times, the last value counts.
struct ValueWriter::Item {
  std::vector<std::size_t> numbers;  // of the values that have this name
  PlacedName placed;
  Digest128 digest;
  std::size_t request = 0;
  bool is_known = false;  // the index has its place already
  bool is_written = false;
};

struct ValueWriter::Plan {
  std::vector<Item> items;
  std::vector<HttpRequest> requests;
  // Requests point into these.
  std::deque<std::string> packs;
  std::deque<std::string> controls;
  std::uint32_t pack = 0;
  std::size_t pack_request = 0;

  // Those that the index does not know yet.
  std::vector<PlacedName> names_to_tell(bool only_written) const;
};

void ValueWriter::add_packed(const remote::NamedValue& value, Item& item, Plan& plan,
                             Writer& writer) {
  if (plan.packs.empty() || plan.packs.back().size() >= kMostPackBytes) {
    plan.packs.emplace_back();
    plan.pack = writer.next_pack();
    plan.pack_request = plan.requests.size();
    plan.requests.push_back(request_of(HttpMethod::kPut, pack_path(writer.id(), plan.pack)));
  }
  std::string& pack = plan.packs.back();
  Place& place = item.placed.place;
  place.kind = PlaceKind::kPacked;
  place.writer = writer.id();
  place.pack = plan.pack;
  place.offset = static_cast<std::uint32_t>(pack.size());
  place.size = static_cast<std::uint32_t>(value.value.size());
  pack.append(value.value);
  plan.requests[plan.pack_request].body = pack;
  item.request = plan.pack_request;
}

ValueWriter::Plan ValueWriter::plan(const std::vector<remote::NamedValue>& values, Writer& writer) {
  Plan plan;
  std::unordered_map<std::string_view, std::size_t> item_of_name;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!check_value(values[i]).is_ok()) continue;
    const auto [found, is_new] = item_of_name.emplace(values[i].name, plan.items.size());
    if (is_new) plan.items.emplace_back();
    plan.items[found->second].numbers.push_back(i);
  }
  for (Item& item : plan.items) {
    const remote::NamedValue& value = values[item.numbers.back()];
    item.digest = digest_of_name(value.name);
    item.placed.name = value.name;
    item.placed.place.time_us = index_.later_time_us(item.digest);
    if (is_control_name(value.name)) {
      item.placed.place.kind = PlaceKind::kControl;
      item.is_known = is_known_control(item.digest);
      item.request = plan.requests.size();
      plan.controls.push_back(encode_control(value.value));
      plan.requests.push_back(
          request_of(HttpMethod::kPut, control_path(item.digest), plan.controls.back()));
    } else if (value.value.size() < kLargeBytes) {
      add_packed(value, item, plan, writer);
    } else {
      item.placed.place.kind = PlaceKind::kWhole;
      item.request = plan.requests.size();
      plan.requests.push_back(request_of(HttpMethod::kPut, whole_path(item.digest), value.value));
    }
  }
  return plan;
}

bool ValueWriter::is_known_control(const Digest128& name) {
  const auto place = index_.find_all({name}).front();
  return place.has_value() && place->kind == PlaceKind::kControl;
}

Status ValueWriter::put_failure(const HttpRequest& request, const HttpAnswer& answer) {
  const Status failure = failure_of(request, answer, client_.server());
  const bool is_refusal = answer.code == 401 || answer.code == 403;
  // A server whose disk is full seldom says 507: nginx says 500.
  if (!is_refusal && answer.code != 500) return failure;
  if (!read_writers(client_).is_ok()) return failure;
  return is_refusal ? Status::foreign(failure.message()) : Status::no_space(failure.message());
}

std::vector<PlacedName> ValueWriter::Plan::names_to_tell(bool only_written) const {
  std::vector<PlacedName> names;
  for (const Item& item : items) {
    if (!item.is_known && (item.is_written || !only_written)) names.push_back(item.placed);
  }
  return names;
}

// The values and the segment that names them go out together: nobody reads the segment before
// the head names it. Where a value could not be written, the segment is written again without it.
Status ValueWriter::write(Plan& plan, Writer& writer) {
  const std::vector<PlacedName> hoped_for = plan.names_to_tell(false);
  const std::string segment = encode_segment(hoped_for);
  std::vector<HttpRequest> requests = plan.requests;
  if (!hoped_for.empty()) requests.push_back(writer.segment_put(segment));
  const std::vector<HttpAnswer> answers = client_.perform(requests);
  Status failure;
  for (std::size_t i = 0; i < answers.size() && failure.is_ok(); ++i) {
    if (!answers[i].is_success()) failure = put_failure(requests[i], answers[i]);
  }
  for (Item& item : plan.items) item.is_written = answers[item.request].is_success();
  const std::vector<PlacedName> names = plan.names_to_tell(true);
  if (names.empty()) return failure;
  Status known = failure;  // one time-out is as long as a call may take
  if (failure.is_ok()) {
    known = writer.publish(segment.size());
  } else if (failure.code() != StatusCode::kBusy) {
    known = make_known(names, writer);
  }
  note_outcome(plan, known.is_ok());
  if (known.is_ok()) known = writer.keep_up();
  note_first(failure, known);
  return failure;
}

void ValueWriter::note_outcome(Plan& plan, bool is_known) {
  std::vector<ObjectIndex::DigestPlace> places;
  for (Item& item : plan.items) {
    item.is_written = item.is_written && (is_known || item.is_known);
    if (item.is_written) places.emplace_back(item.digest, item.placed.place);
  }
  index_.apply(places);
}

Status ValueWriter::make_known(const std::vector<PlacedName>& names, Writer& writer) {
  const std::string segment = encode_segment(names);
  const HttpRequest request = writer.segment_put(segment);
  const HttpAnswer answer = client_.perform(request);
  if (!answer.is_success()) return put_failure(request, answer);
  return writer.publish(segment.size());
}

Status ValueWriter::put_all(const std::vector<remote::NamedValue>& values,
                            std::vector<bool>& are_stored) {
  are_stored.assign(values.size(), false);
  Status first_failure;
  for (const remote::NamedValue& value : values) note_first(first_failure, check_value(value));
  if (values.empty()) return Status::ok();
  Writer writer(client_, index_);
  Plan planned = plan(values, writer);
  if (planned.items.empty()) return first_failure;
  note_first(first_failure, write(planned, writer));
  for (const Item& item : planned.items) {
    for (const std::size_t number : item.numbers) are_stored[number] = item.is_written;
  }
  return first_failure;
}

Result<bool> ValueWriter::put_own_object(const remote::NamedValue& value) {
  MODCACHE_RETURN_IF_ERROR(check_value(value));
  const bool is_control = is_control_name(value.name);
  PlacedName placed;
  placed.name = value.name;
  const Digest128 digest = digest_of_name(value.name);
  placed.place.kind = is_control ? PlaceKind::kControl : PlaceKind::kWhole;
  placed.place.time_us = index_.later_time_us(digest);
  const auto known = index_.find_all({digest}).front();
  const std::string control = is_control ? encode_control(value.value) : std::string();
  HttpRequest request =
      request_of(HttpMethod::kPut, is_control ? control_path(digest) : whole_path(digest),
                 is_control ? std::string_view(control) : std::string_view(value.value));
  // A value that was removed from a server which deletes nothing still has its object.
  const bool was_removed = known.has_value() && known->kind == PlaceKind::kRemoved;
  if (!was_removed) request.condition = "If-None-Match: *";
  HttpAnswer answer = client_.perform(request);
  if (answer.code == 409 || answer.code == 412) {
    if (!is_control) return false;
    HttpRequest get = request_of(HttpMethod::kGet, request.path);
    get.most_bytes = remote::kMostValueBytes;
    get.is_fresh = true;
    const HttpAnswer there = client_.perform(get);
    if (there.body != encode_removed_control()) return false;
  }
  if (!answer.is_success() && answer.transport.is_ok() &&
      (answer.code == 400 || answer.code == 501 || answer.code == 412) &&
      !request.condition.empty()) {
    request.condition.clear();  // the server knows no conditions, or what is there was removed
    answer = client_.perform(request);
  }
  if (!answer.is_success()) return put_failure(request, answer);
  if (is_control && is_known_control(digest)) return true;
  Writer writer(client_, index_);
  MODCACHE_RETURN_IF_ERROR(make_known({placed}, writer));
  index_.apply({{digest, placed.place}});
  MODCACHE_RETURN_IF_ERROR(writer.keep_up());
  return true;
}

Status ValueWriter::remove_all(const std::vector<std::string>& names) {
  std::vector<HttpRequest> removals;
  std::size_t controls = 0;
  std::vector<PlacedName> removed;
  std::vector<ObjectIndex::DigestPlace> places;
  std::vector<HttpRequest> removals_of_values;
  for (const std::string& name : names) {
    const Digest128 digest = digest_of_name(name);
    if (is_control_name(name)) {
      removals.push_back(request_of(HttpMethod::kDelete, control_path(digest)));
      ++controls;
      continue;
    }
    const auto known = index_.find_all({digest}).front();
    if (!known.has_value() || known->kind == PlaceKind::kRemoved) continue;
    if (known->kind == PlaceKind::kWhole) {
      removals_of_values.push_back(request_of(HttpMethod::kDelete, whole_path(digest)));
    }
    Place place;
    place.time_us = index_.later_time_us(digest);
    removed.push_back({name, place});
    places.emplace_back(digest, place);
  }
  removals.insert(removals.end(), removals_of_values.begin(), removals_of_values.end());
  if (!removals.empty()) MODCACHE_RETURN_IF_ERROR(remove_controls(removals, controls));
  if (removed.empty()) return Status::ok();
  Writer writer(client_, index_);
  MODCACHE_RETURN_IF_ERROR(make_known(removed, writer));
  index_.apply(places);
  return writer.keep_up();
}

// Deletes objects, of which the first `count` are control values: where the server refuses that,
// they are marked as removed. Of the others the index says so.
Status ValueWriter::remove_controls(const std::vector<HttpRequest>& removals, std::size_t count) {
  const std::vector<HttpAnswer> answers = client_.perform(removals);
  const std::string mark = encode_removed_control();
  std::vector<HttpRequest> marks;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const HttpAnswer& answer = answers[i];
    if (!answer.transport.is_ok()) return answer.transport;
    if (answer.is_success() || answer.is_not_there() || i >= count) continue;
    marks.push_back(request_of(HttpMethod::kPut, removals[i].path, mark));
  }
  if (marks.empty()) return Status::ok();
  const std::vector<HttpAnswer> marked = client_.perform(marks);
  for (std::size_t i = 0; i < marked.size(); ++i) {
    if (!marked[i].is_success()) return put_failure(marks[i], marked[i]);
  }
  return Status::ok();
}

}  // namespace modcache::backends
