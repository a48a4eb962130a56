// SPDX-License-Identifier: Apache-2.0
//
// Names of libraries that are inside libmodcache.so, as a host's other version of them may have
// them: whoever calls one of these has taken the host's in the place of his own.
#include <stdio.h>
#include <stdlib.h>

#define TRAP(name)                                      \
  void name(void) {                                     \
    fputs("the host's " #name " was called\n", stderr); \
    abort();                                            \
  }

TRAP(sqlite3_open_v2)
TRAP(sqlite3_prepare_v3)
TRAP(sqlite3_step)
TRAP(sqlite3_exec)
TRAP(sqlite3_close_v2)
TRAP(sqlite3_db_config)
TRAP(ZSTD_createCCtx)
TRAP(ZSTD_compressCCtx)
TRAP(ZSTD_createDCtx)
TRAP(ZSTD_decompressDCtx)
TRAP(ZSTD_findFrameCompressedSize)
TRAP(XXH3_64bits_withSeed)
TRAP(XXH3_128bits)
TRAP(XXH3_128bits_update)
TRAP(sodium_init)
TRAP(crypto_generichash_blake2b)
TRAP(crypto_generichash_blake2b_init)
