// SPDX-License-Identifier: Apache-2.0
#include "served_model.h"

#include <modcache/modcache.h>
#include <torch/script.h>

#include <new>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cache_key.h"
#include "refusal.h"

namespace server {
namespace {

// Keys are made in the model's own way; a form of keys is a function of this.
using KeysOf = c10::IValue (*)(const PredictRequest&, const std::string& salt);

c10::IValue text_of_input(const PredictRequest& request, const std::string& salt) {
  return key_of_input(request, salt);
}
c10::IValue texts_of_rows(const PredictRequest& request, const std::string& salt) {
  return keys_of_rows(request, salt);
}
c10::IValue numbers_of_rows(const PredictRequest& request, const std::string& salt) {
  std::vector<std::int64_t> numbers;
  for (const std::string& key : keys_of_rows(request, salt)) {
    numbers.push_back(number_of_key(key));
  }
  return at::tensor(numbers, at::kLong);
}

class CachingModel : public ServedModel {
 public:
  CachingModel(torch::jit::Module module, KeysOf keys_of, std::string description)
      : method_(module.get_method("forward")),
        module_(std::move(module)),
        keys_of_(keys_of),
        description_(std::move(description)) {}
  c10::IValue predict(const PredictRequest& request, const std::string& salt) const override {
    return method_({request.input, keys_of_(request, salt)});
  }
  std::string description() const override { return description_; }

 private:
  torch::jit::Method method_;
  torch::jit::Module module_;
  KeysOf keys_of_;
  std::string description_;
};

// A model that knows nothing of a cache.
class PlainModel : public ServedModel {
 public:
  explicit PlainModel(torch::jit::Module module) : module_(std::move(module)) {}
  c10::IValue predict(const PredictRequest& request, const std::string& salt) const override {
    if (request.has_ids) {
      return modcache::lookup_or_run_any(module_, request.input, keys_of_rows(request, salt));
    }
    return modcache::lookup_or_run_any(module_, request.input, key_of_input(request, salt));
  }
  std::string description() const override {
    return "TorchScript, forward(x): the server caches its output";
  }

 private:
  torch::jit::Module module_;
};

std::unique_ptr<ServedModel> model_of(torch::jit::Module module) {
  const c10::FunctionSchema schema = module.get_method("forward").function().getSchema();
  const auto& arguments = schema.arguments();  // the first is the module
  if (arguments.size() == 2) return std::make_unique<PlainModel>(std::move(module));
  if (arguments.size() == 3) {
    const std::string type = arguments[2].type()->annotation_str();
    const std::pair<const char*, KeysOf> forms[] = {
        {"str", text_of_input}, {"List[str]", texts_of_rows}, {"Tensor", numbers_of_rows}};
    for (const auto& [name, keys_of] : forms) {
      if (type != name) continue;
      return std::make_unique<CachingModel>(
          std::move(module), keys_of,
          "TorchScript, forward(x, " + arguments[2].name() + ": " + type + "): the model caches");
    }
  }
  std::string given;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    given +=
        (i > 1 ? ", " : "") + arguments[i].name() + ": " + arguments[i].type()->annotation_str();
  }
  throw std::runtime_error("its forward takes (" + given +
                           "); valid are (x), (x, key: str), (x, keys: List[str]) and "
                           "(x, ids: Tensor), where x is a Tensor");
}

// TorchScript's messages are a traceback whose last line says what happened.
Refusal failure_of_model(const std::string& text, int status) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) last = line;
  }
  return {status, "the model failed on this input: " + last};
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

c10::IValue predict_or_refuse(const ServedModel& model, const PredictRequest& request,
                              const std::string& salt, int status) {
  try {
    return model.predict(request, salt);
  } catch (const Refusal&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const c10::Error& error) {
    throw failure_of_model(error.what_without_backtrace(), status);
  } catch (const std::exception& error) {  // TorchScript's own are such
    throw failure_of_model(error.what(), status);
  }
}

std::unique_ptr<ServedModel> load_model(const std::string& path, int runs_at_once) {
  try {
    if (ends_with(path, ".pt2")) return load_exported(path, runs_at_once);
    torch::jit::Module module = torch::jit::load(path);
    // A frozen module has no training mode any more.
    if (module.hasattr("training")) module.eval();
    return model_of(std::move(module));
  } catch (const c10::Error& error) {
    throw std::runtime_error("cannot load '" + path + "': " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw std::runtime_error("cannot load '" + path + "': " + error.what());
  }
}

}  // namespace server
