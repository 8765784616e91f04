/* names.c: a hash table of distinct strings. The hash is SipHash-1-3 under a random key: names come from files, and
 * with a known hash a file could choose names that all collide. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "io.h"

static uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static void mix(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] = rotate(v[2], 32);
}

static uint64_t hash(const uint64_t key[2], const char *text)
{
    size_t length = strlen(text), left = length;
    uint64_t word = 0, v[4] = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
                               key[1] ^ 0x7465646279746573};

    for (; left >= 8; left -= 8, text += 8) {
        memcpy(&word, text, 8);
        v[3] ^= word;
        mix(v);
        v[0] ^= word;
    }
    word = 0;
    memcpy(&word, text, left);
    word ^= (uint64_t)length << 56;
    v[3] ^= word;
    mix(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        mix(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* A slot holds 32 bits of the hash above the number + 1: most misses, and all of a growing table, need no name. */
static int64_t first_slot(const io_names *names, uint64_t slot)
{
    return (int64_t)(slot >> 32) & (names->slots - 1);
}

/* Where name is, or the free slot where it would go. */
static int64_t seek(const io_names *names, const char *name, uint64_t hashed)
{
    int64_t at = first_slot(names, hashed);

    while (names->slot[at] &&
           (names->slot[at] >> 32 != hashed >> 32 || strcmp(names->name[(uint32_t)names->slot[at] - 1], name) != 0))
        at = (at + 1) & (names->slots - 1);
    return at;
}

static void draw_key(io_names *names)
{
    struct timespec now = {0, 0};

    if (getrandom(names->key, sizeof names->key, GRND_NONBLOCK) == (ssize_t)sizeof names->key)
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    names->key[0] = (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15 + (uint64_t)now.tv_sec;
    names->key[1] = (uint64_t)(uintptr_t)names * 0xbf58476d1ce4e5b9;
}

static bool double_slots(io_names *names)
{
    io_names more = *names;

    more.slots = names->slots ? names->slots * 2 : 16;
    more.slot = more.slots < INT64_C(1) << 32 ? calloc((size_t)more.slots, sizeof *more.slot) : NULL;
    if (!more.slot)
        return false;
    if (!names->slots)
        draw_key(&more);
    for (int64_t i = 0; i < names->slots; i++) {
        int64_t at = first_slot(&more, names->slot[i]);
        if (!names->slot[i])
            continue;
        while (more.slot[at])
            at = (at + 1) & (more.slots - 1);
        more.slot[at] = names->slot[i];
    }
    free(names->slot);
    *names = more;
    return true;
}

int64_t io_names_find(const io_names *names, const char *name)
{
    if (!names->count)
        return -1;
    return (int64_t)(uint32_t)names->slot[seek(names, name, hash(names->key, name))] - 1;
}

int64_t io_names_add(io_names *names, const char *name)
{
    uint64_t hashed;
    int64_t at;

    if (2 * (names->count + 1) > names->slots && !double_slots(names))
        return -2;
    hashed = hash(names->key, name);
    at = seek(names, name, hashed);
    if (names->slot[at])
        return -1;
    if (!io_grow(&names->name, &names->capacity, names->count + 1, sizeof *names->name))
        return -2;
    names->name[names->count++] = name;
    names->slot[at] = hashed >> 32 << 32 | (uint64_t)names->count;
    return names->count - 1;
}

void io_names_free(io_names *names)
{
    free(names->name);
    free(names->slot);
    memset(names, 0, sizeof *names);
}
