"""_collectives.py: the two collectives that ridge uses of a process group; they move bytes and add nothing. Of a group for which
copy_engine was called they are copies that the GPUs' copy engines make out of PyTorch's symmetric memory."""
import ctypes as C
import functools
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


class _Memcpy2D(C.Structure):
    """CUDA_MEMCPY2D"""
    _fields_ = [(f"{side}{name}", kind) for side in ("src", "dst") for name, kind in (
        ("XInBytes", C.c_size_t), ("Y", C.c_size_t), ("MemoryType", C.c_int), ("Host", C.c_void_p), ("Device", C.c_void_p),
        ("Array", C.c_void_p), ("Pitch", C.c_size_t))] + [("WidthInBytes", C.c_size_t), ("Height", C.c_size_t)]


@functools.cache
def _copy_2d():
    return C.CDLL("libcuda.so.1").cuMemcpy2DAsync_v2


def _to_columns(mine, theirs, stream):
    """Copies into columns of a matrix: PyTorch would launch a kernel, which a copy engine does without."""
    (rows, cols), of = mine.shape, mine.element_size()
    how = _Memcpy2D(srcMemoryType=2, srcDevice=theirs.data_ptr(), srcPitch=cols * of,  # 2: CU_MEMORYTYPE_DEVICE
                    dstMemoryType=2, dstDevice=mine.data_ptr(), dstPitch=mine.stride(0) * of, WidthInBytes=cols * of, Height=rows)
    status = _copy_2d()(C.byref(how), C.c_void_p(stream.cuda_stream))
    if status:
        raise Error(f"copying {rows} x {cols * of} bytes: cuMemcpy2DAsync ends with {status}")


