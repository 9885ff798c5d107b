"""Reads what the compiler made of a warm acquire and release: no lock, no atomic read-modify-write, and no call but those
that leave the warm path for good.

usage: warm_path_test.py OBJDUMP LIBRARY
"""

import re
import subprocess
import sys

WARM = ("unimem::detail::acquire(unimem::detail::PoolCore&, unsigned long, unimem::AcquireOptions const&)",
        "unimem::detail::release(unimem::detail::Block&, unimem::Event)")
LEAVES = ("PoolCore::acquire_otherwise(", "PoolCore::release_otherwise(")
# A pair takes about half of these; a call that was inlined by mistake would be far more.
MOST_INSTRUCTIONS = 200


def instructions(objdump, library, function):
    text = subprocess.run([objdump, "-d", "-C", "--no-show-raw-insn", library], check=True, capture_output=True,
                          text=True).stdout
    begin = text.find(f"<{function}>:\n")
    if begin < 0:
        raise SystemExit(f"no {function} in {library}")
    lines = text[text.index("\n", begin) + 1:].split("\n\n", 1)[0].splitlines()
    return [line.split("\t", 1)[1].strip() for line in lines if "\t" in line]


def complaints(function, code):
    if len(code) > MOST_INSTRUCTIONS:
        yield f"{len(code)} instructions"
    for instruction in code:
        words = instruction.split(None, 1)
        name, rest = words[0], words[1] if len(words) > 1 else ""
        if name == "lock" or name.startswith(("mfence", "cmpxchg", "xadd")):
            yield f"atomic read-modify-write: {instruction}"
        elif name.startswith("xchg") and "(" in rest:
            yield f"atomic exchange: {instruction}"
        elif name.startswith("call") and not any(leave in rest for leave in LEAVES):
            yield f"call: {instruction}"
        elif name.startswith("jmp"):
            target = re.search(r"<(.*)>$", rest)
            inside = target is not None and (target[1].startswith(function) or any(leave in target[1] for leave in LEAVES))
            if not inside:
                yield f"leaves: {instruction}"


def main():
    objdump, library = sys.argv[1:]
    failures = []
    for function in WARM:
        code = instructions(objdump, library, function)
        print(f"{function}: {len(code)} instructions")
        failures += [f"{function}: {complaint}" for complaint in complaints(function, code)]
    # The check itself: what it looks for is seen where it is.
    assert list(complaints("f()", ["lock xadd %eax,(%rdi)", "xchg %al,(%rdi)", "call 1 <pthread_mutex_lock@plt>"]))[2:]
    print(*failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
