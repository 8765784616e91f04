"""shards_ce.py [--lib FILE]: a vocabulary in 2 to 5 uneven slices on one GPU: eval's records, ce_combine, backward by slice,
against the unsplit train; in several orders of arrival, of which every result must have the same bits.
"""
import argparse, itertools, os, sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import binding

TOKENS, HIDDEN, VOCAB = 1000, 512, 20000
CUTS = {2: (7000,), 3: (8, 12000), 4: (4000, 4104, 13000), 5: (1000, 5000, 11032, 19992)}


def run(lib, op, dims, first=0, total=0, **operands):
    call = binding.call(op, dims, operands, vocab_offset=first, vocab_total=total)
    need = lib.workspace_bytes(call)
    space = torch.empty(max(need, 1), device="cuda", dtype=torch.uint8)
    lib.run(call, space.data_ptr(), need, binding.stream())
    torch.cuda.synchronize()


def new(*shape, dtype=torch.float32):
    return torch.zeros(*shape, device="cuda", dtype=dtype)


def split(lib, x, w, y, cuts, order):
    """loss, lse, dX (the slices' terms in the order of the vocabulary), dW"""
    edges, count = (0, *cuts, VOCAB), len(cuts) + 1
    record, offset = new(count, TOKENS, 3), new(count, dtype=torch.int64)
    for place, s in enumerate(order):
        part = w[edges[s]:edges[s + 1]]
        offset[place] = edges[s]
        run(lib, "linear_ce_eval", (TOKENS, HIDDEN, len(part)), edges[s], VOCAB, x=x, w=part, target=y, record=record[place])
    loss, lse = new(1), new(TOKENS)
    run(lib, "ce_combine", (TOKENS, VOCAB, count), record=record, offset=offset, target=y, loss=loss, lse=lse)
    dw, terms = new(VOCAB, HIDDEN), {}
    for s in order:
        part, dx = w[edges[s]:edges[s + 1]], new(TOKENS, HIDDEN, dtype=torch.bfloat16)
        run(lib, "linear_ce_backward", (TOKENS, HIDDEN, len(part)), edges[s], VOCAB, x=x, w=part, target=y, lse=lse, dx=dx,
            dw=dw[edges[s]:edges[s + 1]])
        terms[s] = dx
    return loss, lse, sum(terms[s].float() for s in range(count)), dw


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", help="a libridge.so; else the package's")
    lib = binding.library(parser.parse_args().lib)
    torch.manual_seed(3)
    x = torch.randn(TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(VOCAB, HIDDEN, device="cuda", dtype=torch.bfloat16).mul_(2 / HIDDEN**0.5)
    y = torch.randint(VOCAB, (TOKENS,), device="cuda")
    y[::7] = -100
    loss, lse, dx, dw = new(1), new(TOKENS), new(TOKENS, HIDDEN, dtype=torch.bfloat16), new(VOCAB, HIDDEN)
    run(lib, "linear_ce_train", (TOKENS, HIDDEN, VOCAB), x=x, w=w, target=y, loss=loss, lse=lse, dx=dx, dw=dw)
    whole, bound = (loss, lse, dx.float(), dw), (1e-6, 1e-6, 8e-3, 8e-3)
    for count, cuts in CUTS.items():
        first = None
        for order in list(itertools.permutations(range(count)))[::max(1, count * count // 4)]:
            got = split(lib, x, w, y, cuts, order)
            first = first or got
            if not all(torch.equal(a, b) for a, b in zip(first, got)):
                sys.exit(f"{count} slices: other bits in the order {order}")
        apart = [((a - b).norm() / a.norm()).item() for a, b in zip(whole, first)]
        print(f"{count} slices: loss, lse, dX, dW differ from the whole by " + ", ".join(f"{a:.1e}" for a in apart))
        if any(a > b for a, b in zip(apart, bound)):
            sys.exit(f"{count} slices: beyond {bound}")


if __name__ == "__main__":
    main()
