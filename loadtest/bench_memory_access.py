"""Looks for a fault in decode attention on a GPU: every schedule in a process of its own.

    python -P -m shoal.loadtest.bench_memory_access [--sanitizer compute-sanitizer] [--stages LIST]

Each process runs one schedule, plain and with programmatic launch, one by one and in a graph, over
contexts around the edges of blocks, stretches and cuts, with tables, rotary tables and pages that
are exactly as large as they must be, and holds it against plain torch. A process that dies or that
computes something else is reported with its schedule. With ``--sanitizer`` the processes run under
it, few contexts each. Exits non-zero when any failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch

from shoal.kernels.attention import decode_attention
from shoal.kernels.heads import rope_tables
from shoal.kernels.kv import gather_pages
from shoal.kernels.pages import (
    Heads,
    Schedule,
    Workspace,
    attention_reference,
    cut_on_host,
)

HQ, HKV, DIM, PAGE = 32, 8, 128, 64
CONTEXTS = (
    (0,),
    (1, 63, 64, 65),
    (127, 128, 255, 256, 257),
    (511, 512, 513) * 8,
    (700,) * 64,
    (1023, 1024, 2047, 2048, 2049),
    (4095, 4096, 4097, 5000),
)
FEW = ((0,), (63, 64, 257), (513,) * 6, (2047, 2049))
REPEATS = 50


def check(schedule: Schedule, positions: tuple[int, ...], pdl: bool, share: bool) -> None:
    """RuntimeError when a row is not what plain torch computes, or not always the same."""
    m, longest = len(positions), max(positions)
    draw = torch.Generator("cuda").manual_seed(m + longest)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=draw).bfloat16()

    heads = Heads(HQ, HKV, DIM, 1e-6, rope_tables(longest + 1, DIM, 1e6, "cuda"))
    counts = [position // PAGE + 1 for position in positions]
    shared = min(positions) // PAGE if share else 0
    pages = sum(counts) - (m - 1) * shared
    order = torch.randperm(pages, generator=draw, device="cuda").int()
    # A page that no table names: to read it is to read NaN.
    keys, values = (random(pages + 1, HKV, PAGE, DIM) for _ in "kv")
    keys[pages] = values[pages] = float("nan")
    tables = torch.full((m, max(counts)), pages, dtype=torch.int32, device="cuda")
    used = shared
    tables[:, :shared] = order[:shared]
    for row, count in enumerate(counts):
        tables[row, shared:count] = order[used : used + count - shared]
        used += count - shared
    slots = torch.arange(m, dtype=torch.int32, device="cuda")
    at = torch.tensor(positions, dtype=torch.int32, device="cuda")
    qkv = random(1, m, (HQ + 2 * HKV) * DIM)
    work = Workspace.empty(m, heads, "cuda")
    out = torch.zeros(m, HQ * DIM, dtype=torch.bfloat16, device="cuda")
    prefix = groups = None
    if shared:
        # Those that are cut as the first is; the others are left to themselves.
        cuts = [cut_on_host(position + 1, schedule) for position in positions]
        alike = [row for row, cut in enumerate(cuts) if cut == cuts[0]]
        prefix = torch.zeros(m, 2, dtype=torch.int32, device="cuda")
        prefix[alike] = torch.tensor([shared * PAGE, cuts[0]], dtype=torch.int32, device="cuda")
        groups = torch.full((-(-len(alike) // 16), 16), -1, dtype=torch.int32, device="cuda")
        groups.view(-1)[: len(alike)] = slots[alike]

    def run() -> None:
        decode_attention(
            qkv,
            None,
            heads,
            keys,
            values,
            tables,
            slots,
            at,
            work,
            out,
            prefix=prefix,
            groups=groups,
            schedule=schedule,
            pdl=pdl,
        )

    run()
    torch.cuda.synchronize()
    first = out.clone()
    for row, position in enumerate(positions):
        past = [gather_pages(pages_of, tables[row], position + 1) for pages_of in (keys, values)]
        expected = attention_reference(work.queries[row][None], past[0], past[1], position)
        away = (first[row].float() - expected.flatten()).square().sum()
        error = float(away / expected.square().sum()) ** 0.5
        if not error < 0.01:
            raise RuntimeError(f"row {row} at {position}: error {error}")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            run()
    for _ in range(REPEATS):
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(out, first):
            raise RuntimeError(f"another result at {positions[:8]}")
    if work.arrived.any():
        raise RuntimeError("programs are still awaited")


def one(schedule: Schedule, few: bool) -> None:
    for positions in FEW if few else CONTEXTS:
        for pdl in (False, True):
            for share in (False, True):
                check(schedule, positions, pdl, share)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help="block,split,stages: check this schedule in this process")
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--sanitizer", help="the tool to run processes under")
    parser.add_argument("--stages", default="1,2,3,5")
    args = parser.parse_args()
    if args.one:
        one(Schedule(*map(int, args.one.split(","))), args.few)
        return 0
    bad = 0
    for stages in args.stages.split(","):
        for block in (32, 64):
            for split in (128, 256, 512):
                name = f"{block},{split},{stages}"
                module = "shoal.loadtest.bench_memory_access"
                command = [sys.executable, "-P", "-m", module, "--one", name]
                if args.sanitizer:
                    command = [args.sanitizer, "--error-exitcode", "9", *command, "--few"]
                done = subprocess.run(command, capture_output=True, text=True)
                print(f"{name}: {'ok' if not done.returncode else 'FAILED'}", flush=True)
                if done.returncode:
                    bad += 1
                    print((done.stdout[-2000:] + done.stderr[-2000:]).strip(), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
