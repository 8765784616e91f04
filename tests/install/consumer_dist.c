/* consumer_dist.c: a program that uses an installed ridge_dist: one rank, whose collectives copy. */
#include <ridge_dist.h>
#include <stdio.h>
#include <string.h>

static int copy(void *engine, const void *send, void *recv, size_t bytes, void *stream)
{
    (void)engine, (void)stream;
    memcpy(recv, send, bytes);
    return 0;
}

static int exchange(void *engine, const void *send, void *recv, size_t bytes)
{
    return copy(engine, send, recv, bytes, NULL);
}

static int progress(void *engine, void *stream)
{
    (void)engine, (void)stream;
    return 0;
}

int main(void)
{
    ridge_peers peers;
    ridge_device *device = NULL;
    ridge_dist *dist = NULL;

    memset(&peers, 0, sizeof peers);
    peers.struct_size = sizeof peers;
    peers.size = 1;
    peers.all_gather = peers.all_to_all = copy;
    peers.exchange = exchange;
    peers.progress = progress;
    if (ridge_open("cpu", &device) != RIDGE_OK || ridge_dist_open(device, &peers, &dist) != RIDGE_OK ||
        ridge_dist_wait(dist, NULL, 1) != RIDGE_OK)
        return puts(ridge_dist_error()), 1;
    ridge_dist_close(dist);
    ridge_close(device);
    return 0;
}
