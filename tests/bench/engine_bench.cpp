// SPDX-License-Identifier: Apache-2.0
//
// Batches of keys in the tiers alone, without torch, beside a plain gather of the same rows from a
// mapped file: nanoseconds per batch of 256 rows.
//
//     engine_bench [--benchmark_filter=disk/2048] [options of Google Benchmark]
//
// All rows lie on disk, were read once, and are asked for in random order; the memory tier is off
// but where its name is called.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cache.h"
#include "support/temporary_directory.h"
#include "support/text_value.h"

namespace {

using namespace modcache;

constexpr char kSignature[] = "float32[512]";
constexpr std::size_t kBatch = 256;
using Batch = std::vector<std::string_view>;

cache::ContextPtr bench_context() {
  cache::ContextParts parts;
  parts.scope = "bench";
  parts.method = "forward";
  parts.form = cache::Form::kRow;
  return cache::make_context(parts);
}

std::string row_text(std::size_t row_bytes, std::size_t i) {
  std::string text(row_bytes, '\0');
  std::mt19937_64 random(i);
  for (char& byte : text) byte = static_cast<char>(random());
  return text;
}

// Rows of one size, in a cache's directory and one after another in a mapped file.
class Rows {
 public:
  explicit Rows(std::size_t row_bytes)
      : row_bytes_(row_bytes), count_(row_bytes < 10000 ? 16384 : 1024) {
    for (std::size_t i = 0; i < count_; ++i) keys_.push_back("sample-" + std::to_string(i));
    configure(memory_, "64GB", "mmap");
    configure(disk_, "0", "mmap");
    configure(pread_, "0", "pread");
    fill();
    map_file();
  }

  const char* row(std::size_t i) const { return file_ + i * row_bytes_; }
  std::size_t row_bytes() const { return row_bytes_; }
  const std::string& key(std::size_t i) const { return keys_[i]; }
  cache::Cache& memory() { return memory_; }
  cache::Cache& disk() { return disk_; }
  cache::Cache& pread() { return pread_; }

  // Places of a batch in random order.
  std::vector<std::size_t> draw(std::mt19937_64& random) const {
    std::vector<std::size_t> rows(kBatch);
    for (std::size_t& row : rows) row = random() % count_;
    return rows;
  }

 private:
  void configure(cache::Cache& target, const char* memory, const char* io) {
    const cache::Options options{{"dir", directory_ / "cache"}, {"memory", memory}, {"io", io}};
    if (!target.configure(options).is_ok()) std::abort();
  }

  void fill() {
    for (std::size_t first = 0; first < count_; first += kBatch) {
      std::vector<std::string_view> batch;
      std::vector<cache::EntryPtr> entries;
      for (std::size_t i = first; i < first + kBatch; ++i) {
        batch.push_back(keys_[i]);
        entries.push_back(testing::text_entry(row_text(row_bytes_, i), kSignature));
      }
      cache::Keys keys(bench_context(), batch);
      keys.configuration = memory_.configuration();
      memory_.store(keys, entries);
    }
    memory_.flush();
  }

  void map_file() {
    const std::string path = directory_ / "rows";
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT, 0600);
    for (std::size_t i = 0; i < count_; ++i) {
      const std::string text = row_text(row_bytes_, i);
      if (::write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
        std::abort();
    }
    void* data = ::mmap(nullptr, count_ * row_bytes_, PROT_READ, MAP_SHARED, file, 0);
    ::close(file);
    if (data == MAP_FAILED) std::abort();
    file_ = static_cast<const char*>(data);
  }

