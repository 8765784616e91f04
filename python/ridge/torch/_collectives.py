"""_collectives.py: the two collectives that ridge uses of a process group; they move bytes and add nothing."""
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


def gathering_both(t, u, group):
    """gathering of two tensors by one launch: with NCCL a collective costs the host 50 us and the device 20, however small."""
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
