// SPDX-License-Identifier: Apache-2.0
#include "served_model.h"

#include <c10/core/InferenceMode.h>
#include <modcache/modcache.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "cache_key.h"
#include "errors.h"

namespace server {
namespace {

using MakeKeys = c10::IValue (*)(const PredictRequest&, const std::string& salt);

// How keys are made for each type that the second argument of forward may have.
const std::map<std::string, MakeKeys> kKeyTypes = {
    {"str", [](auto& request, auto& salt) -> c10::IValue { return key_for_input(request, salt); }},
    {"List[str]",
     [](auto& request, auto& salt) -> c10::IValue { return keys_for_rows(request, salt); }},
    {"Tensor",
     [](auto& request, auto& salt) -> c10::IValue { return ids_for_rows(request, salt); }},
};

ServedModel load_torchscript(const std::string& path) {
  torch::jit::Module module = torch::jit::load(path);
  if (module.hasattr("training")) module.eval();  // a frozen module has no training mode
  const torch::jit::Method forward = module.get_method("forward");
  const c10::FunctionSchema& schema = forward.function().getSchema();
  const std::vector<c10::Argument>& arguments = schema.arguments();  // the first is the module
  if (arguments.size() == 2) {
    return {[module](const PredictRequest& request, const std::string& salt) {
              if (request.ids.empty()) {
                const std::string key = key_for_input(request, salt);
                return modcache::lookup_or_run_any(module, request.input, key);
              }
              return modcache::lookup_or_run_any(module, request.input,
                                                 keys_for_rows(request, salt));
            },
            "TorchScript, forward(x): the server caches its output"};
  }
  const std::string type = arguments.size() == 3 ? arguments[2].type()->annotation_str() : "";
  const auto make_keys = kKeyTypes.find(type);
  if (make_keys == kKeyTypes.end()) {
    throw std::runtime_error("its schema is " + c10::toString(schema) +
                             "; valid are forward(x), forward(x, key: str), forward(x, keys: "
                             "List[str]) and forward(x, ids: Tensor), where x is a Tensor");
  }
  return {[module, forward, keys_for = make_keys->second](const PredictRequest& request,
                                                          const std::string& salt) {
            return forward({request.input, keys_for(request, salt)});
          },
          "TorchScript, forward(x, " + arguments[2].name() + ": " + type + "): the model caches"};
}

ServedModel load_exported(const std::string& path, int max_concurrent_runs) {
  const auto loader = std::make_shared<torch::inductor::AOTIModelPackageLoader>(
      path, "model", /*run_single_threaded=*/false, static_cast<std::size_t>(max_concurrent_runs));
  // The call spec is a pytree of (positional arguments, keyword arguments).
  const auto spec = nlohmann::json::parse(loader->get_call_spec().at(0));
  const std::size_t num_inputs = spec.at(1).at("children_spec").at(0).at("children_spec").size();
  if (num_inputs != 1 && num_inputs != 2) {
    throw std::runtime_error("it takes " + std::to_string(num_inputs) +
                             " inputs; valid are (x) and (x, ids), where ids are int64");
  }
  return {
      [loader, num_inputs](const PredictRequest& request, const std::string& salt) -> c10::IValue {
        std::vector<at::Tensor> inputs{request.input};
        if (num_inputs == 2) inputs.push_back(ids_for_rows(request, salt));
        std::vector<at::Tensor> outputs = loader->run(inputs);
        if (outputs.size() == 1) return outputs[0];
        return outputs;
      },
      num_inputs == 2 ? "exported, forward(x, ids): the model caches"
                      : "exported, forward(x): nothing is cached"};
}

// TorchScript's messages are tracebacks, whose last line says what happened.
std::string last_line(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

ServedModel load_model(const std::string& path, int max_concurrent_runs) {
  try {
    return path.ends_with(".pt2") ? load_exported(path, max_concurrent_runs)
                                  : load_torchscript(path);
  } catch (const std::exception& error) {
    throw std::runtime_error("cannot load '" + path + "': " + message_of(error));
  }
}

c10::IValue run_model(const ServedModel& model, const PredictRequest& request,
                      const std::string& salt, int error_status) {
  const c10::InferenceMode no_gradients;
  try {
    return model.forward(request, salt);
  } catch (const HttpError&) {
    throw;
  } catch (const std::exception& error) {
    throw HttpError(error_status,
                    "the model failed on this input: " + last_line(message_of(error)));
  }
}

}  // namespace server
