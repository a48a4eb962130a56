// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/tensor.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cache_key.h"
#include "refusal.h"
#include "served_model.h"

namespace server {
namespace {

using Json = nlohmann::json;
using Loader = torch::inductor::AOTIModelPackageLoader;

// How many tensors the program takes, by the description of its inputs: (positional, by keyword).
std::size_t count_inputs(Loader& loader) {
  const std::vector<std::string> specs = loader.get_call_spec();
  const Json spec = Json::parse(specs.at(0));
  return spec.at(1).at("children_spec").at(0).at("children_spec").size();
}

class ExportedModel : public ServedModel {
 public:
  ExportedModel(const std::string& path, int runs_at_once)
      : loader_(std::make_unique<Loader>(path, "model", /*run_single_threaded=*/false,
                                         static_cast<std::size_t>(runs_at_once))),
        inputs_(count_inputs(*loader_)) {
    if (inputs_ == 1 || inputs_ == 2) return;
    throw std::runtime_error("it takes " + std::to_string(inputs_) +
                             " inputs; valid are (x) and (x, ids), where ids are int64");
  }

  c10::IValue predict(const PredictRequest& request, const std::string& salt) const override {
    std::vector<at::Tensor> inputs{request.input};
    if (inputs_ == 2) {
      std::vector<std::int64_t> numbers;
      for (const std::string& key : keys_of_rows(request, salt)) {
        numbers.push_back(number_of_key(key));
      }
      inputs.push_back(at::tensor(numbers, at::kLong));
    }
    std::vector<at::Tensor> outputs = loader_->run(inputs);
    if (outputs.size() == 1) return outputs[0];
    return outputs;
  }
  std::string description() const override {
    return inputs_ == 2 ? "exported, forward(x, ids): the model caches"
                        : "exported, forward(x): nothing is cached";
  }

 private:
  std::unique_ptr<Loader> loader_;  // run() of one loader may be called by any number of threads
  std::size_t inputs_;
};

}  // namespace

std::unique_ptr<ServedModel> load_exported(const std::string& path, int runs_at_once) {
  return std::make_unique<ExportedModel>(path, runs_at_once);
}

}  // namespace server
