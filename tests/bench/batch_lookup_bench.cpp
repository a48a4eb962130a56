// SPDX-License-Identifier: Apache-2.0
//
// What a hit of one row costs, beside a plain gather of the same rows from a mapped file.
//
//     batch_lookup_bench [--rows N] [--row-bytes N] [--batch N] [--rounds N]
//
// All rows lie on disk, were read once, and are asked for in random order, the memory tier off but
// where its name is called. Every line is the median over batches of one kind, taken in turns with
// the others.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cache.h"
#include "support/temporary_directory.h"
#include "support/text_value.h"

namespace {

using namespace modcache;
using Clock = std::chrono::steady_clock;

constexpr char kSignature[] = "float32[512]";

cache::ContextPtr bench_context() {
  cache::ContextParts parts;
  parts.scope = "bench";
  parts.method = "forward";
  parts.form = cache::Form::kRow;
  return cache::make_context(parts);
}

struct Sizes {
  std::size_t rows = 20000;
  std::size_t row_bytes = 2048;
  std::size_t batch = 256;
  std::size_t rounds = 400;
};

std::vector<std::string> make_keys(std::size_t count) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < count; ++i) {
    char key[32];
    std::snprintf(key, sizeof key, "sample-%06zu", i);
    keys.emplace_back(key);
  }
  return keys;
}

std::string row_text(const Sizes& sizes, std::size_t i) {
  std::string text(sizes.row_bytes, '\0');
  std::mt19937_64 random(i);
  for (char& byte : text) byte = static_cast<char>(random());
  return text;
}

void fill(cache::Cache& target, const Sizes& sizes, const std::vector<std::string>& keys) {
  const auto session = target.session();
  for (std::size_t first = 0; first < sizes.rows; first += sizes.batch) {
    std::vector<std::string_view> batch;
    std::vector<cache::EntryPtr> entries;
    for (std::size_t i = first; i < std::min(sizes.rows, first + sizes.batch); ++i) {
      batch.push_back(keys[i]);
      entries.push_back(testing::text_entry(row_text(sizes, i), kSignature));
    }
    session->store_all(bench_context(), batch, entries);
  }
  target.flush();
}

// The rows one after another in a plain file, mapped.
const char* mapped_file(const std::string& path, const Sizes& sizes) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT, 0600);
  for (std::size_t i = 0; i < sizes.rows; ++i) {
    const std::string text = row_text(sizes, i);
    if (::write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  }
  void* data = ::mmap(nullptr, sizes.rows * sizes.row_bytes, PROT_READ, MAP_SHARED, file, 0);
  ::close(file);
  if (data == MAP_FAILED) std::abort();
  return static_cast<const char*>(data);
}

class Timer {
 public:
  explicit Timer(const char* name) : name_(name) {}
  template <typename Work>
  void time(std::size_t rows, Work work) {
    const auto started = Clock::now();
    work();
    const std::chrono::duration<double, std::nano> took = Clock::now() - started;
    samples_.push_back(took.count() / static_cast<double>(rows));
  }
  double median() {
    std::nth_element(samples_.begin(), samples_.begin() + samples_.size() / 2, samples_.end());
    return samples_[samples_.size() / 2];
  }
  void print(double gather) {
    const double ns = median();
    std::printf("%-44s %9.1f ns per key   %6.2f x gather\n", name_, ns, ns / gather);
  }

 private:
  const char* name_;
  std::vector<double> samples_;
};

void copy_from_disk(const cache::BatchFound& found, std::size_t row_bytes, char* out) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found.is_on_disk(i)) std::abort();
    const Status status = found.disk().read(found.disk_row(i), out + i * row_bytes);
    if (!status.is_ok()) std::abort();
  }
}

void copy_from_memory(const cache::BatchFound& found, std::size_t row_bytes, char* out) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    const cache::EntryPtr entry = found.in_memory(i);
    if (entry == nullptr) std::abort();
    const auto& text = static_cast<const testing::TextValue&>(*entry->value).text();
    std::memcpy(out + i * row_bytes, text.data(), row_bytes);
  }
}

