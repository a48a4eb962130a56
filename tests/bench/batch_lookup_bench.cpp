// SPDX-License-Identifier: Apache-2.0
//
// What a hit of one row costs, beside a plain gather of the same rows from a mapped file.
//
//     batch_lookup_bench [--rows N] [--row-bytes N] [--batch N] [--rounds N] [--openings N]
//
// All rows lie on disk, in the page cache, and are asked for in random order, the memory tier off
// but where its name is called. A first read is one by a cache that was just opened, of a file that
// was just mapped: nothing of the row was looked at before. For the other lines each row was read
// once. Every line is the median over batches of one kind, taken in turns with the others; those of
// first reads are the median over the openings of that. The mean beside it has what only the first
// of these batches pay for, such as pages that are faulted in.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
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
  std::size_t openings = 5;
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

// Writes the rows one after another to a plain file.
void write_file(const std::string& path, const Sizes& sizes) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT, 0600);
  for (std::size_t i = 0; i < sizes.rows; ++i) {
    const std::string text = row_text(sizes, i);
    if (::write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  }
  ::close(file);
}

class MappedFile {
 public:
  MappedFile(const std::string& path, const Sizes& sizes)
      : size_bytes_(sizes.rows * sizes.row_bytes), row_bytes_(sizes.row_bytes) {
    const int file = ::open(path.c_str(), O_RDONLY);
    data_ = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED, file, 0);
    ::close(file);
    if (data_ == MAP_FAILED) std::abort();
  }
  ~MappedFile() { ::munmap(data_, size_bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  void gather(const std::vector<std::size_t>& rows, char* out) const {
    const char* data = static_cast<const char*>(data_);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(out + i * row_bytes_, data + rows[i] * row_bytes_, row_bytes_);
    }
  }

 private:
  const std::size_t size_bytes_;
  const std::size_t row_bytes_;
  void* data_;
};

// The processor time of this thread, which other programs on the machine do not lengthen.
double thread_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

long page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

double median_of(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  return samples[samples.size() / 2];
}

class Timer {
 public:
  explicit Timer(const char* name) : name_(name) {}
  template <typename Work>
  void time(std::size_t rows, Work work) {
    const long faults = page_faults();
    const double started_ns = thread_ns();
    work();
    const double took_ns = thread_ns() - started_ns;
    samples_.push_back(took_ns / static_cast<double>(rows));
    total_ns_ += took_ns;
    faults_ += page_faults() - faults;
    rows_ += rows;
  }
  // Ends a round: it counts as its median.
  void end_round() { medians_.push_back(median_of(std::exchange(samples_, {}))); }
  double median() const { return median_of(samples_.empty() ? medians_ : samples_); }
  void print(double gather) const {
    const double ns = median();
    const auto rows = static_cast<double>(rows_);
    std::printf("%-44s %9.1f ns per key   %6.2f x gather   mean %9.1f   %6.3f faults per key\n",
                name_, ns, ns / gather, total_ns_ / rows, static_cast<double>(faults_) / rows);
  }

 private:
  const char* name_;
  std::vector<double> samples_;
  std::vector<double> medians_;
  double total_ns_ = 0;
  long faults_ = 0;
  std::size_t rows_ = 0;
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

// What the kinds of batches have in common.
struct Bench {
  const Sizes& sizes;
  const std::vector<std::string>& keys;
  std::string folder;
  std::string out;