  const std::size_t row_bytes_;
  const std::size_t count_;
  const testing::TextFormat format_;
  testing::TemporaryDirectory directory_;
  std::vector<std::string> keys_;
  const char* file_ = nullptr;
  cache::Cache memory_{format_};
  cache::Cache disk_{format_};
  cache::Cache pread_{format_};
};

// Benchmarks of one size share its rows.
Rows& rows_of(const benchmark::State& state) {
  static std::map<std::int64_t, std::unique_ptr<Rows>> all;
  std::unique_ptr<Rows>& rows = all[state.range(0)];
  if (rows == nullptr) rows = std::make_unique<Rows>(static_cast<std::size_t>(state.range(0)));
  return *rows;
}

cache::Found look_up(cache::Cache& cache, const std::vector<std::string_view>& batch) {
  static const cache::ContextPtr context = bench_context();
  cache::Keys keys(context, batch);
  keys.configuration = cache.configuration();
  keys.signature = kSignature;
  keys.form = cache::Form::kRow;
  cache::LookupOptions options;
  options.may_write = true;
  cache::Found found = cache.lookup(keys, options);
  cache.count_hits(keys, found, true);
  return found;
}

// Draws a batch outside of the timed part, then hands its keys to `work` within it.
template <typename Work>
void run(benchmark::State& state, Rows& rows, Work work) {
  std::mt19937_64 random(1);
  std::vector<std::string_view> keys(kBatch);
  for (auto _ : state) {
    state.PauseTiming();
    const std::vector<std::size_t> batch = rows.draw(random);
    for (std::size_t i = 0; i < kBatch; ++i) keys[i] = rows.key(batch[i]);
    state.ResumeTiming();
    work(batch, keys);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}

void gather(benchmark::State& state) {
  Rows& rows = rows_of(state);
  std::string out(kBatch * rows.row_bytes(), '\0');
  run(state, rows, [&](const std::vector<std::size_t>& batch, const Batch&) {
    for (std::size_t i = 0; i < kBatch; ++i) {
      std::memcpy(&out[i * rows.row_bytes()], rows.row(batch[i]), rows.row_bytes());
    }
  });
}

void copy_from_disk(benchmark::State& state, Rows& rows, cache::Cache& cache) {
  std::string out(kBatch * rows.row_bytes(), '\0');
  run(state, rows, [&](const std::vector<std::size_t>&, const Batch& keys) {
    const cache::Found found = look_up(cache, keys);
    for (std::size_t i = 0; i < kBatch; ++i) {
      if (!found.is_row(i)) std::abort();
      if (!found.rows().read(found.row(i), &out[i * rows.row_bytes()]).is_ok()) std::abort();
    }
  });
}

void disk(benchmark::State& state) { copy_from_disk(state, rows_of(state), rows_of(state).disk()); }
void disk_pread(benchmark::State& state) {
  copy_from_disk(state, rows_of(state), rows_of(state).pread());
}

void disk_lookup(benchmark::State& state) {
  Rows& rows = rows_of(state);
  run(state, rows, [&](const std::vector<std::size_t>&, const Batch& keys) {
    benchmark::DoNotOptimize(look_up(rows.disk(), keys));
  });
}

void memory(benchmark::State& state) {
  Rows& rows = rows_of(state);
  std::string out(kBatch * rows.row_bytes(), '\0');
  run(state, rows, [&](const std::vector<std::size_t>&, const Batch& keys) {
    const cache::Found found = look_up(rows.memory(), keys);
    for (std::size_t i = 0; i < kBatch; ++i) {
      const cache::EntryPtr entry = found.entry(i);
      if (entry == nullptr) std::abort();
      const auto& text = static_cast<const testing::TextValue&>(*entry->value).text();
      std::memcpy(&out[i * rows.row_bytes()], text.data(), rows.row_bytes());
    }
  });
}

constexpr std::int64_t kSmall = 2048;
constexpr std::int64_t kLarge = 151296;

BENCHMARK(gather)->Arg(kSmall)->Arg(kLarge);
BENCHMARK(disk)->Arg(kSmall)->Arg(kLarge);
BENCHMARK(disk_pread)->Arg(kSmall)->Arg(kLarge);
BENCHMARK(disk_lookup)->Arg(kSmall)->Arg(kLarge);
BENCHMARK(memory)->Arg(kSmall)->Arg(kLarge);

}  // namespace

BENCHMARK_MAIN();
