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


def transposing(parts, group):
    """Begins to send parts [ranks, ..]: rank r gets part r of every rank, in their order; ends with them."""
    if group.size() == 1:
        return lambda: parts
    return _begun("all_to_all_single", group, torch.empty_like(parts), parts)


def transposed(parts, group):
    return transposing(parts, group)()
