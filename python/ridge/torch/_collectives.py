"""_collectives.py: the two collectives that ridge uses of a process group; they move bytes and add nothing. Of a group for which
copy_engine was called they are copies that the GPUs' copy engines make out of PyTorch's symmetric memory."""
import weakref

import torch
import torch.distributed as dist

from .._core import Error


class PeerError(Error):
    """A collective failed: a rank has died, stopped, or taken another turn. The group is of no use any more."""


def _tried(name, on, call, *args, **more):
    try:
        return call(*args, **more)
    except RuntimeError as error:
        raise PeerError(f"{name} on rank {on.rank()} of {on.size()}: {str(error)[:500]}") from error


def _begun(name, group, out, t):
    """Begins a collective, which goes on beside what is launched next; a function that waits for it and gives `out`."""
    work = _tried(name, group, getattr(dist, name), out.view(-1), t.view(-1), group=group, async_op=True)

    def wait(_=t):
        _tried(name, group, work.wait)
        return out
    return wait


def gathering(t, group):
    """Begins to gather t of every rank, [ranks, ..]; ends with it."""
    out = t.new_empty(group.size(), *t.shape)
    if group.size() == 1:
        return lambda: out.copy_(t)
    return _begun("all_gather_into_tensor", group, out, t.contiguous())


def gathered(t, group):
    return gathering(t, group)()


_copies = weakref.WeakKeyDictionary()  # group -> Copies