  std::string file() const { return folder + "/rows"; }
  cache::Options options() const { return {{"dir", folder + "/cache"}, {"memory", "0"}}; }
  std::vector<std::string_view> keys_of(const std::vector<std::size_t>& rows) const {
    std::vector<std::string_view> batch;
    for (const std::size_t row : rows) batch.emplace_back(keys[row]);
    return batch;
  }
};

void configure(cache::Cache& one, const cache::Options& options) {
  if (!one.configure(options).is_ok()) std::abort();
}

// Those that fill whole batches.
std::size_t known_rows(const Sizes& sizes) { return sizes.rows / sizes.batch * sizes.batch; }

// Visits all known rows once, in random order, with a cache and a mapping that are new to them.
void read_all_first(Bench& bench, cache::Cache& reader, std::uint64_t seed, Timer& gather,
                    Timer& lookup_and_copy) {
  const Sizes& sizes = bench.sizes;
  const MappedFile file(bench.file(), sizes);
  const auto context = bench_context();
  std::vector<std::size_t> order(known_rows(sizes));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  for (std::size_t begin = 0; begin < order.size(); begin += sizes.batch) {
    const std::vector<std::size_t> rows(order.begin() + begin, order.begin() + begin + sizes.batch);
    const auto batch = bench.keys_of(rows);
    const cache::BatchRequest request{context, batch, kSignature};
    const auto time_gather = [&] {
      gather.time(sizes.batch, [&] { file.gather(rows, bench.out.data()); });
    };
    const bool is_gather_first = random() % 2 == 0;
    if (is_gather_first) time_gather();
    lookup_and_copy.time(sizes.batch, [&] {
      copy_from_disk(reader.session()->lookup_all(request, true), sizes.row_bytes,
                     bench.out.data());
    });
    if (!is_gather_first) time_gather();
  }
  gather.end_round();
  lookup_and_copy.end_round();
}

void run(const Sizes& sizes) {
  const testing::TextFormat format;
  testing::TemporaryDirectory directory;
  const auto keys = make_keys(sizes.rows);
  Bench bench{sizes, keys, directory.path(), std::string(sizes.batch * sizes.row_bytes, '\0')};
  cache::Cache writer(format);
  cache::Cache reader(format);
  cache::Cache pread(format);
  cache::Options with_memory = bench.options();
  with_memory["memory"] = "64GB";
  cache::Options with_pread = bench.options();
  with_pread["io"] = "pread";
  configure(writer, with_memory);
  configure(reader, bench.options());
  configure(pread, with_pread);
  fill(writer, sizes, keys);
  write_file(bench.file(), sizes);

  Timer first_gather("first read, memcpy gather from a mapped file");
  Timer first("first read, lookup and copy");
  Timer first_pread("first read with io=pread, lookup and copy");
  Timer gather("memcpy gather from a mapped file");
  Timer lookup("disk, lookup");
  Timer lookup_and_copy("disk, lookup and copy");
  Timer from_pread("disk with io=pread, lookup and copy");
  Timer memory("memory, lookup");
  Timer memory_and_copy("memory, lookup and copy");

  for (std::size_t opening = 0; opening < sizes.openings; ++opening) {
    cache::Cache opened(format);
    configure(opened, bench.options());
    read_all_first(bench, opened, opening, first_gather, first);
  }
  Timer unused("");
  Timer also_unused("");
  read_all_first(bench, reader, 0, unused, also_unused);
  read_all_first(bench, pread, 0, unused, first_pread);

  const MappedFile file(bench.file(), sizes);
  const auto context = bench_context();
  std::mt19937_64 random(1);
  std::vector<std::size_t> rows(sizes.batch);
  const std::size_t known = known_rows(sizes);
  for (std::size_t round = 0; round < sizes.rounds; ++round) {
    const auto look_up = [&](Timer& timer, cache::Cache& where, const auto& copy) {
      for (std::size_t& row : rows) row = random() % known;
      const auto batch = bench.keys_of(rows);
      const cache::BatchRequest request{context, batch, kSignature};
      timer.time(sizes.batch, [&] { copy(where.session()->lookup_all(request, true)); });
    };
    const auto from_disk = [&](const cache::BatchFound& found) {
      copy_from_disk(found, sizes.row_bytes, bench.out.data());
    };
    const auto from_memory = [&](const cache::BatchFound& found) {
      copy_from_memory(found, sizes.row_bytes, bench.out.data());
    };
    const auto nothing = [](const cache::BatchFound&) {};
    for (std::size_t& row : rows) row = random() % known;
    gather.time(sizes.batch, [&] { file.gather(rows, bench.out.data()); });
    look_up(lookup, reader, nothing);
    look_up(lookup_and_copy, reader, from_disk);
    look_up(from_pread, pread, from_disk);
    look_up(memory, writer, nothing);
    look_up(memory_and_copy, writer, from_memory);
  }
  for (const Timer* timer : {&first_gather, &first, &first_pread}) {
    timer->print(first_gather.median());
  }
  for (const Timer* timer :
       {&gather, &lookup, &lookup_and_copy, &from_pread, &memory, &memory_and_copy}) {
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
  add("--openings", sizes.openings, "Caches that read all rows for the first time");
  CLI11_PARSE(arguments, argc, argv);
  run(sizes);
}
