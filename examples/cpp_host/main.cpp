// SPDX-License-Identifier: Apache-2.0
//
// Loads the classifier that the Python example trained and classifies the same texts. The model
// calls cache::lookup_or_run itself, so nothing here is about the cache but the report: the
// operators are there because the program is linked with modcache::modcache.
#include <ATen/Parallel.h>
#include <modcache/modcache.h>
#include <torch/script.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr const char* kUsage =
    "usage: classify MODEL INPUTS [TEXTS]\n"
    "\n"
    "Classifies the texts of INPUTS (inputs.pt) with MODEL (classifier.pt), both written by\n"
    "examples/python_script/train_head.py, and compares the answers with those Python got.\n"
    "TEXTS: the first so many, in whole batches of 64; all of them if it is not given.\n"
    "MODCACHE_DIR says where the cache is; MODCACHE_MODE=off runs the encoder for every text.\n"
    "\n"
    "Exit status: 0 the answers are the same (and, unless the mode is off, every text was a hit),\n"
    "1 they are not, 2 misuse, or a file that cannot be read.\n";

constexpr int kSame = 0;
constexpr int kDifferent = 1;
constexpr int kMisuse = 2;

constexpr std::int64_t kBatch = 64;  // as in Python: another batch would round differently
constexpr int kThreads = 1;          // likewise
constexpr std::chrono::seconds kProgressInterval{10};

struct Inputs {
  at::Tensor ids;     // int64 [N, T]
  at::Tensor mask;    // int64 [N, T]
  at::Tensor labels;  // int64 [N], the packages the texts come from
  at::Tensor logits;  // float32 [N, packages], what Python computed
  std::vector<std::string> keys;
};

struct Answers {
  at::Tensor logits;
  double seconds = 0;
};

torch::jit::Module load(const std::string& path) {
  try {
    return torch::jit::load(path);
  } catch (const c10::Error& error) {
    throw std::runtime_error("cannot load '" + path + "': " + error.what_without_backtrace());
  }
}

Inputs load_inputs(const std::string& path) {
  const torch::jit::Module file = load(path);
  for (const char* name : {"ids", "mask", "labels", "logits", "keys"}) {
    if (!file.hasattr(name)) {
      throw std::runtime_error("'" + path + "' has no '" + name + "': INPUTS is inputs.pt");
    }
  }
  Inputs inputs{file.attr("ids").toTensor(),
                file.attr("mask").toTensor(),
                file.attr("labels").toTensor(),
                file.attr("logits").toTensor(),
                {}};
  for (const c10::IValue& key : file.attr("keys").toListRef()) {
    inputs.keys.push_back(key.toStringRef());
  }
  return inputs;
}

// The first `count` of them; all where there are fewer.
Inputs first_of(const Inputs& inputs, std::int64_t count) {
  const auto all = static_cast<std::int64_t>(inputs.keys.size());
  const std::int64_t kept = std::min(count, all);
  return {inputs.ids.slice(0, 0, kept),
          inputs.mask.slice(0, 0, kept),
          inputs.labels.slice(0, 0, kept),
          inputs.logits.slice(0, 0, kept),
          {inputs.keys.begin(), inputs.keys.begin() + kept}};
}

