// SPDX-License-Identifier: Apache-2.0
//
// The server answers these requests:
//
//   POST /predict      the model's output
//   GET /metrics       counters and histograms, for Prometheus
//   GET /cache/mode    the mode; PUT sets the one of this process
//   GET /healthz       200, or 503 while the server stops
//   GET /              the status page; GET /status is what it shows, as JSON
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "arguments.h"
#include "bounded_server.h"
#include "history.h"
#include "metrics.h"
#include "predict_request.h"
#include "served_model.h"

namespace server {

class Routes {
 public:
  // Gives them to the server. REQUIRES: all of them outlive this, and this outlives the serving.
  Routes(const Configuration& configuration, const ServedModel& model, BoundedServer& server,
         Metrics& metrics, History& history);
  Routes(const Routes&) = delete;
  Routes& operator=(const Routes&) = delete;

 private:
  void add_handlers();
  // Throws Refusal for a request that no handler should see, nor its body be read.
  void check(const httplib::Request& request) const;
  void predict(const httplib::Request& request, httplib::Response& response) const;
  void status(const httplib::Request& request, httplib::Response& response) const;
  static void put_mode(const httplib::Request& request, httplib::Response& response);
  static nlohmann::json mode_json();

  const Configuration& configuration_;
  const ServedModel& model_;
  BoundedServer& server_;
  Metrics& metrics_;
  History& history_;
  const InputForm form_;
};

}  // namespace server
