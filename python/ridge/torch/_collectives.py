"""_collectives.py: the two collectives that ridge uses of a process group; they move bytes and add nothing."""
import torch
import torch.distributed as dist

from .._core import Error


class PeerError(Error):
    """A collective failed: a rank has died, stopped, or taken another turn. The group is of no use any more."""


def _collective(name, group, *args):
    try:
        getattr(dist, name)(*args, group=group)
    except RuntimeError as error:
        raise PeerError(f"{name} on rank {group.rank()} of {group.size()}: {str(error)[:500]}") from error


def gathered(t, group):
    """t of every rank, [ranks, ..]."""
    out = t.new_empty(group.size(), *t.shape)
    if group.size() == 1:
        return out.copy_(t)
    _collective("all_gather_into_tensor", group, out.view(-1), t.contiguous().view(-1))
    return out


def transposed(parts, group):
    """parts [ranks, ..]: rank r gets part r of every rank, in their order."""
    if group.size() == 1:
        return parts
    out = torch.empty_like(parts)
    _collective("all_to_all_single", group, out.view(-1), parts.view(-1))
    return out