class _Buffer:
    """Symmetric memory: this rank's, and that of the others."""

    def __init__(self, bytes_, group, device):
        from torch.distributed import _symmetric_memory as symmetric
        self.mine = symmetric.empty(bytes_, dtype=torch.uint8, device=device)
        self.handle, self.views = symmetric.rendezvous(self.mine, group.group_name), {}

    def meet(self, seconds):
        self.handle.barrier(0, int(1000 * seconds))

    def of(self, rank, shape, dtype, first):
        """What a rank has from byte `first` on."""
        key = rank, shape, dtype, first
        if key not in self.views:
            self.views[key] = self.handle.get_buffer(rank, shape, dtype, first // dtype.itemsize)
        return self.views[key]


class Copies:
    """Transfers of a group that take no multiprocessor: what is sent lies in memory that all ranks see, they meet, and each copies what
    it wants. Two transfers go on at once at most. A rank may write into a buffer again once it has met the others after they have
    waited for the transfer of it: with four buffers of a size also where room for two transfers is taken before they begin."""

    def __init__(self, group, seconds):
        self.group, self.seconds, self.rings, self.ready, self.stream = group, seconds, {}, {}, torch.cuda.Stream()

    def new(self, bytes_, device):
        return _Buffer(bytes_, self.group, device)

    def room(self, tensors, device):
        """Room in one buffer for tensors (shape, dtype) that are sent next. The first time of a size is a collective, not within a
        graph."""
        at = [0]
        for shape, dtype in tensors:
            at.append(at[-1] + -(-shape.numel() * dtype.itemsize // 256) * 256)
        ring = self.rings.get(at[-1])
        if ring is None:
            ring = self.rings[at[-1]] = [self.new(at[-1], device) for _ in range(4)]
        ring.append(ring.pop(0))
        buffer = ring[-1]
        found = [buffer.of(self.group.rank(), shape, dtype, first) for (shape, dtype), first in zip(tensors, at)]
        self.ready[found[0].data_ptr()] = buffer, at
        return found

    def copying(self, buffer, out, groups, met=False):
        """Begins to copy into tensors `out`, where all ranks have come so far, or had come before (met): groups of pairs of a rank's
        part and where it goes; ends with what waits for each group."""
        if not met:
            buffer.meet(self.seconds)
        self.stream.wait_stream(torch.cuda.current_stream())
        waits = []
        with torch.cuda.stream(self.stream):
            for pairs in groups:
                for theirs, mine in pairs:
                    if mine.is_contiguous():
                        mine.copy_(theirs)
                    else:
                        _to_columns(mine, theirs, self.stream)
                waits.append(self.stream.record_event().wait)
        for t in out:
            t.record_stream(self.stream)
        return waits

    def others(self):
        n, rank = self.group.size(), self.group.rank()
        return [(rank + other) % n for other in range(1, n)]

    def gathering(self, tensors, own, side_by_side=False, met=False):
        """Of several tensors at once, which lie in a room or go there; own: this rank's parts too. side_by_side: parts of the first, a
        matrix, are columns of one. met: if they lay in a room when the ranks last met. What waits takes 1: for the first of
        others() of more than one, if not side by side; 0: for all."""
        n, rank = self.group.size(), self.group.rank()
        there = tensors[0].data_ptr() in self.ready
        if not there:
            for place, t in zip(room := self.room([(t.shape, t.dtype) for t in tensors], tensors[0].device), tensors):
                place.copy_(t)
            tensors = room
        buffer, at = self.ready.pop(tensors[0].data_ptr())
        out = [t.new_empty(n, *t.shape) for t in tensors]
        parts = list(out)
        if side_by_side:
            out[0] = out[0].view(tensors[0].shape[0], -1)
            parts[0] = out[0].unflatten(1, (n, -1)).transpose(0, 1)
        ranks = self.others() + [rank] * own
        waits = self.copying(buffer, out, [[(buffer.of(r, t.shape, t.dtype, first), o[r]) for r in some
                                            for t, o, first in zip(tensors, parts, at)]
                                           for some in ([ranks] if side_by_side or n == 2 else [ranks[:1], ranks[1:]])], met and there)

        def waited(count=0):
            waits[count - 1]()
            return out
        return waited

    def trading(self, parts):
        """`trading` of parts [ranks, ..] in a room."""
        buffer, _ = self.ready.pop(parts.data_ptr())
        n, rank = self.group.size(), self.group.rank()
        out, first = torch.empty_like(parts), rank * parts[0].numel() * parts.element_size()

        def begin(distances):
            return self.copying(buffer, [out], [[(buffer.of(r, parts.shape[1:], parts.dtype, first), out[r])
                                                 for r in ((rank - d) % n for d in distances)]])[0]
        return out, begin

    def gathering_in(self, parts):
        """Of parts in a room, whose part of this rank's number is its own; it lasts until two more transfers."""
        buffer, _ = self.ready.pop(parts.data_ptr())
        bytes_ = parts[0].numel() * parts.element_size()
        wait, = self.copying(buffer, [parts], [[(buffer.of(r, parts.shape[1:], parts.dtype, r * bytes_), parts[r])
                                                for r in self.others()]])

        def waited():
            wait()
            return parts
        return waited


def copy_engine(group, seconds=60.0):
    """Transfers of tensor-parallel layers over this group and of linear_cross_entropy's parts of dX (rows "whole"), whose GPUs
    see each other's memory, are from now on made by copy engines and leave the multiprocessors to products. A collective call.
    What is sent takes four buffers for each of its sizes. Where a rank does not come within `seconds`, the others' CUDA contexts
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
    if copies:
        return copies.room([(torch.Size((n, rows, cols)), dtype)], like.device)[0]
    return torch.empty(n, rows, cols, dtype=dtype, device=like.device)


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


def gathering_columns(t, u, group, met=False):
    """gathering_both of which the first, matrices of bytes [rows, cols], become one: [rows, ranks * cols]. met: as Copies.gathering."""
    copies = by_copies(group)
    if copies:
        return copies.gathering((t.contiguous(), u.contiguous()), True, True, met)
    both = gathering_both(t, u, group)

    def wait():
        codes, u = both()
        codes = codes.view(torch.int64).transpose(0, 1).flatten(1)  # PyTorch copies bytes one by one: four times as long
        return codes.view(torch.uint8), u
    return wait


def transposing(parts, group):
    """Begins to send parts [ranks, ..]: rank r gets part r of every rank, in their order; ends with them."""
    if group.size() == 1:
        return lambda: parts
    return _begun("all_to_all_single", group, torch.empty_like(parts), parts)


def transposed(parts, group):
    return transposing(parts, group)()


def trading(parts, group):
    """transposing of all parts but this rank's own, for which the result has room: (the result, what begins it). By copies it may begin
    several times: where each rank has written its parts for those that lie at some `distances` behind it. It gives what waits."""
    if by_copies(group):
        return by_copies(group).trading(parts)
    rank, n = group.rank(), group.size()
    out = torch.empty_like(parts)
    none = parts.new_empty(0)

    def begin(_):
        if not parts.is_cuda:  # gloo has no list of tensors
            wait = transposing(parts, group)

            def kept():
                every = wait()
                for r in range(n):
                    if r != rank:
                        out[r] = every[r]
            return kept
        to, from_ = ([none if r == rank else t[r] for r in range(n)] for t in (parts, out))
        work = _tried("all_to_all", group, dist.all_to_all, from_, to, group=group, async_op=True)

        def wait_for(_=parts):
            _tried("all_to_all", group, work.wait)
        return wait_for
    return out, begin