Answers classify(torch::jit::Module& model, const Inputs& inputs) {
  const c10::InferenceMode no_gradients;
  const auto started = std::chrono::steady_clock::now();
  auto next_progress = started + kProgressInterval;
  std::vector<at::Tensor> logits;
  const auto count = static_cast<std::int64_t>(inputs.keys.size());
  for (std::int64_t from = 0; from < count; from += kBatch) {
    const std::int64_t to = std::min(from + kBatch, count);
    const c10::List<std::string> keys(
        std::vector<std::string>(inputs.keys.begin() + from, inputs.keys.begin() + to));
    logits.push_back(
        model.forward({inputs.ids.slice(0, from, to), inputs.mask.slice(0, from, to), keys})
            .toTensor());
    if (std::chrono::steady_clock::now() >= next_progress) {
      std::fprintf(stderr, "%lld of %lld texts\n", static_cast<long long>(to),
                   static_cast<long long>(count));
      next_progress += kProgressInterval;
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  return {at::cat(logits), took.count()};
}

std::int64_t count_hits() {
  const auto stats = modcache::stats();
  return stats.at("hits_memory") + stats.at("hits_disk") + stats.at("hits_remote");
}

void print_time(const char* title, const Inputs& inputs, const Answers& answers) {
  std::printf("%s %.4f ms per text\n", title,
              answers.seconds * 1e3 / static_cast<double>(inputs.keys.size()));
}

// Prints how the answers compare with Python's, and returns the exit status.
int report(const Inputs& inputs, const Answers& answers) {
  const auto count = static_cast<std::int64_t>(inputs.keys.size());
  const at::Tensor labels = answers.logits.argmax(1);
  const auto right = labels.eq(inputs.labels).sum().item<std::int64_t>();
  const auto same = labels.eq(inputs.logits.argmax(1)).sum().item<std::int64_t>();
  const double difference = (answers.logits - inputs.logits).abs().max().item<double>();
  const std::int64_t hits = count_hits();

  std::printf("hits        %lld of %lld\n", static_cast<long long>(hits),
              static_cast<long long>(count));
  std::printf("accuracy    %.1f %% of all texts, trained ones included\n",
              100.0 * static_cast<double>(right) / static_cast<double>(count));
  std::printf("as Python   %lld of %lld labels, largest difference of a logit %g\n",
              static_cast<long long>(same), static_cast<long long>(count), difference);

  if (same != count || difference != 0) {
    std::fprintf(stderr, "classify: the answers are not those that Python got\n");
    return kDifferent;
  }
  const std::int64_t expected_hits = modcache::mode() == "off" ? 0 : count;
  if (hits != expected_hits) {
    std::fprintf(stderr, "classify: %lld hits in mode %s, expected %lld; is MODCACHE_DIR right?\n",
                 static_cast<long long>(hits), modcache::mode().c_str(),
                 static_cast<long long>(expected_hits));
    return kDifferent;
  }
  return kSame;
}

int run(const std::string& model_path, const std::string& inputs_path, std::int64_t texts) {
  torch::jit::Module model = load(model_path);
  const Inputs inputs = first_of(load_inputs(inputs_path), texts);
  std::printf("mode        %s\n", modcache::mode().c_str());
  const Answers answers = classify(model, inputs);
  print_time("time       ", inputs, answers);
  const int status = report(inputs, answers);
  if (status == kSame && modcache::mode() != "off") {
    // The first pass also identifies the model, opens the cache and reads it from disk.
    print_time("second pass", inputs, classify(model, inputs));
  }
  return status;
}

// A positive multiple of the batch size.
std::int64_t parse_texts(const std::string& text) {
  std::size_t end = 0;
  std::int64_t texts = 0;
  try {
    texts = std::stoll(text, &end);
  } catch (const std::logic_error&) {  // no number, or none that fits
  }
  if (end != text.size() || texts <= 0 || texts % kBatch != 0) {
    throw std::runtime_error("TEXTS is '" + text + "'; valid are multiples of " +
                             std::to_string(kBatch) + ", as Python classified them in batches");
  }
  return texts;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 1 && (arguments[0] == "--help" || arguments[0] == "-h")) {
    std::fputs(kUsage, stdout);
    return kSame;
  }
  if (arguments.size() != 2 && arguments.size() != 3) {
    std::fputs(kUsage, stderr);
    return kMisuse;
  }
  try {
    at::set_num_threads(kThreads);
    const std::int64_t texts = arguments.size() == 3 ? parse_texts(arguments[2])
                                                     : std::numeric_limits<std::int64_t>::max();
    return run(arguments[0], arguments[1], texts);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "classify: %s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "classify: %s\n", error.what());
  }
  return kMisuse;
}
