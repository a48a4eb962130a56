// SPDX-License-Identifier: Apache-2.0
#include "backends/objects/object_backend.h"

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "backends/objects/http_client.h"
#include "backends/objects/news.h"
#include "backends/objects/object_index.h"
#include "backends/objects/value_reader.h"
#include "backends/objects/value_writer.h"
#include "backends/objects/writer.h"
#include "base/without_throwing.h"
#include "remote/slices.h"

namespace modcache::backends {
namespace {

// How old what is known may be: for names that are not known, and for those that are.
constexpr std::int64_t kAgeOfMissesMs = 1'000;
constexpr std::int64_t kAgeOfHitsMs = 5'000;
constexpr std::size_t kMostVisitedAtOnce = 256;

class ObjectBackend : public remote::Backend {
 public:
  explicit ObjectBackend(HttpServer server)
      : client_(std::move(server)),
        index_(ObjectIndex::of(client_.server().user + "@" + client_.server().url)),
        reader_(client_),
        writer_(client_, *index_) {}

  // Values that this process wrote while others kept it out of the list of writers would be lost.
  ~ObjectBackend() override {
    (void)without_throwing([&] { return announce_lost_writer(); });
  }

  Status get_all(const std::vector<std::string>& names, std::vector<SharedBytes>& values) override;
  Status put_all(const std::vector<remote::NamedValue>& values, std::int64_t,
                 std::vector<bool>& are_stored) override {
    return writer_.put_all(values, are_stored);
  }
  Status remove_all(const std::vector<std::string>& names) override;
  Result<bool> put_if_absent(const remote::NamedValue& value, std::int64_t) override;
  Result<bool> renew_if(std::string_view, std::string_view, std::int64_t) override {
    return Status::foreign(
        "a server of plain GET and PUT cannot replace a value only if it still "
        "is what it was; use Redis for that");
  }
  Status visit_all(std::string_view prefix, const Visit& visit) override;
  Status ping() override;

 private:
  Status look_if_due(std::int64_t age_ms);
  Status announce_lost_writer();
  // The places of names, after a look for news where that is due.
  Status find_places(const std::vector<std::string>& names, std::vector<WantedValue>& wanted);
  Result<bool> is_there(const remote::NamedValue& value);

