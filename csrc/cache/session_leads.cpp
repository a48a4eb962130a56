// SPDX-License-Identifier: Apache-2.0
//
// Session: who runs what is missing, and who waits.
#include <utility>

#include "cache/session.h"

namespace modcache::cache {

BatchLead Session::lead_rows(const BatchFound& found) {
  const std::vector<std::size_t> missing = found.missing();
  BatchLead rows;
  if (missing.empty()) return rows;
  std::vector<Digest128> addresses;
  addresses.reserve(missing.size());
  for (const std::size_t i : missing) addresses.push_back(found.addresses_[i]);
  std::vector<bool> is_led;
  rows.lead = flights_.try_enter_all(addresses, is_led);
  for (std::size_t place = 0; place < missing.size(); ++place) {
    (is_led[place] ? rows.led : rows.awaited).push_back(missing[place]);
  }
  rows.look_again = flights_.completed_runs() != found.completed_runs_;
  return rows;
}

BatchFound Session::lookup_led(const BatchRequest& request, SingleFlight::Lead& lead) {
  // Results of runs of this process are near.
  BatchFound found = find_all(request, /*may_write=*/true, Counting::kAtOnce, Reach::kNear);
  if (request.may_be_verified && settings_.verify_share > 0) draw_verified(request, found);
  bring_to_device(request, found);
  if (found.missing().size() < found.size()) lead.stored();
  return found;
}

SingleFlight::Waited Session::wait_for(const BatchRequest& request,
                                       const std::vector<std::size_t>& rows) {
  if (rows.empty()) return {};
  std::vector<Digest128> addresses;
  addresses.reserve(rows.size());
  for (const std::size_t row : rows) {
    addresses.push_back(store::address_of(request.context->digest, request.keys[row]));
  }
  return flights_.wait_all(addresses, run_times_.patience(request.context->scope));
}

}  // namespace modcache::cache
