// SPDX-License-Identifier: Apache-2.0
#include "support/fault_sqlite_vfs.h"

#include <sqlite3.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>

namespace modcache::testing {

struct FaultSqliteVfs::Shim {
  sqlite3_vfs vfs{};
  sqlite3_vfs* real = nullptr;
  std::string name;
  Faults* faults = nullptr;
  DiskModel* disk = nullptr;

  static Shim& of(sqlite3_vfs* vfs) { return *static_cast<Shim*>(vfs->pAppData); }
};

namespace {

// What SQLite reserves for an open file; that of the real VFS lies behind it.
struct ShimFile {
  sqlite3_file base;
  Faults* faults;
  DiskModel* disk;
  DiskModel::InodePtr inode;
  std::string path;
  bool has_new_name;  // SQLite syncs the folder with the first sync of a log that it made

  sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
  static ShimFile& of(sqlite3_file* file) { return *reinterpret_cast<ShimFile*>(file); }
};

// The code of the fault; SQLITE_OK: there is none.
int code_of(std::optional<Fault> fault, int io_error) {
  if (!fault) return SQLITE_OK;
  switch (*fault) {
    case Fault::kNoSpace:
    case Fault::kShortWrite:
    case Fault::kKillHalfway: return SQLITE_FULL;
    case Fault::kBusy: return SQLITE_BUSY;
    case Fault::kCannotOpen: return SQLITE_CANTOPEN;
    case Fault::kNoMemory: return SQLITE_IOERR_NOMEM;
    case Fault::kIoError:
    case Fault::kKill: return io_error;
  }
  return io_error;
}

int ask(ShimFile& file, Call call, const char* doing, int io_error) {
  return code_of(file.faults->next(call, doing, file.path, kOfSqlite), io_error);
}

int close_file(sqlite3_file* base) {
  ShimFile& file = ShimFile::of(base);
  const int code = file.real()->pMethods->xClose(file.real());
  file.~ShimFile();
  base->pMethods = nullptr;
  return code;
}

int read_file(sqlite3_file* base, void* target, int size, sqlite3_int64 offset) {
  ShimFile& file = ShimFile::of(base);
  if (const int code = ask(file, Call::kRead, "read", SQLITE_IOERR_READ)) return code;
  return file.real()->pMethods->xRead(file.real(), target, size, offset);
}

int write_real(ShimFile& file, const void* data, int size, sqlite3_int64 offset) {
  const int code = file.real()->pMethods->xWrite(file.real(), data, size, offset);
  if (code == SQLITE_OK && file.disk != nullptr) {
    file.disk->write(file.inode, static_cast<std::uint64_t>(offset),
                     {static_cast<const char*>(data), static_cast<std::size_t>(size)});
  }
  return code;
}

int write_file(sqlite3_file* base, const void* data, int size, sqlite3_int64 offset) {
  ShimFile& file = ShimFile::of(base);
  const auto fault = file.faults->next(Call::kWrite, "write", file.path, kOfSqlite);
  if (!fault) return write_real(file, data, size, offset);
  if (*fault == Fault::kShortWrite || *fault == Fault::kKillHalfway) {
    (void)write_real(file, data, size / 2, offset);
  }
  if (*fault == Fault::kKillHalfway) ::raise(SIGKILL);
  return code_of(fault, SQLITE_IOERR_WRITE);
}

int truncate_file(sqlite3_file* base, sqlite3_int64 size) {
  ShimFile& file = ShimFile::of(base);
  if (const int code = ask(file, Call::kTruncate, "truncate", SQLITE_IOERR_TRUNCATE)) return code;
  const int code = file.real()->pMethods->xTruncate(file.real(), size);
  if (code == SQLITE_OK && file.disk != nullptr) {
    file.disk->truncate(file.inode, static_cast<std::uint64_t>(size));
  }
  return code;
}

int sync_file(sqlite3_file* base, int) {
  ShimFile& file = ShimFile::of(base);
  if (const int code = ask(file, Call::kSync, "sync", SQLITE_IOERR_FSYNC)) return code;
  if (file.disk != nullptr) {
    file.disk->sync(file.inode);
    if (file.has_new_name) file.disk->sync_directory(file.path.substr(0, file.path.rfind('/')));
    file.has_new_name = false;
  }
  return SQLITE_OK;
}

int size_of_file(sqlite3_file* base, sqlite3_int64* size) {
  ShimFile& file = ShimFile::of(base);
  if (const int code = ask(file, Call::kInspect, "inspect", SQLITE_IOERR_FSTAT)) return code;
  return file.real()->pMethods->xFileSize(file.real(), size);
}

int lock_file(sqlite3_file* base, int level) {
  ShimFile& file = ShimFile::of(base);
  if (const int code = ask(file, Call::kLock, "lock", SQLITE_IOERR_LOCK)) return code;
  return file.real()->pMethods->xLock(file.real(), level);
}

int unlock_file(sqlite3_file* base, int level) {
  ShimFile& file = ShimFile::of(base);
  return file.real()->pMethods->xUnlock(file.real(), level);
}

int check_reserved_lock(sqlite3_file* base, int* is_locked) {
  ShimFile& file = ShimFile::of(base);
  return file.real()->pMethods->xCheckReservedLock(file.real(), is_locked);
}

int control_file(sqlite3_file* base, int operation, void* argument) {
  ShimFile& file = ShimFile::of(base);
  return file.real()->pMethods->xFileControl(file.real(), operation, argument);
}

int sector_size(sqlite3_file* base) {
  ShimFile& file = ShimFile::of(base);
  return file.real()->pMethods->xSectorSize(file.real());
}

// Nothing that a disk need not have: no atomic writes, no writes in order.
int device_characteristics(sqlite3_file*) { return 0; }

int map_shared_memory(sqlite3_file* base, int region, int size, int may_extend,
                      void volatile** memory) {
  ShimFile& file = ShimFile::of(base);
  if (const int code = ask(file, Call::kMap, "map", SQLITE_IOERR_SHMMAP)) return code;
  return file.real()->pMethods->xShmMap(file.real(), region, size, may_extend, memory);
}

int lock_shared_memory(sqlite3_file* base, int offset, int count, int flags) {
  ShimFile& file = ShimFile::of(base);
  if ((flags & SQLITE_SHM_LOCK) != 0) {
    if (const int code = ask(file, Call::kLock, "lock", SQLITE_IOERR_SHMLOCK)) return code;
  } else if ((flags & SQLITE_SHM_EXCLUSIVE) != 0) {
    (void)ask(file, Call::kUnlock, "unlock", SQLITE_OK);
  }
  return file.real()->pMethods->xShmLock(file.real(), offset, count, flags);
}

void shared_memory_barrier(sqlite3_file* base) {
  ShimFile& file = ShimFile::of(base);
  file.real()->pMethods->xShmBarrier(file.real());
}

int unmap_shared_memory(sqlite3_file* base, int must_delete) {
  ShimFile& file = ShimFile::of(base);
  return file.real()->pMethods->xShmUnmap(file.real(), must_delete);
}

const sqlite3_io_methods kMethods = {
    2,
    close_file,
    read_file,
    write_file,
    truncate_file,
    sync_file,
    size_of_file,
    lock_file,
    unlock_file,
    check_reserved_lock,
    control_file,
    sector_size,
    device_characteristics,
    map_shared_memory,
    lock_shared_memory,
    shared_memory_barrier,
    unmap_shared_memory,
    nullptr,
    nullptr,
};

std::string unique_name() {
  static std::atomic<int> made{0};
  return "modcache-faults-" + std::to_string(made++);
}

}  // namespace

FaultSqliteVfs::FaultSqliteVfs(Faults& faults, DiskModel* disk) : shim_(std::make_unique<Shim>()) {
  using OwnShim = FaultSqliteVfs::Shim;
  shim_->real = sqlite3_vfs_find(nullptr);
  shim_->faults = &faults;
  shim_->disk = disk;
  shim_->name = unique_name();
  sqlite3_vfs& vfs = shim_->vfs;
  vfs = *shim_->real;  // what is not replaced does not ask which VFS it is called for
  vfs.pNext = nullptr;
  vfs.zName = shim_->name.c_str();
  vfs.pAppData = shim_.get();
  vfs.szOsFile = static_cast<int>(sizeof(ShimFile)) + shim_->real->szOsFile;
  vfs.xOpen = [](sqlite3_vfs* own, const char* name, sqlite3_file* base, int flags,
                 int* out_flags) -> int {
    OwnShim& shim = OwnShim::of(own);
    base->pMethods = nullptr;
    const std::string path = name != nullptr ? name : "";
    const bool may_create = (flags & SQLITE_OPEN_CREATE) != 0;
    const auto fault =
        shim.faults->next(may_create ? Call::kCreate : Call::kOpen, "open", path, kOfSqlite);
    if (const int code = code_of(fault, SQLITE_CANTOPEN)) return code;
    auto* file = new (base) ShimFile{{&kMethods}, shim.faults, shim.disk, nullptr, path, false};
    const int code = shim.real->xOpen(shim.real, name, file->real(), flags, out_flags);
    if (code != SQLITE_OK) {
      file->~ShimFile();
      base->pMethods = nullptr;
      return code;
    }
    if (shim.disk != nullptr && !path.empty()) {
      file->inode = shim.disk->open(path, may_create);
      file->has_new_name = may_create && (flags & SQLITE_OPEN_WAL) != 0;
    }
    return SQLITE_OK;
  };
  vfs.xDelete = [](sqlite3_vfs* own, const char* name, int must_sync) -> int {
    OwnShim& shim = OwnShim::of(own);
    const auto fault = shim.faults->next(Call::kRemove, "remove", name, kOfSqlite);
    if (const int code = code_of(fault, SQLITE_IOERR_DELETE)) return code;
    const int code = shim.real->xDelete(shim.real, name, must_sync);
    if (code == SQLITE_OK && shim.disk != nullptr) {
      shim.disk->remove(name);
      const std::string path = name;
      if (must_sync != 0) shim.disk->sync_directory(path.substr(0, path.rfind('/')));
    }
    return code;
  };
  vfs.xAccess = [](sqlite3_vfs* own, const char* name, int flags, int* out) -> int {
    OwnShim& shim = OwnShim::of(own);
    const auto fault = shim.faults->next(Call::kInspect, "inspect", name, kOfSqlite);
    if (const int code = code_of(fault, SQLITE_IOERR_ACCESS)) return code;
    return shim.real->xAccess(shim.real, name, flags, out);
  };
  vfs.xFullPathname = [](sqlite3_vfs* own, const char* name, int size, char* out) -> int {
    OwnShim& shim = OwnShim::of(own);
    return shim.real->xFullPathname(shim.real, name, size, out);
  };
  // Waiting for a lock that is never free would take the patience of each call.
  vfs.xSleep = [](sqlite3_vfs* own, int microseconds) -> int {
    OwnShim& shim = OwnShim::of(own);
    if (shim.faults->is_failing(Fault::kBusy)) return microseconds;
    return shim.real->xSleep(shim.real, microseconds);
  };
  if (sqlite3_vfs_register(&vfs, 0) != SQLITE_OK) std::abort();
}

FaultSqliteVfs::~FaultSqliteVfs() { sqlite3_vfs_unregister(&shim_->vfs); }

const char* FaultSqliteVfs::name() const { return shim_->name.c_str(); }

}  // namespace modcache::testing