void run(const Sizes& sizes) {
  const testing::TextFormat format;
  testing::TemporaryDirectory directory;
  const auto keys = make_keys(sizes.rows);
  cache::Cache writer(format);
  cache::Cache reader(format);
  cache::Cache pread(format);
  const cache::Options options{{"dir", directory / "cache"}, {"memory", "0"}};
  cache::Options with_memory = options;
  with_memory["memory"] = "64GB";
  cache::Options with_pread = options;
  with_pread["io"] = "pread";
  if (!writer.configure(with_memory).is_ok() || !reader.configure(options).is_ok() ||
      !pread.configure(with_pread).is_ok()) {
    std::abort();
  }
  fill(writer, sizes, keys);
  const char* file = mapped_file(directory / "rows", sizes);
  const auto context = bench_context();
  std::string out(sizes.batch * sizes.row_bytes, '\0');
  std::mt19937_64 random(1);

  Timer gather("memcpy gather from a mapped file");
  Timer first("disk, first visit, lookup and copy");
  Timer lookup("disk, lookup");
  Timer lookup_and_copy("disk, lookup and copy");
  Timer from_pread("disk with io=pread, lookup and copy");
  Timer memory("memory, lookup");
  Timer memory_and_copy("memory, lookup and copy");

  std::vector<std::string_view> batch(sizes.batch);
  const cache::BatchRequest request{context, batch, kSignature};
  for (std::size_t begin = 0; begin + sizes.batch <= sizes.rows; begin += sizes.batch) {
    for (std::size_t i = 0; i < sizes.batch; ++i) batch[i] = keys[begin + i];
    first.time(sizes.batch, [&] {
      copy_from_disk(reader.session()->lookup_all(request, true), sizes.row_bytes, out.data());
    });
    copy_from_disk(pread.session()->lookup_all(request, true), sizes.row_bytes, out.data());
  }
  const std::size_t known = sizes.rows / sizes.batch * sizes.batch;
  for (std::size_t round = 0; round < sizes.rounds; ++round) {
    std::vector<std::size_t> rows(sizes.batch);
    const auto draw = [&] {
      for (std::size_t i = 0; i < sizes.batch; ++i) {
        rows[i] = random() % known;
        batch[i] = keys[rows[i]];
      }
    };
    draw();
    gather.time(sizes.batch, [&] {
      for (std::size_t i = 0; i < sizes.batch; ++i) {
        std::memcpy(&out[i * sizes.row_bytes], file + rows[i] * sizes.row_bytes, sizes.row_bytes);
      }
    });
    draw();
    lookup.time(sizes.batch, [&] { (void)reader.session()->lookup_all(request, true); });
    draw();
    lookup_and_copy.time(sizes.batch, [&] {
      copy_from_disk(reader.session()->lookup_all(request, true), sizes.row_bytes, out.data());
    });
    draw();
    from_pread.time(sizes.batch, [&] {
      copy_from_disk(pread.session()->lookup_all(request, true), sizes.row_bytes, out.data());
    });
    draw();
    memory.time(sizes.batch, [&] { (void)writer.session()->lookup_all(request, true); });
    draw();
    memory_and_copy.time(sizes.batch, [&] {
      copy_from_memory(writer.session()->lookup_all(request, true), sizes.row_bytes, out.data());
    });
  }
  for (Timer* timer :
       {&gather, &first, &lookup, &lookup_and_copy, &from_pread, &memory, &memory_and_copy}) {
    timer->print(gather.median());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Sizes sizes;
  CLI::App arguments("What a hit of one row costs, beside a plain gather of the same rows.");
  const auto add = [&](const char* name, std::size_t& size, const char* what) {
    arguments.add_option(name, size, what)->check(CLI::PositiveNumber)->capture_default_str();
  };
  add("--rows", sizes.rows, "Rows that there are");
  add("--row-bytes", sizes.row_bytes, "Bytes of one");
  add("--batch", sizes.batch, "Rows of one call");
  add("--rounds", sizes.rounds, "Calls of each kind");
  CLI11_PARSE(arguments, argc, argv);
  run(sizes);
}
