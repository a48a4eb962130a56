// SPDX-License-Identifier: Apache-2.0
//
// serve LIBRARY MODEL INPUTS ANSWER: opens libmodcache.so, runs MODEL (TorchScript, or .pt2 as
// AOTInductor packages it) on the tensors in INPUTS, writes its answer, and prints the counters
// of the cache as JSON.
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>
#include <torch/serialize.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::vector<at::Tensor> read_tensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  const c10::IValue values = torch::pickle_load(bytes);
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values.toTupleRef().elements()) {
    tensors.push_back(value.toTensor());
  }
  return tensors;
}

at::Tensor run(const std::string& model, const std::vector<at::Tensor>& inputs) {
  const c10::InferenceMode no_gradients;
  if (ends_with(model, ".pt2")) {
    torch::inductor::AOTIModelPackageLoader loader(model);
    return loader.run(inputs).at(0);
  }
  torch::jit::Module module = torch::jit::load(model);
  return module.forward({inputs.begin(), inputs.end()}).toTensor();
}

void print_stats() {
  torch::jit::Stack stack;
  c10::Dispatcher::singleton().findSchemaOrThrow("cache::stats", "").callBoxed(&stack);
  const char* separator = "{";
  for (const auto& item : stack.at(0).toGenericDict()) {
    std::printf("%s\"%s\": %lld", separator, item.key().toStringRef().c_str(),
                static_cast<long long>(item.value().toInt()));
    separator = ", ";
  }
  std::puts("}");
}

void write(const at::Tensor& answer, const std::string& path) {
  const std::vector<char> bytes = torch::pickle_save(answer.clone());
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 5) throw std::runtime_error("usage: serve LIBRARY MODEL INPUTS ANSWER");
    if (dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) == nullptr) throw std::runtime_error(dlerror());
    at::set_num_threads(1);
    write(run(argv[2], read_tensors(argv[3])), argv[4]);
    print_stats();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "serve: %s\n", error.what());
    return 1;
  }
}