  HttpClient client_;
  std::shared_ptr<ObjectIndex> index_;
  ValueReader reader_;
  ValueWriter writer_;
};

Status ObjectBackend::announce_lost_writer() {
  return index_->has_lost_writer() ? Writer(client_, *index_).keep_up() : Status::ok();
}

Status ObjectBackend::look_if_due(std::int64_t age_ms) {
  if (!index_->is_look_due(age_ms)) return Status::ok();
  MODCACHE_RETURN_IF_ERROR(look_for_news(client_, *index_).status());
  // Values that were written must not stay hidden because this process only reads from now on.
  // Whether that succeeds does not concern who reads.
  (void)announce_lost_writer();
  return Status::ok();
}

Status ObjectBackend::find_places(const std::vector<std::string>& names,
                                  std::vector<WantedValue>& wanted) {
  std::vector<Digest128> digests;
  digests.reserve(names.size());
  for (const std::string& name : names) digests.push_back(digest_of_name(name));
  wanted.assign(names.size(), {});
  const auto fill = [&] {
    bool misses = false;
    const auto places = index_->find_all(digests);
    for (std::size_t i = 0; i < names.size(); ++i) {
      wanted[i].name = digests[i];
      wanted[i].place = places[i].value_or(Place{});
      if (is_control_name(names[i])) {
        wanted[i].place.kind = PlaceKind::kControl;
      } else {
        misses = misses || wanted[i].place.kind == PlaceKind::kRemoved;
      }
    }
    return misses;
  };
  const bool is_control_alone = std::all_of(names.begin(), names.end(), is_control_name);
  const bool misses = fill();
  if (is_control_alone) return Status::ok();
  const Status looked = look_if_due(misses ? kAgeOfMissesMs : kAgeOfHitsMs);
  fill();
  return looked;
}

Status ObjectBackend::get_all(const std::vector<std::string>& names,
                              std::vector<SharedBytes>& values) {
  values.assign(names.size(), {});
  std::vector<WantedValue> wanted;
  MODCACHE_RETURN_IF_ERROR(find_places(names, wanted));
  const Status status = reader_.read(wanted);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (wanted[i].is_gone) index_->forget(wanted[i].name, wanted[i].place);
    values[i] = std::move(wanted[i].value);
  }
  return status;
}

Status ObjectBackend::remove_all(const std::vector<std::string>& names) {
  MODCACHE_RETURN_IF_ERROR(look_if_due(ObjectIndex::kLookNow));
  // A look that ran out of time is due again. Names that it did not come to are not known, and
  // their values would stay.
  if (index_->is_look_due(kAgeOfHitsMs)) {
    return Status::not_found("what other writers wrote is not all known yet");
  }
  return writer_.remove_all(names);
}

// A server without listing cannot say what the index does not know, so a value of the same name
// that is packed by another process within the same moment is missed.
Result<bool> ObjectBackend::is_there(const remote::NamedValue& value) {
  if (!is_control_name(value.name)) MODCACHE_RETURN_IF_ERROR(look_if_due(ObjectIndex::kLookNow));
  std::vector<SharedBytes> found;
  MODCACHE_RETURN_IF_ERROR(get_all({value.name}, found));
  return found.front().owner != nullptr;
}

Result<bool> ObjectBackend::put_if_absent(const remote::NamedValue& value, std::int64_t) {
  MODCACHE_ASSIGN_OR_RETURN(const bool there, is_there(value));
  if (there) return false;
  return writer_.put_own_object(value);
}

Status ObjectBackend::ping() {
  HttpRequest request;
  request.method = HttpMethod::kHead;
  request.path = kWritersPath;
  request.is_fresh = true;
  const HttpAnswer answer = client_.perform(request);
  const bool knows_no_head = answer.code == 405 || answer.code == 501;
  if (answer.is_success() || answer.is_not_there() || knows_no_head) return Status::ok();
  return failure_of(request, answer, client_.server());
}

// Names are read a few at a time, and of those that were visited only the digests are kept: what
// the names of a whole cache take is more than this process may have.
Status ObjectBackend::visit_all(std::string_view prefix, const Visit& visit) {
  MODCACHE_RETURN_IF_ERROR(look_if_due(ObjectIndex::kLookNow));
  std::unordered_set<Digest128, Digest128Hash> seen;
  std::vector<std::string> names;
  remote::Slices slices(kMostVisitedAtOnce);
  Status status;
  const auto visit_some = [&] {
    std::vector<SharedBytes> values;
    status = get_all(names, values);
    slices.note(values);
    bool goes_on = status.is_ok();
    for (std::size_t i = 0; goes_on && i < names.size(); ++i) {
      if (values[i].owner != nullptr) goes_on = visit(names[i], values[i]);
    }
    names.clear();
    return goes_on;
  };
  bool goes_on = true;
  MODCACHE_RETURN_IF_ERROR(visit_names(client_, prefix, [&](std::string_view name) {
    if (seen.size() < ObjectIndex::kMostPlaces && seen.insert(digest_of_name(name)).second) {
      names.emplace_back(name);
    }
    if (names.size() >= slices.next()) goes_on = visit_some();
    return goes_on;
  }));
  if (goes_on && !names.empty()) visit_some();
  return status;
}

}  // namespace

Result<std::unique_ptr<remote::Backend>> make_object_backend(
    const remote::BackendOptions& options) {
  MODCACHE_ASSIGN_OR_RETURN(HttpServer server, http_server_of(options));
  return std::unique_ptr<remote::Backend>(std::make_unique<ObjectBackend>(std::move(server)));
}

}  // namespace modcache::backends
