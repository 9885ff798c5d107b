#!/usr/bin/python3
"""The library reads the environment in one way, and SECURITY.md has a row for every variable that it reads."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = [path for folder in ("include", "src", "apps", "python/src", "python/unimem") for path in (ROOT / folder).rglob("*")
           if path.suffix in (".cpp", ".hpp", ".py")]  # fmt: skip

NAME = re.compile(r'"((?:UNIMEM|POCL|XDG|CUDA|NVTX|OCL|OPENCL)_[A-Z0-9_]+|HOME|TERM|TMPDIR)"')
# Quoted as well: words of kernel sources, and names of errors.
NO_VARIABLES = {"UNIMEM_KERNEL", "UNIMEM_FUNCTION", "UNIMEM_BUFFER", "UNIMEM_CONST_BUFFER", "UNIMEM_ATOMIC_ADD_F32", "CUDA_ERROR_ILLEGAL_ADDRESS"}
KERNEL_WORDS = ROOT / "src/device/group_words.hpp"
# What reads the environment with whatever rights.
PLAIN = re.compile(r"(?<!secure_)\bgetenv *\(|\bos\.(?:environ|getenv)\b|\benviron\b *[;\[]")


class SecurityPage(unittest.TestCase):
    def test_has_every_variable_that_is_read(self) -> None:
        rows = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| `")]
        told = set(re.findall(r"`([A-Z0-9_]+)`", "\n".join(row.split("|")[1] for row in rows)))
        read = {name for path in SHIPPED if path != KERNEL_WORDS for name in NAME.findall(path.read_text())} - NO_VARIABLES
        self.assertGreater(len(read), 20)
        self.assertEqual(read, told)

    def test_is_right_that_none_has_an_effect_in_setuid_programs(self) -> None:
        plain = [f"{path.relative_to(ROOT)}: {found[0]}" for path in SHIPPED for found in PLAIN.finditer(path.read_text())]
        self.assertEqual(plain, [])


if __name__ == "__main__":
    unittest.main()
