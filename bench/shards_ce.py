"""shards_ce.py [--lib FILE]: a vocabulary in 2 to 5 uneven slices on one GPU: eval's records, ce_combine, backward by slice,
against the unsplit train; in several orders of arrival, of which every result must have the same bits.
"""
import argparse, ctypes as C, itertools, os, sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ridge_ctypes as R

CE_COMBINE = 22
TOKENS, HIDDEN, VOCAB = 1000, 512, 20000
CUTS = {2: (7000,), 3: (8, 12000), 4: (4000, 4104, 13000), 5: (1000, 5000, 11032, 19992)}


def call_of(op, dims, operands, offset=0, total=0):
    call = R.Call(struct_size=C.sizeof(R.Call), op=op)
    call.opt.ce = R.CeOptions(-100, offset, total, 0, 0, 1, 0, 1, 0)
    for i, dim in enumerate(dims):
        call.dim[i] = dim
    for slot, (tensor, dtype) in operands.items():
        call.arg[slot] = R.Operand(tensor.data_ptr(), 0, dtype, 0)
    return call


def run(lib, call):
    need = lib.workspace(call)
    space = torch.empty(max(need, 1), device="cuda", dtype=torch.uint8)
    lib.run(call, torch.cuda.current_stream().cuda_stream, space.data_ptr(), need)
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
        run(lib, call_of(R.LINEAR_CE_EVAL, (TOKENS, HIDDEN, len(part)),
                         {0: (x, R.BF16), 1: (part, R.BF16), 2: (y, R.I64), 13: (record[place], R.F32)}, edges[s], VOCAB))
    loss, lse = new(1), new(TOKENS)
    run(lib, call_of(CE_COMBINE, (TOKENS, VOCAB, count),
                     {0: (record, R.F32), 1: (offset, R.I64), 2: (y, R.I64), 3: (loss, R.F32), 6: (lse, R.F32)}))
    dw, terms = new(VOCAB, HIDDEN), {}
    for s in order:
        part, dx = w[edges[s]:edges[s + 1]], new(TOKENS, HIDDEN, dtype=torch.bfloat16)
        run(lib, call_of(R.LINEAR_CE_BACKWARD, (TOKENS, HIDDEN, len(part)),
                         {0: (x, R.BF16), 1: (part, R.BF16), 2: (y, R.I64), 3: (lse, R.F32), 7: (dx, R.BF16),
                          8: (dw[edges[s]:edges[s + 1]], R.F32)}, edges[s], VOCAB))
        terms[s] = dx
    return loss, lse, sum(terms[s].float() for s in range(count)), dw


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", default="build/libridge.so")
    lib = R.Library(parser.parse_args().lib, "cuda")
    torch.manual_seed(3)
    x = torch.randn(TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(VOCAB, HIDDEN, device="cuda", dtype=torch.bfloat16).mul_(2 / HIDDEN**0.5)
    y = torch.randint(VOCAB, (TOKENS,), device="cuda")
    y[::7] = -100
    loss, lse, dx, dw = new(1), new(TOKENS), new(TOKENS, HIDDEN, dtype=torch.bfloat16), new(VOCAB, HIDDEN)
    run(lib, call_of(R.LINEAR_CE_TRAIN, (TOKENS, HIDDEN, VOCAB),
                     {0: (x, R.BF16), 1: (w, R.BF16), 2: (y, R.I64), 3: (loss, R.F32), 7: (lse, R.F32), 14: (dx, R.BF16),
                      15: (dw, R.F32)}))
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