class Copies:
    """Transfers of a group that take no multiprocessor: what is sent lies in memory that all ranks see, they meet, and each copies what
    it wants. A buffer comes again with the third transfer after its own, when all ranks have waited for it: two go on at once at
    most."""

    def __init__(self, group, seconds):
        self.group, self.seconds, self.rings, self.stream, self.last = group, seconds, {}, torch.cuda.Stream(), None

    def room(self, bytes_, device):
        """(buffer, handle) of what is sent next. The first time of a size is a collective, not within a graph."""
        from torch.distributed import _symmetric_memory as symmetric
        ring = self.rings.get(bytes_)
        if ring is None:
            buffers = [symmetric.empty(bytes_, dtype=torch.uint8, device=device) for _ in range(3)]
            ring = self.rings[bytes_] = [(b, symmetric.rendezvous(b, self.group.group_name)) for b in buffers]
        ring.append(ring.pop(0))
        return ring[-1]

    def copying(self, handle, pairs):
        """Begins to copy where all ranks have come so far: pairs of a rank's part and where it goes; ends with waiting for it."""
        handle.barrier(0, int(1000 * self.seconds))
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for theirs, mine in pairs:
                mine.copy_(theirs)
                mine.record_stream(self.stream)
            done = torch.cuda.Event()
            done.record()
        return done.wait

    def gathering(self, tensors, own):
        """Of several tensors at once; own: this rank's parts too."""
        n, rank, at = self.group.size(), self.group.rank(), [0]
        for t in tensors:
            at.append(at[-1] + -(-t.numel() * t.element_size() // 256) * 256)
        buffer, handle = self.room(at[-1], tensors[0].device)
        out = [t.new_empty(n, *t.shape) for t in tensors]
        pairs = []
        for t, o, first in zip(tensors, out, at):
            buffer[first:first + t.numel() * t.element_size()].view(t.dtype).view(t.shape).copy_(t)
            if own:
                o[rank].copy_(t)
            for other in range(1, n):
                r = (rank + other) % n
                pairs.append((handle.get_buffer(r, t.shape, t.dtype, first // t.element_size()), o[r]))
        wait = self.copying(handle, pairs)

        def waited():
            wait()
            return out
        return waited

    def parts(self, n, rows, cols, dtype, device):
        """Room for parts of which each rank gets one."""
        buffer, handle = self.room(n * rows * cols * dtype.itemsize, device)
        self.last = handle
        return buffer.view(dtype).view(n, rows, cols)

    def trading(self, parts):
        """`trading` of what parts() gave last."""
        n, rank = self.group.size(), self.group.rank()
        out = torch.empty_like(parts)
        shape, size = parts.shape[1:], parts[0].numel()
        others = [(rank + other) % n for other in range(1, n)]
        return out, self.copying(self.last, [(self.last.get_buffer(r, shape, parts.dtype, rank * size), out[r]) for r in others])

    def gathering_in(self, parts):
        """Of what parts() gave last, whose part of this rank's number is its own; it lasts until two more transfers."""
        n, rank = self.group.size(), self.group.rank()
        shape, size = parts.shape[1:], parts[0].numel()
        others = [(rank + other) % n for other in range(1, n)]
        wait = self.copying(self.last, [(self.last.get_buffer(r, shape, parts.dtype, r * size), parts[r]) for r in others])

        def waited():
            wait()
            return parts
        return waited


def copy_engine(group, seconds=60.0):
    """Transfers of tensor-parallel layers over this group and of linear_cross_entropy's parts of dX (rows "whole"), whose GPUs
    see each other's memory, are from now on made by copy engines and leave the multiprocessors to products. A collective call.
    What is sent takes three buffers for each of its sizes. Where a rank does not come within `seconds`, the others' CUDA contexts
    end with an error."""
    if group.size() > 1:
        _copies[group] = Copies(group, seconds)


def by_copies(group):
    """The Copies of a group, if it has them."""
    return _copies.get(group)


def gathering_in(parts, group):
    """Begins to gather what is in parts [ranks, ..] at this rank's number, which empty_parts gave for a group of copies; ends with all."""
    return by_copies(group).gathering_in(parts)


def empty_parts(group, n, rows, cols, like, dtype):
    """[n, rows, cols] for parts that `trading` or gathering_in moves."""
    copies = by_copies(group)
    return copies.parts(n, rows, cols, dtype, like.device) if copies else torch.empty(n, rows, cols, dtype=dtype, device=like.device)


def gathering_both(t, u, group, own=True):
    """gathering of two tensors by one launch: with NCCL a collective costs the host 50 us and the device 20, however small. own=False:
    this rank's parts of the result are not read."""
    copies = by_copies(group)
    if copies:
        return copies.gathering((t.contiguous(), u.contiguous()), own)
    if group.size() == 1 or not t.is_cuda:
        waits = gathering(t, group), gathering(u, group)
        return lambda: tuple(wait() for wait in waits)
    t, u = t.contiguous(), u.contiguous()
    out = tuple(v.new_empty(group.size(), *v.shape) for v in (t, u))
    work = _tried("all_gather_into_tensor", group, group.allgather_into_tensor_coalesced, [v.view(-1) for v in out],
                  [t.view(-1), u.view(-1)])

    def wait(_=(t, u)):
        _tried("all_gather_into_tensor", group, work.wait)
        return out
    return wait


def transposing(parts, group):
    """Begins to send parts [ranks, ..]: rank r gets part r of every rank, in their order; ends with them."""
    if group.size() == 1:
        return lambda: parts
    return _begun("all_to_all_single", group, torch.empty_like(parts), parts)


def transposed(parts, group):
    return transposing(parts, group)()


def trading(parts, group):
    """transposing of all parts but this rank's own, for which the result has room: (the result, what waits for the others')."""
    if by_copies(group):
        return by_copies(group).trading(parts)
    rank, n = group.rank(), group.size()
    out = torch.empty_like(parts)
    if n == 1:
        return out, lambda: None
    if not parts.is_cuda:  # gloo has no list of tensors
        wait = transposing(parts, group)

        def kept():
            every = wait()
            for r in range(n):
                if r != rank:
                    out[r] = every[r]
        return out, kept
    none = parts.new_empty(0)
    to, from_ = ([none if r == rank else t[r] for r in range(n)] for t in (parts, out))
    work = _tried("all_to_all", group, dist.all_to_all, from_, to, group=group, async_op=True)

    def wait_for(_=parts):
        _tried("all_to_all", group, work.wait)
    return out, wait_for
