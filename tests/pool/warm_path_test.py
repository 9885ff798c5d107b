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
# What objdump prints before the mnemonic: how a call of __tls_get_addr is padded, for one. Not `lock`, which is looked for.
PREFIXES = re.compile(r"(?:(?:data16|addr32|rex(?:\.[WRXB]+)?|bnd|notrack|rep\w*|[c-gs]s)\s+)+")


def instructions(objdump, library, function):
    text = subprocess.run([objdump, "-d", "-C", "--no-show-raw-insn", library], check=True, capture_output=True,
                          text=True).stdout
    begin = text.find(f"<{function}>:\n")
    if begin < 0:
        raise SystemExit(f"no {function} in {library}")
    lines = text[text.index("\n", begin) + 1:].split("\n\n", 1)[0].splitlines()
    return [line.split("\t", 1)[1].strip() for line in lines if "\t" in line]


def is_inside(function, target):
    """Whether a jump stays in the function. Its cold part is another: nobody reads that here."""
    return target == function or target.startswith(f"{function}+0x")


def complaints(function, code):
    if len(code) > MOST_INSTRUCTIONS:
        yield f"{len(code)} instructions"
    for instruction in code:
        words = PREFIXES.sub("", instruction, count=1).split(None, 1)
        name, rest = words[0], words[1] if len(words) > 1 else ""
        if name == "lock" or name.startswith(("mfence", "cmpxchg", "xadd")):
            yield f"atomic read-modify-write: {instruction}"
        elif name.startswith("xchg") and "(" in rest:
            yield f"atomic exchange: {instruction}"
        elif name.startswith("call") and not any(leave in rest for leave in LEAVES):
            yield f"call: {instruction}"
        elif name.startswith("j"):
            target = re.search(r"<(.*)>$", rest)
            if target is None or not (is_inside(function, target[1]) or any(leave in target[1] for leave in LEAVES)):
                yield f"leaves: {instruction}"


def main():
    objdump, library = sys.argv[1:]
    failures = []
    for function in WARM:
        code = instructions(objdump, library, function)
        print(f"{function}: {len(code)} instructions")
        failures += [f"{function}: {complaint}" for complaint in complaints(function, code)]
    # The check itself: what it looks for is seen where it is, and nothing else.
    for seen in ("lock xadd %eax,(%rdi)", "xchg %al,(%rdi)", "mfence", "call 1 <pthread_mutex_lock@plt>",
                 "data16 data16 rex.W call 1 <__tls_get_addr@plt>", "data16 rex.W call *0x1(%rip)        # 2 <x@plt>",
                 "bnd jmp 1 <g()>", "notrack jmp *%rax", "jne    1 <g()+0x2>", "ja     1 <f() [clone .cold]>"):
        assert len(list(complaints("f()", [seen]))) == 1, seen
    for harmless in ("xchg %ax,%ax", "data16 cs nopw 0x0(%rax,%rax,1)", "rep stos %rax,%es:(%rdi)", "jne    1 <f()+0x2>",
                     "jmp    1 <f()>", "je     1 <PoolCore::acquire_otherwise(unsigned long)>"):
        assert not list(complaints("f()", [harmless])), harmless
    print(*failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
