// SPDX-License-Identifier: Apache-2.0
//
// The server answers these requests:
//
//   POST /predict      the model's output
//   GET /metrics       counters and histograms, for Prometheus
//   GET /cache/mode    the mode; PUT sets that of this process
//   GET /healthz       200, or 503 while the server stops
//   GET /              the status page; GET /status is its data as JSON
//
// Errors are {"error": "..."}, which says what was given and what is valid.
#pragma once

#include <httplib.h>

#include <atomic>
#include <string>

#include "history.h"
#include "metrics.h"
#include "predict_request.h"
#include "served_model.h"

namespace server {

// What the handlers use.
struct Host {
  InputSpec input;
  std::string model_name;
  ServedModel model;
  Metrics metrics;
  History history{metrics};
  std::atomic<bool> is_draining{false};  // responses close their connections, /healthz fails
};

// REQUIRES: `host` outlives `server`.
void add_routes(httplib::Server& server, Host& host);

}  // namespace server
