/* QEMU's reader of enclave image files (hw/core/eif.c) as a program: a test's second opinion.
 *
 * It is compiled around QEMU's own file, which EIF_C names; what QEMU has around it is stood in for
 * here. Hashes are left to the caller: what QEMU hashes is written to files. Usage: oracle EIF OUT.
 */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QEMU_PACKED __attribute__((packed))
#define OFF_MAX INT64_MAX
#define be16_to_cpu be16toh
#define be32_to_cpu be32toh
#define be64_to_cpu be64toh
#define g_free free
#define g_try_malloc(size) malloc((size) ? (size) : 1)
#define g_autofree __attribute__((cleanup(freed)))
#define g_autoptr(type) __attribute__((cleanup(closed))) type *
#define QCRYPTO_HASH_DIGEST_LEN_SHA384 48
#define QCRYPTO_HASH_ALGO_SHA384 0

typedef struct Error Error;
typedef struct QCryptoHash { FILE *into; } QCryptoHash;

static const char *out;
static int hashes;

#define error_setg(errp, ...) ((void)(errp), fprintf(stderr, __VA_ARGS__))
#define error_setg_errno(errp, number, ...) ((void)(errp), (void)(number), fprintf(stderr, __VA_ARGS__))

static inline void freed(void *place) { free(*(void **)place); }
static void closed(QCryptoHash **hash) { if (*hash) { fclose((*hash)->into); free(*hash); } }

static QCryptoHash *qcrypto_hash_new(int algorithm, Error **errp)
{
    char path[4096];
    QCryptoHash *hash = malloc(sizeof *hash);
    (void)algorithm; (void)errp;
    snprintf(path, sizeof path, "%s/%d", out, hashes++);
    hash->into = fopen(path, "wb");
    return hash;
}

static int qcrypto_hash_update(QCryptoHash *hash, const char *data, size_t size, Error **errp)
{
    (void)errp;
    return fwrite(data, 1, size, hash->into) == size ? 0 : -1;
}

static int qcrypto_hash_finalize_bytes(QCryptoHash *hash, uint8_t **got, size_t *len, Error **errp)
{
    (void)hash; (void)got; (void)len; (void)errp;
    return 0;
}

static int g_file_open_tmp(const char *template, char **path, void *error)
{
    char place[4096];
    (void)error;
    snprintf(place, sizeof place, "%s/%s", out, template);
    *path = strdup(place);
    return mkstemp(*path);
}

static uint32_t crc32(uint32_t crc, const uint8_t *data, size_t size)
{
    crc = ~crc;
    while (size--) {
        crc ^= *data++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

/* Of libcbor: signed files are not read here. */
typedef int cbor_item_t;
struct cbor_pair { cbor_item_t *key, *value; };
struct cbor_load_result { struct { int code; } error; };
#define CBOR_ERR_NONE 0
#define CBOR_INT_8 0
#define cbor_load(data, size, result) ((void)(data), (void)(size), (result)->error.code = 1, NULL)
#define cbor_isa_array(item) ((void)(item), false)
#define cbor_isa_map(item) ((void)(item), false)
#define cbor_isa_string(item) ((void)(item), false)
#define cbor_isa_uint(item) ((void)(item), false)
#define cbor_array_size(item) ((void)(item), (size_t)0)
#define cbor_map_size(item) ((void)(item), (size_t)0)
#define cbor_string_length(item) ((void)(item), (size_t)0)
#define cbor_string_handle(item) ((void)(item), "")
#define cbor_array_get(item, at) ((void)(item), (void)(at), (cbor_item_t *)NULL)
#define cbor_map_handle(item) ((void)(item), (struct cbor_pair *)NULL)
#define cbor_int_get_width(item) ((void)(item), 0)
#define cbor_get_uint8(item) ((void)(item), 0)
#define cbor_decref(item) ((void)(item))
#define qcrypto_get_x509_cert_fingerprint(...) (-1)

#include EIF_C

int main(int count, char **words)
{
    char *kernel, *initrd, *line;
    uint8_t hash[4][48];
    bool is_signed;
    if (count != 3) return 2;
    out = words[2];
    if (!read_eif_file(words[1], NULL, &kernel, &initrd, &line, hash[0], hash[1], hash[2], hash[3],
                       &is_signed, NULL)) {
        return 1;
    }
    puts(line);
    return 0;
}
