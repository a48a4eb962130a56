// SPDX-License-Identifier: Apache-2.0
//
// Writes a small sound input or two for each target into the folder it is given. Inputs that once
// broke something are added to corpus/ by hand, under the name of what they broke.
#include <filesystem>
#include <fstream>
#include <string>

#include "cache/entry_header.h"
#include "codec/codec.h"
#include "fs/posix_file_system.h"
#include "fuzz/store_targets.h"
#include "store/control/control_page.h"
#include "store/directory/notes.h"
#include "store/packing/packing.h"
#include "store/segment/record.h"
#include "store/shared_index/index_table.h"
#include "store/store.h"
#include "tensor/value_header.h"

namespace {

using namespace modcache;  // NOLINT(google-build-using-namespace): a program of one file

std::string root;

void write(const std::string& target, const std::string& name, const std::string& bytes) {
  std::filesystem::create_directories(root + "/" + target);
  std::ofstream(root + "/" + target + "/" + name, std::ios::binary) << bytes;
}

std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_directory() {
  const std::string directory = root + "/made";
  std::filesystem::remove_all(directory);
  store::StoreOptions options;
  options.directory = directory;
  auto store = std::move(store::Store::open(fs::posix_file_system(), options)).value();
  const store::Context context{blake2b_128("context"), "scope", "description"};
  for (const char* key : {"a", "b", "a"}) {
    (void)store->put({{context, key}, "header", share_bytes(std::string(70, 'v')), 5});
  }
  (void)store->flush();
  (void)store->clear({"scope", "b"});
  (void)store::keep_note(store::Directory(fs::posix_file_system(), directory), "about", "text");
  write("control", "page", file_bytes(directory + "/control").substr(0, 4096));
  write("log", "two_transactions", file_bytes(directory + "/index.sqlite-wal").substr(0, 9000));
  for (const auto& entry : std::filesystem::directory_iterator(directory + "/segments")) {
    const std::string bytes = file_bytes(entry.path());
    write("segment", "entries_and_clear", bytes);
    write("sealed_segment", "entries_and_clear", bytes.substr(store::kSegmentHeaderSizeBytes));
    write("record", "segment_header", bytes.substr(0, store::kSegmentHeaderSizeBytes));
  }
  for (const auto& entry : std::filesystem::directory_iterator(directory + "/notes")) {
    write("note", "note", file_bytes(entry.path()));
  }
  store = nullptr;
  (void)store::write_pack(fs::posix_file_system(), directory, directory + ".pack");
  write("pack", "entries_and_note", file_bytes(directory + ".pack"));
  write("sealed_pack", "entries_and_note", file_bytes(directory + ".pack"));
  std::filesystem::remove_all(directory);
  std::filesystem::remove(directory + ".pack");
}

void write_index_table() {
  const std::string path = root + "/index.map";
  {
    auto table =
        std::move(store::IndexTable::create(fs::posix_file_system(), path, fuzz::kOwnerOfTable,
                                            store::IndexTable::Size::for_entries(1, 1), false))
            .value();
    table->begin_change();
    for (std::uint64_t i = 1; i <= 5; ++i) {
      (void)table->insert({i, i % 2 + 1, 64 * i, i, 0, {}}, 0);
    }
    table->end_change();
  }
  std::string bytes = file_bytes(path);
  bytes.resize(bytes.find_last_not_of('\0') + 1);
  write("index_table", "five_entries", bytes);
  std::filesystem::remove(path);
}

void write_values() {
  store::RecordHead head;
  head.sequence = 3;
  head.payload_size_bytes = 10;
  write("record", "head", store::encode_record_head(head, "key", "header", 0));
  tensor::ValueHeader lone;
  lone.tensors.push_back({6, 5, true, {3, 256}});
  tensor::ValueHeader tree = lone;
  tree.root.kind = tensor::Node::Kind::kDict;
  tree.root.types = {"str", "Tensor"};
  tree.root.children.resize(2);
  tree.root.children[0].kind = tensor::Node::Kind::kString;
  tree.root.children[0].text = "a name";
  const std::string lone_bytes = tensor::encode_value_header(lone);
  write("value_header", "lone_tensor", lone_bytes);
  write("value_header", "dict", tensor::encode_value_header(tree));
  write("entry_header", "with_signature", cache::pack_header("(float32[1,64])", lone_bytes));
  const std::string numbers(4000, '\1');
  const auto encoded = codec::encode(codec::Codec::kZstd, 4, numbers);
  write("codec", "floats", std::string("\x02\x0f\xa0", 3) + *encoded);
  write("codec", "plain", std::string("\x02\x00\x20", 3) + std::string(32, 'x'));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  root = arguments[1];
  write_directory();
  write_index_table();
  write_values();
  return 0;
}
